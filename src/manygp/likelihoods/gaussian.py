"""Gaussian observations: one noise variance for all outputs, one for each, or none at all."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from torch import Tensor, nn

from manygp.likelihoods.likelihood import Likelihood, mean_by_output

# The least noise that is learned, beside values of size 1; what somebody fixes may be in any units.
_LEAST_NOISE, _LEAST_FIXED = 1e-6, 1e-20


class Gaussian(Likelihood):
    """y = f + ε with ε ~ N(0, σ²).

    What other likelihoods have as the exposure of a cell is here the variance of its noise beside that of its output,
    which a model tells: σ² and this add up, and may not be negative together.

    Parameters
    ----------
    num_outputs
        Number of outputs; only needed to give each its own noise.
    noise
        Noise variance σ², or one for each output. A fit that starts from the data finds a start of its own, unless the
        noise is not to be learned.
    per_output
        Whether every output has a noise variance of its own.
    learn_noise
        Whether the noise is learned. If not, it is that of the observations in the units of Y, however an estimator
        scales them, and stays as it is from the start of a fit to its end; below a millionth of an output's variance
        it counts as that.
    """

    is_affine = True

    def __init__(
        self,
        num_outputs: int = 1,
        noise: float | Sequence[float] | np.ndarray | Tensor = 0.1,
        per_output: bool = False,
        learn_noise: bool = True,
    ):
        super().__init__()
        floor = _LEAST_NOISE if learn_noise else _LEAST_FIXED
        self.constraint = GreaterThan(floor).double()
        # GPyTorch has rounded it to the default dtype.
        self.constraint.lower_bound.fill_(floor)
        zeros = torch.zeros(num_outputs if per_output else 1, dtype=torch.float64)
        self.raw_noise = nn.Parameter(zeros, requires_grad=learn_noise)
        if per_output:
            self.rows = ("raw_noise",)
        self.noise = torch.as_tensor(noise, dtype=torch.float64)

    @property
    def noise(self) -> Tensor:
        """Noise variance σ², shape (1,) or (p,)."""
        return self.constraint.transform(self.raw_noise)

    @noise.setter
    def noise(self, value: Tensor) -> None:
        floor = self.constraint.lower_bound * (1.0 + 1e-3)
        with torch.no_grad():
            value = value.to(self.raw_noise).clamp(min=float(floor)).expand_as(self.raw_noise)
            self.raw_noise.copy_(self.constraint.inverse_transform(value))

    @property
    def is_shared(self) -> bool:
        """Whether all outputs have the same noise."""
        return not self.rows

    @property
    def is_fixed(self) -> bool:
        """Whether the noise is not to be learned."""
        return not any(parameter.requires_grad for parameter in self.parameters())

    @torch.no_grad()
    def variances(self, num_outputs: int) -> Tensor:
        """Noise variances of so many outputs, (p,)."""
        outputs = torch.arange(num_outputs, device=self.raw_noise.device)
        return self._noise_of(outputs, self.raw_noise).expand(num_outputs)

    def split_noise(self, outputs: Tensor, extra: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(σ², δ) with the noise variance of every cell written as σ² exp(δ), δ None where all are the same.

        `extra` is what a cell has beside the noise of its output.
        """
        if self.is_shared and extra is None:
            return self.noise[0], None
        log_noise = self._noise_of(outputs, self.raw_noise, extra).log()
        center = log_noise.detach().sum() / max(log_noise.numel(), 1)
        return center.exp(), log_noise - center

    def noise_of(self, outputs: Tensor, extra: Tensor | None = None) -> Tensor:
        """Noise variances of cells of some outputs, with what they have beside that, in the shape of `outputs`."""
        return self._noise_of(outputs, self.raw_noise, extra).expand(outputs.shape)

    def _noise_of(self, outputs: Tensor, like: Tensor, extra: Tensor | None = None) -> Tensor:
        own = self._own_noise(outputs)
        return (own if extra is None else own + extra).to(like.dtype)

    def _own_noise(self, outputs: Tensor) -> Tensor:
        """Noise variances of outputs, without what single cells have beside them."""
        return self.constraint.transform(self.pick("raw_noise", outputs))

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return _log_normal(y - f, self._noise_of(outputs, f, exposure))

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return f, self._noise_of(outputs, f, exposure).expand_as(f)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return torch.special.ndtr((y - f) / self._noise_of(outputs, f, exposure).sqrt())

    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        noise = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        return f + noise * self._noise_of(outputs, f, exposure).sqrt()

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        # E[log N(y | f, σ²)] = log N(y | μ, σ²) − v / 2σ²
        noise = self._noise_of(outputs, mean, exposure)
        return _log_normal(y - mean, noise) - 0.5 * variance / noise

    @torch.no_grad()
    def site_derivatives(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        noise = self._noise_of(outputs, mean, exposure)
        by_mean = (y - mean) / noise
        return by_mean, (-0.5 / noise).expand_as(by_mean)

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return _log_normal(y - mean, variance + self._noise_of(outputs, mean, exposure))

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return mean, variance + self._noise_of(outputs, mean, exposure)

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return torch.special.ndtr((y - mean) / (variance + self._noise_of(outputs, mean, exposure)).sqrt())

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        if self.is_fixed:
            return
        f = self.constant_level(y, outputs) if f is None else f
        self.noise = mean_by_output((y - f).square(), outputs, self.raw_noise.numel())


def _log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * (residual.square() / variance + variance.log() + math.log(2.0 * math.pi))


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


class Noiseless(Likelihood):
    """y = f, so that predictions are those of the function without observation noise. Not for fitting."""

    is_affine = True

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return torch.where(f == y, torch.inf, -torch.inf)

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return f, torch.zeros_like(f)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return (f <= y).to(f.dtype)

    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        return f

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return mean, variance

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        return torch.special.ndtr((y - mean) / variance.sqrt())
