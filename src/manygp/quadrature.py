"""Nodes of integrals: Gauss-Hermite for a univariate Gaussian, frequencies for the spectrum of a kernel."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import chi2
from torch import Tensor
from torch.quasirandom import SobolEngine

__all__ = ["gauss_hermite", "gaussian_expectation", "gaussian_nodes", "log_gaussian_expectation", "unit_frequencies"]


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


def gaussian_nodes(mean: Tensor, variance: Tensor, num_points: int = 20, rank: int = 0) -> tuple[Tensor, Tensor]:
    """Nodes f_k = μ + σ ε_k along a new first dimension, and their weights, which broadcast against them.

    `rank` is the number of dimensions that the nodes have behind the first, if that is more than the mean has: what is
    evaluated at the nodes may broadcast against tensors of higher rank.
    """
    x, w = gauss_hermite(num_points, mean)
    shape = (num_points,) + (1,) * max(rank, mean.dim(), variance.dim())
    return mean + variance.sqrt() * x.view(shape), w.view(shape)


def gaussian_expectation(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, num_points: int = 20, rank: int = 0
) -> Tensor:
    """E[function(f)] with f ~ N(mean, variance), element by element.

    `function` receives a tensor with one more leading dimension (the nodes) and must work element-wise; `rank` is as in
    `gaussian_nodes`.
    """
    f, w = gaussian_nodes(mean, variance, num_points, rank)
    # E[g(f)] ≈ Σ_k w_k g(μ + σ ε_k)
    return (w * function(f)).sum(0)


def log_gaussian_expectation(
    log_function: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
    num_points: int = 20,
    rank: int = 0,
    around: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """log E[exp log_function(f)] with f ~ N(mean, variance), element by element; otherwise as `gaussian_expectation`.

    `around` is mean and variance of the Gaussian that places the nodes, in place of the one of f. An integrand much
    narrower than N(mean, variance) falls between its nodes; N(c, s²) at the mode of the integrand finds it.
    """
    c, s2 = (mean, variance) if around is None else around
    f, w = gaussian_nodes(c, s2, num_points, max(rank, mean.dim(), variance.dim()))
    log_terms = log_function(f) + w.log()
    if around is not None:
        # + log N(f | μ, v) − log N(f | c, s²)
        log_terms = log_terms + 0.5 * ((f - c).square() / s2 - (f - mean).square() / variance + (s2 / variance).log())
    return torch.logsumexp(log_terms, 0)


def unit_frequencies(count: int, dim: int, nu: float, seed: int) -> tuple[Float[Tensor, "f e"], Float[Tensor, " f"]]:
    """Frequencies of a kernel with lengthscales 1, and a uniform number for each.

    Those of an RBF are normal, of a Matern kernel Student t with 2ν degrees of freedom. Points of a scrambled Sobol
    sequence fill their distribution more evenly than random ones.
    """
    # The first point is in whatever dtype is the default.
    engine = SobolEngine(dim + 2, scramble=True, seed=seed % (1 << 31)).fast_forward(1)
    points = engine.draw(count, dtype=torch.float64)
    points = points.clamp(1e-10, 1.0 - 1e-10)
    directions = torch.special.ndtri(points[:, :dim])
    if not math.isinf(nu):
        freedom = 2.0 * nu
        directions = directions * torch.as_tensor(np.sqrt(freedom / chi2.ppf(points[:, dim].numpy(), freedom)))[:, None]
    return directions, points[:, dim + 1]
