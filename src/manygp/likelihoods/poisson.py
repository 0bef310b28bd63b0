"""Poisson counts."""

import torch
from torch import Tensor

from manygp.likelihoods.counts import CountLikelihood, poisson_sample
from manygp.likelihoods.links import Exponential, bounded_exp

__all__ = ["Poisson", "poisson_cdf", "poisson_jet", "poisson_kernel"]


def poisson_kernel(η: Tensor, y: Tensor) -> Tensor:
    """log p(y | m = exp η) + log y!."""
    # y η − m
    return y * η - bounded_exp(η)


def poisson_jet(η: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel, and its first and second derivative by η."""
    m = bounded_exp(η)
    return y * η - m, y - m, -m


def poisson_cdf(η: Tensor, y: Tensor) -> Tensor:
    """P(Y ≤ y | m = exp η)."""
    # P(Y ≤ k) = Γ(k + 1, m) / Γ(k + 1)
    k = y.floor().clamp(min=0.0)
    tail = torch.special.gammaincc(*torch.broadcast_tensors(k + 1.0, bounded_exp(η)))
    return torch.where(y < 0.0, 0.0, tail)


class Poisson(CountLikelihood):
    """y ~ Poisson(m), log m = h(f) + log(scale · exposure): counts whose variance is their mean.

    Parameters
    ----------
    num_outputs
        Number of outputs; there is nothing to learn for them.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    def __init__(self, num_outputs: int = 1, link: str = "exp", scale: float = 1.0):
        super().__init__(link, scale)

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        return ()

    def kernel(self, η: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        return poisson_kernel(η, y)

    def kernel_jet(self, η: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        return poisson_jet(η, y)

    def conditional_cdf(self, f: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None) -> Tensor:
        return poisson_cdf(self.log_mean(f, exposure), y)

    @torch.no_grad()
    def sample(self, f: Tensor, outputs: Tensor, generator: torch.Generator, exposure: Tensor | None = None) -> Tensor:
        return poisson_sample(bounded_exp(self.log_mean(f, exposure)), generator)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> Tensor:
        if not isinstance(self.link, Exponential):
            return super().expected_log_prob(mean, variance, y, outputs, exposure)
        # E[log p] = y E[η] − E[m] − log y!,  E[m] = exp(E[η] + v/2)
        η = mean + self.offset(exposure, mean)
        return y * η - bounded_exp(η + 0.5 * variance) + self.log_constant(y)

    @torch.no_grad()
    def sites(
        self, mean: Tensor, variance: Tensor, y: Tensor, outputs: Tensor, exposure: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not isinstance(self.link, Exponential):
            return super().sites(mean, variance, y, outputs, exposure)
        η = mean + self.offset(exposure, mean)
        m = bounded_exp(η + 0.5 * variance)
        total = (y * η - m + self.log_constant(y)).sum()
        return total, y - m, -0.5 * m.expand(torch.broadcast_shapes(y.shape, m.shape))
