"""Negative binomial counts: a Poisson whose mean varies by a gamma factor."""

import math

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from manygp.likelihoods.counts import CountDistribution, CountLikelihood, gamma_sample, log_factorial, poisson_sample
from manygp.likelihoods.links import bounded_exp, softplus

# A dispersion below 1e-8 is a Poisson to all digits that count, and 1/α stays a number one can calculate with.
_LOG_MIN_DISPERSION = math.log(1e-8)
# From here on Stirling's series with three terms is exact in float64.
_STIRLING_FROM = 32.0
# Up to this count adding up masses is faster than the incomplete beta function.
_MAX_SUMMED = 64


def _log_size(log_dispersion: Tensor) -> Tensor:
    """ρ = log r of the size r = 1/α, with α held above 1e-8 smoothly."""
    return -torch.logaddexp(log_dispersion, torch.full_like(log_dispersion, _LOG_MIN_DISPERSION))


def _kernel(η: Tensor, y: Tensor, ρ: Tensor) -> Tensor:
    """log p(y | m = exp η, r = exp ρ) without what does not depend on η."""
    # y η − (y + r) log(1 + m/r)
    return y * η - (y + ρ.exp()) * softplus(η - ρ)


def _jet(η: Tensor, y: Tensor, ρ: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernel, its first and second derivative by η, and its derivative by ρ."""
    # y − (y + r) q, −(y + r) q (1 − q) and (y + r) q − r log(1 + m/r) with q = m / (r + m)
    r, rest = ρ.exp(), softplus(η - ρ)
    q = torch.sigmoid(η - ρ)
    total = (y + r) * q
    return y * η - (y + r) * rest, y - total, total * (q - 1.0), total - r * rest


def _constant(y: Tensor, ρ: Tensor) -> Tensor:
    """log Γ(y + r) − log Γ(r) − y log r − log y!, where differences of large numbers would cancel too."""
    dtype, y, ρ = ρ.dtype, y.double(), ρ.double()
    r = ρ.exp()
    small, large = r.clamp(max=_STIRLING_FROM), r.clamp(min=_STIRLING_FROM)
    plain = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
    # log Γ(z) = (z − ½) log z − z + S(z) + const
    stirling = (y + large - 0.5) * torch.log1p(y / large) - y + _stirling_rest(y + large) - _stirling_rest(large)
    return (torch.where(r < _STIRLING_FROM, plain, stirling) - log_factorial(y)).to(dtype)


def _stirling_rest(z: Tensor) -> Tensor:
    # S(z) = 1/12z − 1/360z³ + 1/1260z⁵
    inverse = 1.0 / z
    square = inverse.square()
    return inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square / 1260.0))


@torch.no_grad()
def _cdf(η: Tensor, y: Tensor, ρ: Tensor) -> Tensor:
    """P(Y ≤ y | m = exp η, r = exp ρ), without gradients; fast where y has one dimension, the last of η."""
    if y.dim() != 1 or ρ.dim() > 1:
        shape = torch.broadcast_shapes(η.shape, y.shape, ρ.shape)
        return _cdf(*(part.expand(shape).reshape(-1) for part in (η, y, ρ))).view(shape)
    shape = torch.broadcast_shapes(η.shape, y.shape, ρ.shape)
    # From large to small, so that the cells with a mass left to add are always the first ones.
    y, order = y.floor().expand(shape[-1:]).sort(descending=True)
    η, ρ = η.expand(shape)[..., order], ρ.expand(shape[-1:])[order]
    large = int((y > _MAX_SUMMED).sum())
    total = torch.empty_like(η)
    total[..., :large] = _incomplete_beta(η[..., :large], y[:large], ρ[:large])
    total[..., large:] = _sum_of_masses(η[..., large:], y[large:], ρ[large:])
    return torch.where(y < 0.0, 0.0, total.clamp_(max=1.0))[..., order.argsort()]


def _sum_of_masses(η: Tensor, y: Tensor, ρ: Tensor) -> Tensor:
    """Σ_{k ≤ y} p(k), each mass from the one before; y in descending order."""
    r, q = ρ.exp(), torch.sigmoid(η - ρ)
    # p(0) = (1 + m/r)^(−r),  p(k + 1) = p(k) q (k + r) / (k + 1),  q = m / (r + m)
    mass = torch.exp(-r * softplus(η - ρ))
    total = mass.clone()
    for k in range(int(y[0]) if len(y) else 0):
        n = int((y > k).sum())
        mass = mass[..., :n].mul_(q[..., :n]).mul_((k + r[:n]) / (k + 1))
        total[..., :n] += mass
    return total


def _incomplete_beta(η: Tensor, y: Tensor, ρ: Tensor) -> Tensor:
    """The same for large y by scipy, since torch has no incomplete beta function."""
    z, r, k = ((part.double().cpu().numpy()) for part in (η - ρ, ρ.exp(), y))
    q, p = special.expit(z), special.expit(-z)
    # P(Y ≤ k) = I_p(r, k + 1) = 1 − I_q(k + 1, r), from the smaller of p = 1 − q and q, which has all its digits
    values = np.where(q < 0.5, special.betaincc(k + 1.0, r, q), special.betainc(r, k + 1.0, p))
    return torch.as_tensor(values).to(η)


def _sample(η: Tensor, generator: torch.Generator, ρ: Tensor) -> Tensor:
    """Draws: a Poisson whose mean is a gamma draw of mean m and shape r."""
    r = ρ.exp().expand(η.shape).contiguous()
    return poisson_sample(bounded_exp(η) * gamma_sample(r, generator) / r, generator)


NEGATIVE_BINOMIAL = CountDistribution(_kernel, _jet, _constant, _cdf, _sample)


class Overdispersed(CountLikelihood):
    """Negative binomial counts with a dispersion α, of each output or of all, that a leaf holds as its logarithm."""

    distribution = NEGATIVE_BINOMIAL
    log_dispersion: Tensor

    @property
    def dispersion(self) -> Tensor:
        """α, shape (1,) or (p,)."""
        return torch.exp(-_log_size(self.log_dispersion))

    def cell_parameters(self, outputs: Tensor, like: Tensor) -> tuple[Tensor, ...]:
        return (_log_size(self.pick("log_dispersion", outputs)).to(like.dtype),)

    def dispersion_of(self, outputs: Tensor, like: Tensor) -> Tensor:
        return torch.exp(-self.cell_parameters(outputs, like)[-1])

    @torch.no_grad()
    def start_from(self, y: Tensor, outputs: Tensor, f: Tensor | None = None, exposure: Tensor | None = None) -> None:
        if isinstance(self.log_dispersion, nn.Parameter):
            size = self.log_dispersion.numel()
            self.log_dispersion.copy_(self.moment_dispersion(y, outputs, size, f, exposure).log())


class NegativeBinomial(Overdispersed):
    """y ~ NB(m, α), log m = h(f) + log(scale · exposure): counts of mean m and variance m + α m².

    Parameters
    ----------
    num_outputs
        Number of outputs.
    dispersion
        Initial dispersion α; the present one, shape (1,) or (p,), is the attribute of this name.
    per_output
        Whether every output has a dispersion of its own.
    learn_dispersion
        Whether the dispersion is learned or stays where it is put.
    link
        "exp" or "softplus".
    scale
        Constant factor of the mean.
    """

    def __init__(
        self,
        num_outputs: int = 1,
        dispersion: float = 0.1,
        per_output: bool = True,
        learn_dispersion: bool = True,
        link: str = "exp",
        scale: float = 1.0,
    ):
        super().__init__(link, scale)
        self.hold_log("log_dispersion", dispersion, num_outputs if per_output else None, learn_dispersion)
