"""Yes or no."""

import torch
from torch import Tensor

from manygp.likelihoods.likelihood import Likelihood, sum_by_output


class Bernoulli(Likelihood):
    """y = 1 with probability Φ(f), the normal distribution function, else y = 0.

    With this link the predictive probability is known: E[Φ(f)] = Φ(μ / √(1 + v)).

    Parameters
    ----------
    num_outputs
        Number of outputs; there is nothing to learn for them.
    """

    is_discrete = True
    support = "0 or 1"

    def __init__(self, num_outputs: int = 1):
        super().__init__()

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        # log Φ(f) for y = 1 and log Φ(−f) for y = 0
        return torch.special.log_ndtr((2.0 * y - 1.0) * f)

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        π = torch.special.ndtr(f)
        return π, π * torch.special.ndtr(-f)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return torch.where(y < 0.0, 0.0, torch.where(y < 1.0, torch.special.ndtr(-f), 1.0))

    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        uniform = torch.rand(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return (uniform < torch.special.ndtr(f)).to(f.dtype)

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return self.log_prob(_averaged(mean, variance), y, outputs)

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.conditional_moments(_averaged(mean, variance), outputs)

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return self.conditional_cdf(_averaged(mean, variance), y, outputs)

    def in_support(self, y: Tensor) -> Tensor:
        return (y == 0.0) | (y == 1.0)

    def level(self, y: Tensor, outputs: Tensor, num_outputs: int, exposure: Tensor | None = None) -> Tensor:
        total, count = sum_by_output(y, outputs, num_outputs), sum_by_output(torch.ones_like(y), outputs, num_outputs)
        # One more cell with the share of all, which has half a yes and half a no more, so that none is 0 or 1.
        share = (y.sum() + 0.5) / (y.numel() + 1.0)
        return torch.special.ndtri((total + share) / (count + 1.0))

    def guess(self, y: Tensor, outputs: Tensor, level: Tensor, exposure: Tensor | None = None) -> Tensor:
        # Halfway between what was seen and the probability of its output.
        return torch.special.ndtri(0.5 * (y + torch.special.ndtr(level).index_select(0, outputs)))


def _averaged(mean: Tensor, variance: Tensor) -> Tensor:
    """The f whose Φ is the expectation of Φ."""
    return mean / (1.0 + variance).sqrt()
