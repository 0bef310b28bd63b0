"""Student-t noise: Gaussian in the middle, with outliers."""

import math

import torch
from torch import Tensor

from manygp.likelihoods.counts import gamma_sample
from manygp.likelihoods.likelihood import Likelihood, mean_by_output

# As for Gaussian noise: a floor under the squared scale.
_MIN_NOISE = 1e-6
_MAX_EXCESS = 98.0
# Terms below exp(−37) of the largest do not count in float64.
_NEGLIGIBLE = 37.0


class StudentT(Likelihood):
    """y = f + σ τ with τ Student-t of ν > 2 degrees of freedom.

    Predictions use that τ is Gaussian with a random precision, τ ~ N(0, 1/λ) with λ ~ Gamma(ν/2, ν/2): given λ
    everything is known, and what is left is an integral over log λ that plain equidistant nodes compute to ten digits,
    whatever the size of the noise beside that of f.

    Parameters
    ----------
    num_outputs
        Number of outputs; only needed to give each its own scale.
    scale
        Initial scale σ.
    degrees_of_freedom
        Initial ν; above 2 so that the variance σ² ν / (ν − 2) exists, and at most 100, where it is Gaussian.
    per_output
        Whether every output has a scale of its own.
    """

    num_points = 32
    is_affine = True
    log_noise: Tensor
    log_excess: Tensor

    def __init__(
        self, num_outputs: int = 1, scale: float = 0.3, degrees_of_freedom: float = 4.0, per_output: bool = False
    ):
        super().__init__()
        self.hold_log("log_noise", scale**2, num_outputs if per_output else None)
        self.hold_log("log_excess", degrees_of_freedom - 2.0, None)

    @property
    def scale(self) -> Tensor:
        """σ, shape (1,) or (p,)."""
        return (_MIN_NOISE + self.log_noise.exp()).sqrt()

    @property
    def degrees_of_freedom(self) -> Tensor:
        """ν, shape (1,)."""
        return 2.0 + self.log_excess.exp().clamp(max=_MAX_EXCESS)

    def _parameters_of(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """σ² and ν of every cell."""
        noise = _MIN_NOISE + self.pick("log_noise", outputs).exp()
        return noise.to(like.dtype), self.degrees_of_freedom.reshape(()).to(like.dtype)

    def log_prob(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        noise, ν = self._parameters_of(outputs, f)
        # log Γ((ν + 1)/2) − log Γ(ν/2) − ½ log(π ν σ²) − (ν + 1)/2 log(1 + (y − f)² / νσ²)
        constant = torch.lgamma(0.5 * (ν + 1.0)) - torch.lgamma(0.5 * ν) - 0.5 * (math.pi * ν * noise).log()
        return constant - 0.5 * (ν + 1.0) * torch.log1p((y - f).square() / (ν * noise))

    def conditional_moments(self, f: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.predictive_moments(f, torch.zeros_like(f), outputs)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return self.predictive_cdf(f, torch.zeros_like(f), y, outputs)

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        noise, ν = self._parameters_of(outputs, f)
        normal = torch.randn(f.shape, dtype=f.dtype, device=f.device, generator=generator)
        λ = gamma_sample((0.5 * ν).expand(f.shape).contiguous(), generator) / (0.5 * ν)
        return f + normal * (noise / λ).sqrt()

    def predictive_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        noise, ν = self._parameters_of(outputs, mean)
        residual2 = (y - mean).square()
        # An outlier is explained by λ of about ν / (ν + z²).
        lowest = -torch.log1p((residual2 / (ν * noise)).max())
        λ, log_weight = _precisions(ν, lowest, max(residual2.dim(), variance.dim()))
        total = variance + noise / λ
        log_normal = -0.5 * (residual2 / total + total.log() + math.log(2.0 * math.pi))
        return torch.logsumexp(log_normal + log_weight, 0)

    def predictive_moments(
        self, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        noise, ν = self._parameters_of(outputs, mean)
        return mean, variance + noise * ν / (ν - 2.0)

    def predictive_cdf(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        noise, ν = self._parameters_of(outputs, mean)
        residual = y - mean
        λ, log_weight = _precisions(ν, torch.zeros_like(ν), max(residual.dim(), variance.dim()))
        return (log_weight.exp() * torch.special.ndtr(residual / (variance + noise / λ).sqrt())).sum(0)

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        f = self.constant_level(y, outputs) if f is None else f
        # Absolute residuals, because squares of outliers would drown the rest: σ is about E|y − f|.
        scale = mean_by_output((y - f).abs(), outputs, self.log_noise.numel())
        self.log_noise.copy_((scale.square() + _MIN_NOISE).log())


def _precisions(ν: Tensor, lowest: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Nodes λ and log weights of E[g(λ)], λ ~ Gamma(ν/2, ν/2), for g that may rise as λ falls down to exp(lowest).

    t = log λ has density ∝ exp(ν/2 (t − exp t)), analytic and with fast tails, for which equidistant nodes converge
    exponentially.
    """
    a = 0.5 * ν.detach()
    step = 0.6 * a.rsqrt().clamp(max=0.5)
    # exp(a (t + 1 − exp t)) is negligible below t = −(1 + c/a) and above log(2 + 2 c/a)
    reach = _NEGLIGIBLE / float(a)
    left, right = float(lowest.detach()) - 1.0 - reach, math.log(2.0 + 2.0 * reach)
    t = torch.arange(left, right, float(step), dtype=ν.dtype, device=ν.device).view((-1,) + (1,) * rank)
    log_weight = 0.5 * ν * (t - t.exp())
    return t.exp(), log_weight - torch.logsumexp(log_weight, 0)
