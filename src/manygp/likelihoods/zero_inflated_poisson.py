"""Poisson counts with zeros beyond their own."""

import torch
from torch import Tensor, nn

from manygp.likelihoods import zero_inflation
from manygp.likelihoods.counts import CountLikelihood, poisson_sample
from manygp.likelihoods.links import bounded_exp
from manygp.likelihoods.poisson import poisson_cdf, poisson_jet, poisson_kernel

__all__ = ["ZeroInflatedPoisson"]


class ZeroInflatedPoisson(CountLikelihood):
    """y = 0 with probability ψ = k / (k + m), else y ~ Poisson(m), log m = h(f) + log(scale · exposure).

    Mean (1 − ψ) m, variance (1 − ψ) m (1 + m ψ).

    Parameters
    ----------
    num_outputs
        Number of outputs; all share k.
    michaelis_constant
        Initial k, the mean at which half of the counts are lost.
    learn_michaelis_constant
        Whether k is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    log_michaelis_constant: Tensor

    def __init__(
        self,
        num_outputs: int = 1,
        michaelis_constant: float = 0.1,
        learn_michaelis_constant: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_michaelis_constant", michaelis_constant, None, learn_michaelis_constant)

    @property
    def michaelis_constant(self) -> Tensor:
        """k, shape (1,)."""
        return self.log_michaelis_constant.exp()

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        return (self.pick("log_michaelis_constant", outputs).to(like.dtype),)

    def kernel(self, η: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        (κ,) = parameters
        return zero_inflation.inflated_kernel(η, y, κ, poisson_kernel(η, y))

    def kernel_jet(self, η: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        (κ,) = parameters
        return zero_inflation.inflated_jet(η, y, κ, *poisson_jet(η, y))

    def extra_zeros(self, m: Tensor) -> Tensor:
        return zero_inflation.extra_zeros(m, self.log_michaelis_constant.reshape(()).to(m.dtype))

    def base_mean(self, mean: Tensor) -> Tensor:
        return zero_inflation.unthinned_mean(mean, self.log_michaelis_constant.detach().to(mean.dtype))

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        η = self.log_mean(f, exposure)
        ψ = self.extra_zeros(bounded_exp(η))
        return torch.where(y < 0.0, 0.0, ψ + (1.0 - ψ) * poisson_cdf(η, y))

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        m, (κ,) = bounded_exp(self.log_mean(f, exposure)), self.cell_parameters(outputs, f)
        return zero_inflation.thin(poisson_sample(m, generator), m, κ, generator)

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        if isinstance(self.log_michaelis_constant, nn.Parameter):
            η = self.log_mean(self.constant_level(y, outputs, exposure) if f is None else f, exposure)
            (κ,) = self.cell_parameters(outputs, y)
            own = poisson_kernel(η, torch.zeros_like(y))
            self.log_michaelis_constant.fill_(zero_inflation.start_constant(κ, η, y, own))
