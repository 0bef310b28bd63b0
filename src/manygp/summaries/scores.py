"""Scores of predictive distributions that need more than moments of single cells."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from manygp.data.table import FloatArray

# Nodes of the integral on each side of the value.
_NODES = 24


def crps_by_cdf(cdf: Callable[[Tensor], Tensor], mean: Tensor, std: Tensor, y: Tensor, is_discrete: bool) -> Tensor:
    """CRPS = ∫ F(t)² dt up to y + ∫ (1 − F(t))² dt from y on, of every cell, with F at one value for each cell.

    Mean and standard deviation say where F rises. Of whole numbers from 0 on, integrals are sums, exact up to as many
    terms as nodes.
    """
    total = torch.zeros_like(y)
    if is_discrete:
        last = torch.maximum(mean + 12.0 * std, y + 1.0).ceil()
        for first, count, is_below in ((torch.zeros_like(y), y, True), (y, last - y, False)):
            step = (count / _NODES).clamp(min=1.0)
            for node in range(_NODES):
                t = first + ((node + 0.5) * step).floor()
                F = cdf(torch.minimum(t, first + (count - 1.0).clamp(min=0.0)))
                inside = (t < first + count).to(y)
                total = total + inside * step * (F if is_below else 1.0 - F).square()
        return total
    x, w = np.polynomial.legendre.leggauss(_NODES // 3)
    for sign in (-1.0, 1.0):
        # From y out: to the middle of the distribution if it lies there, through its flank, and on into its tail.
        reach = (sign * (mean - y)).clamp(min=0.0)
        edges = [torch.zeros_like(y), (reach - 3.0 * std).clamp(min=0.0), reach + 3.0 * std, reach + 12.0 * std]
        for lower, upper in pairwise(edges):
            half = 0.5 * (upper - lower)
            for place, weight in zip(x, w, strict=True):
                F = cdf(y + sign * (lower + half * (place + 1.0)))
                total = total + weight * half * (F if sign < 0 else 1.0 - F).square()
    return total


def crps_by_draws(draws: Tensor, y: Tensor) -> Tensor:
    """E|Y − y| − ½ E|Y − Y'| of every cell, from draws (n, b), without bias."""
    n = len(draws)
    rank = torch.arange(n, dtype=y.dtype, device=y.device)
    # Σ |Yᵢ − Yⱼ| over pairs is a sum over sorted draws with weights 2 i − n + 1
    spread = ((2.0 * rank - n + 1.0).unsqueeze(-1) * draws.sort(0).values).sum(0)
    return (draws - y).abs().mean(0) - spread / (n * (n - 1))


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
