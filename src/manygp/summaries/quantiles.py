"""Quantiles of predictive mixtures: where the distribution function of all components together has a given value."""

import torch
from torch import Tensor

from manygp.likelihoods import Likelihood

__all__ = ["mixture_quantile"]

# Most steps, of which every three halve the bracket at least; and how near the level, as a share of its probability,
# the last Newton step begins, whose error is about the square of that.
_STEPS, _NEAR = 180, 1e-6
# Quantiles of discrete values stop here, where float64 still tells neighbours apart.
_LARGEST_INTEGER = 2.0**50


def mixture_quantile(
    likelihood: Likelihood, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None, level: float
) -> Tensor:
    """Quantiles of cells (b,) whose f has components of some means and variances, shape (s, b) each."""
    cells = _Mixture(likelihood, mean, variance, outputs, exposure)
    return _smallest_integer(cells, level) if likelihood.is_discrete else _newton(cells, level)


class _Mixture:
    """The predictive distributions of some cells."""

    def __init__(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None
    ):
        self.likelihood, self.parts, self.outputs, self.exposure = likelihood, (mean, variance), outputs, exposure

    def __getitem__(self, some: Tensor) -> "_Mixture":
        mean, variance = (part[:, some] for part in self.parts)
        exposure = None if self.exposure is None else self.exposure[some]
        return _Mixture(self.likelihood, mean, variance, self.outputs[some], exposure)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and variances of the components."""
        return self.likelihood.predictive_moments(*self.parts, self.outputs, self.exposure)

    def cdf(self, y: Tensor) -> Tensor:
        return self.likelihood.predictive_cdf(*self.parts, y, self.outputs, self.exposure).mean(0)

    def density(self, y: Tensor) -> Tensor:
        return self.likelihood.predictive_log_prob(*self.parts, y, self.outputs, self.exposure).exp().mean(0)


def _newton(cells: _Mixture, level: float) -> Tensor:
    """Solve F(y) = level by Newton steps that stay within a bracket, halved whenever they do not shrink it enough."""
    m, v = cells.moments()
    # By Chebyshev's inequality no component has its quantile farther out.
    reach = (v / min(level, 1.0 - level)).sqrt()
    lower, upper = (m - reach).amin(0), (m + reach).amax(0)
    # Begin with the Gaussian of the same moments, which is right where there is one component.
    σ = (v.mean(0) + m.var(0, unbiased=False)).sqrt()
    y = m.mean(0) + σ * float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))
    result, left, width = y.clone(), torch.arange(len(y), device=y.device), upper - lower
    near = _NEAR * min(level, 1.0 - level)
    for step in range(1, _STEPS + 1):
        gap = cells.cdf(y) - level
        lower, upper = torch.where(gap < 0, y, lower), torch.where(gap < 0, upper, y)
        newton, middle = y - gap / cells.density(y), 0.5 * (lower + upper)
        is_near = gap.abs() <= near
        is_newton = (is_near & newton.isfinite()) | ((newton > lower) & (newton < upper))
        if step % 3 == 0:
            is_newton &= is_near | (upper - lower < 0.5 * width)
            width = upper - lower
        y = torch.where(is_newton, newton, middle)
        result[left] = y
        # A bracket without a number between its ends is as narrow as it gets.
        some = (~is_near & (middle > lower) & (middle < upper)).nonzero().squeeze(-1)
        if not len(some):
            break
        cells, left = cells[some], left[some]
        y, lower, upper, width = (part[some] for part in (y, lower, upper, width))
    return result


def _smallest_integer(cells: _Mixture, level: float) -> Tensor:
    """The smallest integer y with F(y) ≥ level: doubled until it is passed, then halved in on."""
    upper = torch.zeros_like(cells.parts[0][0])
    lower = upper - 1.0
    while (below := cells.cdf(upper) < level).any() and upper.max() < _LARGEST_INTEGER:
        lower, upper = torch.where(below, upper, lower), torch.where(below, 2.0 * upper + 1.0, upper)
    while ((upper - lower) > 1.0).any():
        middle = (0.5 * (lower + upper)).floor()
        below = cells.cdf(middle) < level
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return upper
