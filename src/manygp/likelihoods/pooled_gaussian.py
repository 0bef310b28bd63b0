"""Gaussian observations whose noise differs between outputs, but not at will."""

import torch
from torch import Tensor, nn

from manygp.likelihoods.gaussian import Gaussian

__all__ = ["PooledGaussian"]


class PooledGaussian(Gaussian):
    """y = f + ε with ε ~ N(0, σ² exp(δ_p)) and δ_p ~ N(0, τ²).

    Outputs with many cells have the noise that these say, outputs with few the noise of all.

    Parameters
    ----------
    num_outputs
        Number of outputs.
    noise
        Initial noise variance σ².
    spread
        Prior variance τ² of the deviations.
    """

    spread: Tensor

    def __init__(self, num_outputs: int = 1, noise: float = 0.1, spread: float = 1.0):
        super().__init__(noise=noise)
        self.rows = ("deviation",)
        self.deviation = nn.Parameter(torch.zeros(num_outputs, dtype=torch.float64))
        self.register_buffer("spread", torch.tensor(spread, dtype=torch.float64))

    @torch.no_grad()
    def set_deviation(self, deviation: Tensor, spread: float) -> None:
        """Set δ and its prior variance τ²."""
        self.deviation.copy_(deviation)
        self.spread.fill_(spread)

    def split_noise(self, outputs: Tensor, extra: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if extra is not None:
            return super().split_noise(outputs, extra)
        return self.noise[0], self.pick("deviation", outputs)

    def negative_log_prior(self, outputs: Tensor) -> Tensor:
        # −log N(δ | 0, τ²) without its constant
        return 0.5 * self.pick("deviation", outputs).square() / self.spread

    def _own_noise(self, outputs: Tensor) -> Tensor:
        return self.noise[0] * self.pick("deviation", outputs).exp()
