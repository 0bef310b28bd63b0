"""Series and weights of a factorisation: what mixtures of latent processes begin with."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.initialise.evidence import Lengthscales, near_and_far
from manygp.likelihoods import Gaussian
from manygp.models.exact import Columns, ExactBatch
from manygp.models.indgp import maximise_evidence
from manygp.variational import KernelBatch

__all__ = ["Series", "factor_series", "series_kernels", "weight_variance"]

# Inputs at which the kernels of factors are fitted.
_MAX_INPUTS = 200
# Variance of a process that the data say nothing about, as a share of that of all.
_WEAKEST = 1e-4


@dataclass(frozen=True)
class Series:
    """y_np ≈ Σ_l F_nl W_pl with orthogonal columns; those of W have mean square 1 over the observed outputs."""

    F: FloatArray
    W: FloatArray

    @property
    def variance(self) -> FloatArray:
        """Mean square of every column of F, but not less than a small share of all, shape (l,)."""
        power = np.square(self.F).mean(0)
        return np.maximum(power, _WEAKEST * max(float(power.sum()), _WEAKEST))


def factor_series(factors: Factorisation, num_latents: int, seen: np.ndarray, rng: np.random.Generator) -> Series:
    """A factorisation with its row means as a factor among the others, cut to so many columns or filled up.

    Columns beyond the rank have no series; their weights are random, so that no two are the same.

    Parameters
    ----------
    factors
        The factorisation.
    num_latents
        Number of columns.
    seen
        Which outputs have observations, shape (p,); the others have weights of zero.
    rng
        Source of randomness.
    """
    left = np.column_stack([factors.row_mean, factors.row_factors])
    right = np.where(seen[:, None], np.column_stack([np.ones(len(factors.loadings)), factors.loadings]), 0.0)
    q_left, r_left = np.linalg.qr(left)
    q_right, r_right = np.linalg.qr(right)
    u, size, v = np.linalg.svd(r_left @ r_right.T)
    kept = min(num_latents, int((size > 1e-10 * max(size[0], 1e-300)).sum()))
    scale = np.sqrt(max(seen.sum(), 1))
    F, W = np.zeros((len(left), num_latents)), rng.standard_normal((len(right), num_latents))
    F[:, :kept] = q_left @ (u[:, :kept] * size[:kept]) / scale
    W[:, :kept] = scale * q_right @ v[:kept].T
    return Series(F, np.where(seen[:, None], W, 0.0))


def weight_variance(table: Table, series: Series, noise: float) -> FloatArray:
    """(1 + Σ_n F²_nl / σ²)⁻¹ over the cells of every output: what they leave open about its weights, shape (p, l)."""
    power = table.sum_by_output(np.square(series.F))
    return 1.0 / (1.0 + power / noise)


def series_kernels(
    like: KernelBatch, table: Table, scaling: Scaling, series: Series, found: Lengthscales, rng: np.random.Generator
) -> tuple[Float[Tensor, "q d"], Float[Tensor, " q"]]:
    """Lengthscales, in units of those found, and output scales of processes by the evidence of their series.

    `like` says of which kind the kernels are; where they are not named ones, RBF kernels are fitted in their place.
    """
    chosen = near_and_far(scaling.scale_x(table.X), _MAX_INPUTS, rng)
    x = torch.as_tensor(scaling.scale_x(table.X[chosen]) / found.lengthscale)
    variance = torch.as_tensor(series.variance)
    y = torch.as_tensor(series.F[chosen]).T / variance.sqrt().unsqueeze(-1)
    L, n = y.shape
    index = torch.arange(n).expand(L, n)
    columns = Columns(x, index, torch.ones(L, n, dtype=torch.bool), y.contiguous(), torch.zeros(L, dtype=torch.int64))
    kernels = KernelBatch(like.name or "rbf", x.shape[1], L, log_parameters=True)
    model = ExactBatch(kernels, Gaussian(L, per_output=True), columns)
    noise = min(1.0, found.noise / max(float(variance.max()), 1e-300))
    if maximise_evidence(model, np.ones(x.shape[1]), noise=noise).is_interrupted:
        # Nothing has been learnt yet that could be kept.
        raise KeyboardInterrupt
    lengthscale, outputscale = kernels.scales(kernels.rows())
    return lengthscale.detach(), outputscale.detach() * variance
