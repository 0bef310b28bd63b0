"""Negative binomial counts with zeros beyond their own."""

import torch
from torch import Tensor, nn

from manygp.likelihoods import zero_inflation
from manygp.likelihoods.counts import CountLikelihood
from manygp.likelihoods.links import bounded_exp
from manygp.likelihoods.negative_binomial import (
    log_size,
    negative_binomial_cdf,
    negative_binomial_constant,
    negative_binomial_jet,
    negative_binomial_kernel,
    negative_binomial_sample,
)

__all__ = ["ZeroInflatedNegativeBinomial"]


class ZeroInflatedNegativeBinomial(CountLikelihood):
    """y = 0 with probability ψ = k / (k + m), else y ~ NB(m, α), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m (α + ψ)), P(0) = ψ + (1 − ψ) (1 + α m)^(−1/α); appendix E of the paper,
    which has link="softplus", dispersion=0.01 and michaelis_constant=0.1, the last two not learned.

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    dispersion
        Initial dispersion α.
    per_output
        Whether every output has a dispersion of its own.
    learn_dispersion
        Whether the dispersion is learned or stays where it is put.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    log_dispersion: Tensor
    log_michaelis_constant: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        dispersion: float = 0.1,
        per_output: bool = True,
        learn_dispersion: bool = True,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_dispersion", dispersion, num_outputs if per_output else None, learn_dispersion)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)

    @property
    def dispersion(self) -> Tensor:
        """α, shape (1,) or (p,)."""
        return torch.exp(-log_size(self.log_dispersion))

    @property
    def michaelis_constant(self) -> Tensor:
        """k, shape (1,)."""
        return self.log_michaelis_constant.exp()

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        κ, ρ = self.pick("log_michaelis_constant", outputs), log_size(self.pick("log_dispersion", outputs))
        return κ.to(like.dtype), ρ.to(like.dtype)

    def kernel(self, η: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        κ, ρ = parameters
        return zero_inflation.inflated_kernel(η, y, κ, negative_binomial_kernel(η, y, ρ))

    def kernel_jet(self, η: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        κ, ρ = parameters
        return zero_inflation.inflated_jet(η, y, κ, *negative_binomial_jet(η, y, ρ))

    def log_constant(self, y: Tensor, *parameters: Tensor) -> Tensor:
        return negative_binomial_constant(y, parameters[1])

    def dispersion_of(self, outputs: Tensor, like: Tensor) -> Tensor:
        return torch.exp(-self.cell_parameters(outputs, like)[1])

    def extra_zeros(self, m: Tensor) -> Tensor:
        return zero_inflation.extra_zeros(m, self.log_michaelis_constant.reshape(()).to(m.dtype))

    def base_mean(self, mean: Tensor) -> Tensor:
        return zero_inflation.unthinned_mean(mean, self.log_michaelis_constant.detach().to(mean.dtype))

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        η, (_, ρ) = self.log_mean(f, exposure), self.cell_parameters(outputs, f)
        ψ = self.extra_zeros(bounded_exp(η))
        return torch.where(y < 0.0, 0.0, ψ + (1.0 - ψ) * negative_binomial_cdf(η, y, ρ))

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        η, (κ, ρ) = self.log_mean(f, exposure), self.cell_parameters(outputs, f)
        draws = negative_binomial_sample(η, ρ, generator)
        return zero_inflation.thin(draws, bounded_exp(η), κ, generator)

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        self._start_dispersion(y, outputs, f, exposure)
        if isinstance(self.log_michaelis_constant, nn.Parameter):
            level = self.constant_level(y, outputs, exposure) if f is None else f
            η, (κ, ρ) = self.log_mean(level, exposure), self.cell_parameters(outputs, y)
            own = negative_binomial_kernel(η, torch.zeros_like(y), ρ)
            self.log_michaelis_constant.fill_(zero_inflation.start_constant(κ, η, y, own))
            # What lost counts explain is no dispersion.
            self._start_dispersion(y, outputs, f, exposure)

    def _start_dispersion(self, y: Tensor, outputs: Tensor, f: Tensor | None, exposure: Tensor | None) -> None:
        if isinstance(self.log_dispersion, nn.Parameter):
            size = self.log_dispersion.numel()
            self.log_dispersion.copy_(self.moment_dispersion(y, outputs, size, f, exposure).log())
