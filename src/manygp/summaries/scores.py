"""Scores of predictive distributions that need more than moments of single cells."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from manygp.data.table import FloatArray
from manygp.likelihoods import Likelihood

__all__ = ["crps_by_cdf", "energy_score", "variogram_score"]

# Levels at which the distance of distribution functions is integrated, as standard normal quantiles.
_NODES, _REACH = 257, 9.0
# Whole numbers up to which a discrete distribution is summed one by one.
_MAX_SUMMED = 2_000


def crps_by_cdf(
    cdf: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, y: Tensor, likelihood: Likelihood
) -> Tensor:
    """CRPS = ∫ (F(t) − 1[t ≥ y])² dt of every cell, by sums over whole numbers or by quadrature.

    Parameters
    ----------
    cdf
        F at one value for each cell.
    mean, std
        Moments, which say where F rises.
    y
        Values.
    likelihood
        Whether values are discrete.
    """
    if likelihood.is_discrete:
        last = torch.maximum(mean + 12.0 * std, y).max()
        if last <= _MAX_SUMMED:
            counts = torch.arange(int(last) + 2, dtype=y.dtype, device=y.device)
            parts = [(cdf(t.expand_as(y)) - (t >= y).to(y)).square() for t in counts]
            return torch.stack(parts).sum(0)
    # Points that are dense around mean and y and go far: t = c + s sinh(z), dt = s cosh(z) dz; F has its jump at y
    total = torch.zeros_like(y)
    z = torch.linspace(0.0, _REACH, _NODES, dtype=y.dtype, device=y.device)
    step = z[1] - z[0]
    weight = torch.ones_like(z)
    weight[1:-1:2], weight[2:-1:2] = 4.0, 2.0
    scale = 0.02 * std.clamp(min=1e-12)
    for sign in (-1.0, 1.0):
        for node, w in zip(z, weight, strict=True):
            t = y + sign * scale * torch.sinh(node)
            F = cdf(t)
            miss = F.square() if sign < 0 else (1.0 - F).square()
            total = total + w * step / 3.0 * scale * torch.cosh(node) * miss
    return total


def energy_score(draws: FloatArray, y: FloatArray) -> float:
    """E|Y − y| − ½ E|Y − Y'| of a vector, from joint draws (n, d); lower is better.

    The second expectation is an average over all pairs of draws, a block of them at a time.
    """
    n = len(draws)
    near = float(np.linalg.norm(draws - y, axis=1).mean())
    squares = (draws**2).sum(1)
    total = 0.0
    for block in np.array_split(np.arange(n), max(1, n * n // 4_000_000)):
        between = squares[block, None] + squares - 2.0 * draws[block] @ draws.T
        total += float(np.sqrt(np.maximum(between, 0.0)).sum())
    return near - 0.5 * total / (n * (n - 1))


def variogram_score(draws: FloatArray, y: FloatArray, order: float = 0.5) -> float:
    """Mean over pairs of (|yᵢ − yⱼ|^p − E|Yᵢ − Yⱼ|^p)², from joint draws (n, d); lower is better."""
    d = y.shape[0]
    total = 0.0
    for i in range(d - 1):
        observed = np.abs(y[i] - y[i + 1 :]) ** order
        expected = (np.abs(draws[:, i, None] - draws[:, i + 1 :]) ** order).mean(0)
        total += float(((observed - expected) ** 2).sum())
    return total / max(d * (d - 1) / 2, 1)
