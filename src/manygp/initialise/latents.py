"""Where latent vectors begin: at the loadings of a factorisation, with a kernel that is nearly linear in them."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Table
from manygp.data.table import FloatArray
from manygp.linalg import safe_cholesky

__all__ = ["LinearLatents", "linear_latents"]

# The least power of a factor, as a share of the signal.
_WEAKEST = 1e-6


@dataclass(frozen=True)
class LinearLatents:
    """Lengthscales over h (h,), scales of a `LatentKernel`, and Cholesky factors of what cells leave open of h."""

    lengthscale: Float[Tensor, " h"]
    outputscale: float
    share: float
    factor: Float[Tensor, "p h h"]


def linear_latents(
    table: Table,
    row_mean: FloatArray,
    row_factors: FloatArray,
    noise: float,
    prior_variance: float,
    bounds: tuple[float, float],
    unexplained: float = 0.0,
    signal: float = 0.0,
) -> LinearLatents:
    """A kernel over latent vectors at the loadings of `row_factors` (n, h), and what cells leave open of these.

    Outputs combine nearly linearly, so the kernel should start nearly linear in h. With h of unit spread,
    σ² exp(−|h − h'|² / 2u²) has a linear part of variance v = σ² D / u² and a quadratic part of about v D / 2u², which
    should not exceed the noise. So σ² is many times v, but what all outputs share, `row_mean` (n,), has its own
    variance c σ². A kernel without c has at least the variance of the `signal`. `bounds` are those of u². What factors
    leave `unexplained` beyond the noise is no part of what outputs share, so v is at least that.
    """
    D = row_factors.shape[1]
    power = np.square(row_factors).mean(0)
    v = max(float(power.sum()), noise, unexplained - noise)
    shared = max(float(np.square(row_mean).mean()), v / D, signal)
    # c ≤ 1: a shared part that is more than a kernel's constant would fade with |h|.
    u2 = max(float(np.clip(0.5 * v * D / noise, *bounds)), shared * D / v)
    # Strong factors get more of the variance than weak ones, but less so than in the factorisation, which knows weak
    # ones only from the cells that it fits.
    weight = np.sqrt(np.maximum(power, _WEAKEST * v))
    lengthscale = torch.as_tensor(np.sqrt(u2 * weight.mean() / weight))
    # Σ_p = (I / s + Σ_n u_n u_nᵀ / σ²)⁻¹, what cells leave open in a linear model
    gram = table.sum_by_output((row_factors[:, :, None] * row_factors[:, None, :]).reshape(-1, D * D))
    precision = torch.as_tensor(gram).view(-1, D, D) / noise
    # What factors have missed of the functions tells about h in all directions alike.
    missed = max(unexplained - noise - float(power.sum()), 0.0)
    counts = torch.as_tensor(table.count_per_output()).unsqueeze(-1)
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0 / prior_variance + counts * missed / D / noise)
    factor = safe_cholesky(torch.cholesky_inverse(safe_cholesky(precision)))
    return LinearLatents(lengthscale, v * u2 / D, shared * D / (v * u2), factor)
