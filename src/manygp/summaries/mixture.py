"""Predictive mixtures of single cells: moments, densities, distribution functions, quantiles, draws and CRPS."""

import math

import torch
from torch import Tensor

from manygp.likelihoods import Gaussian, Likelihood, Noiseless
from manygp.summaries.scores import crps_by_cdf, crps_by_draws

# Most steps, of which every three halve the bracket at least; and how near the level, as a share of its probability,
# the last Newton step begins, whose error is about the square of that.
_STEPS, _NEAR = 180, 1e-6
# Quantiles of discrete values stop here, where float64 still tells neighbours apart.
_LARGEST_INTEGER = 2.0**50
# Draws of every cell in scores that have no closed form.
_SCORE_DRAWS = 64


class Mixture:
    """The predictive distributions of some cells, whose f has components of some means and variances, (s, b) each.

    What y is given for has shape (b,), as outputs have, and what the likelihood is told of single cells, if anything.
    """

    def __init__(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, outputs: Tensor, exposure: Tensor | None
    ):
        self.likelihood, self.parts, self.outputs, self.exposure = likelihood, (mean, variance), outputs, exposure

    def __getitem__(self, some: Tensor) -> "Mixture":
        mean, variance = (part[:, some] for part in self.parts)
        exposure = None if self.exposure is None else self.exposure[some]
        return Mixture(self.likelihood, mean, variance, self.outputs[some], exposure)

    def components(self) -> tuple[Tensor, Tensor]:
        """Means and variances of y in the components."""
        return self.likelihood.predictive_moments(*self.parts, self.outputs, self.exposure)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y."""
        m, v = self.components()
        # var y = E[v_s] + var[m_s] over the components s
        return m.mean(0), v.mean(0) + m.var(0, unbiased=False)

    def zero_probability(self) -> Tensor:
        """P(Y = 0)."""
        return self.likelihood.zero_probability(*self.parts, self.outputs, self.exposure).mean(0)

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y)."""
        return self.likelihood.predictive_cdf(*self.parts, y, self.outputs, self.exposure).mean(0)

    def log_prob(self, y: Tensor) -> Tensor:
        """log 1/S Σ_s E[p(y | f_s)]."""
        return _log_mean(self.likelihood.predictive_log_prob(*self.parts, y, self.outputs, self.exposure))

    def plug_in_log_prob(self, y: Tensor) -> Tensor:
        """log 1/S Σ_s p(y | f = μ_s)."""
        return _log_mean(self.likelihood.plug_in_log_prob(self.parts[0], y, self.outputs, self.exposure))

    def quantile(self, level: float) -> Tensor:
        """The y with P(Y ≤ y) = level, or the smallest whole number with at least that if y is discrete."""
        return _smallest_integer(self, level) if self.likelihood.is_discrete else _newton(self, level)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draws of every cell by itself, shape (n, b)."""
        mean, variance = self.parts
        chosen = torch.randint(mean.shape[0], (n, mean.shape[1]), generator=generator, device=mean.device)
        noise = torch.randn(chosen.shape, dtype=mean.dtype, generator=generator, device=mean.device)
        f = mean.gather(0, chosen) + variance.gather(0, chosen).sqrt() * noise
        return self.likelihood.sample(f, self.outputs.expand(f.shape), generator, self.exposure)

    def crps(self, y: Tensor) -> Tensor:
        """CRPS, in closed form where values are Gaussian."""
        if not isinstance(self.likelihood, Gaussian | Noiseless):
            mean, variance = self.moments()
            return crps_by_cdf(self.cdf, mean, variance.sqrt(), y, self.likelihood.is_discrete)
        mean, variance = self.components()
        spread = torch.zeros_like(y)
        for k in range(len(mean)):
            spread += _absolute_moment(mean - mean.roll(k, 0), variance + variance.roll(k, 0)).mean(0)
        # CRPS = E|Y − y| − ½ E|Y − Y'|, both sums over Gaussian components
        return _absolute_moment(y - mean, variance).mean(0) - 0.5 * spread / len(mean)

    def quick_crps(self, y: Tensor) -> Tensor:
        """The CRPS by a few draws of every cell if there is no closed form: for averages over many cells."""
        if isinstance(self.likelihood, Gaussian | Noiseless):
            return self.crps(y)
        return crps_by_draws(self.sample(_SCORE_DRAWS, torch.Generator(y.device).manual_seed(0)), y)


def _log_mean(log_probs: Tensor) -> Tensor:
    return torch.logsumexp(log_probs, 0) - math.log(len(log_probs))


def _newton(cells: Mixture, level: float) -> Tensor:
    """Solve F(y) = level by Newton steps that stay within a bracket, halved whenever they do not shrink it enough."""
    m, v = cells.components()
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
        newton, middle = y - gap / cells.log_prob(y).exp(), 0.5 * (lower + upper)
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


def _smallest_integer(cells: Mixture, level: float) -> Tensor:
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


def _absolute_moment(d: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(d, variance)."""
    σ = variance.sqrt()
    z = d / σ
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return 2.0 * σ * density + d * (2.0 * torch.special.ndtr(z) - 1.0)
