"""Poisson counts."""

import torch
from torch import Tensor

from manygp.likelihoods.counts import CountDistribution, CountLikelihood, log_factorial, poisson_sample
from manygp.likelihoods.links import Exponential, bounded_exp


def _jet(η: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # y η − m, y − m, −m
    m = bounded_exp(η)
    return y * η - m, y - m, -m


def _cdf(η: Tensor, y: Tensor) -> Tensor:
    # P(Y ≤ k) = Γ(k + 1, m) / Γ(k + 1)
    k = y.floor().clamp(min=0.0)
    tail = torch.special.gammaincc(*torch.broadcast_tensors(k + 1.0, bounded_exp(η)))
    return torch.where(y < 0.0, 0.0, tail)


POISSON = CountDistribution(
    kernel=lambda η, y: y * η - bounded_exp(η),
    jet=_jet,
    constant=lambda y: -log_factorial(y),
    cdf=_cdf,
    sample=lambda η, generator: poisson_sample(bounded_exp(η), generator),
)


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

    distribution = POISSON

    def __init__(self, num_outputs: int = 1, link: str = "exp", scale: float = 1.0):
        super().__init__(link, scale)

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
