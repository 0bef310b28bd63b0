"""Inducing points among the embedded cells of a table."""

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.linalg import cholesky_pivots
from manygp.variational import KernelBatch, covariance_of

__all__ = ["greedy_inducing", "sample_cells"]

# Numbers of covariances among candidates that may be held at once; beyond that they are computed row by row.
_MOST_AT_ONCE = 2_500_000


def sample_cells(
    table: Table, scaling: Scaling, size: int, rng: np.random.Generator
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Scaled inputs, outputs and scaled values of about `size` observed cells drawn at random."""
    row, output, y = table.sample(size, rng)
    return scaling.scale_x(table.X[row]), output, scaling.scale_y(y, output)


@torch.no_grad()
def greedy_inducing(
    kernel: Kernel | KernelBatch, candidates: Float[Tensor, "c e"], num_inducing: int
) -> Float[Tensor, "*q m e"]:
    """Inducing points among candidates, of every kernel, each where the variance left by those before is largest.

    This is a pivoted Cholesky factorisation of the candidates' covariance: O(c m²) time, O(c m) memory.
    """
    k, c = covariance_of(kernel), len(candidates)
    diagonal = k.diagonal(candidates)
    variances = diagonal.view(-1, c)
    every = torch.arange(len(variances), device=candidates.device)
    # Few candidates have their covariances computed at once.
    K = k(candidates, candidates).view(-1, c, c) if len(variances) * c**2 <= _MOST_AT_ONCE else None

    def row(pivot: Int[Tensor, " q"]) -> Float[Tensor, "q c"]:
        return k(candidates[pivot].unsqueeze(-2), candidates).squeeze(-2) if K is None else K[every, pivot]

    chosen = cholesky_pivots(variances, row, num_inducing)
    return candidates[chosen].view(*diagonal.shape[:-1], num_inducing, -1)
