"""Gauss-Hermite quadrature for expectations under a univariate Gaussian."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

__all__ = ["gauss_hermite", "gaussian_expectation"]


@lru_cache
def _nodes(num_points: int) -> tuple[np.ndarray, np.ndarray]:
    x, w = np.polynomial.hermite_e.hermegauss(num_points)
    return x, w / w.sum()


def gauss_hermite(num_points: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of E[g(ε)] ≈ Σ_k w_k g(ε_k), ε ~ N(0, 1), in the dtype and device of `like`."""
    x, w = _nodes(num_points)
    return (
        torch.as_tensor(x, dtype=like.dtype, device=like.device),
        torch.as_tensor(w, dtype=like.dtype, device=like.device),
    )


def gaussian_expectation(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, num_points: int = 20
) -> Tensor:
    """E[function(f)] with f ~ N(mean, variance), element by element.

    `function` receives a tensor with one more leading dimension (the nodes) and must work element-wise.
    """
    x, w = gauss_hermite(num_points, mean)
    shape = (num_points,) + (1,) * mean.dim()
    # E[g(f)] ≈ Σ_k w_k g(μ + σ ε_k)
    values = function(mean + variance.sqrt() * x.view(shape))
    return (w.view(shape) * values).sum(0)
