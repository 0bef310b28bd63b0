"""Inducing points among the embedded cells of a table."""

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance, kernel_diagonal

__all__ = ["greedy_inducing", "sample_cells"]

_MOST_AT_ONCE = 2_500_000


def sample_cells(
    table: Table, scaling: Scaling, size: int, rng: np.random.Generator
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Scaled inputs, outputs and scaled values of about `size` observed cells drawn at random."""
    row, output, y = table.sample(size, rng)
    return scaling.scale_x(table.X[row]), output, scaling.scale_y(y, output)


@torch.no_grad()
def greedy_inducing(kernel: Kernel, candidates: Float[Tensor, "c e"], num_inducing: int) -> Float[Tensor, "m e"]:
    """Inducing points among candidates, each where the variance left by those before is largest.

    This is a pivoted Cholesky factorisation of the candidates' covariance: O(c m²) time, O(c m) memory.
    """
    left = kernel_diagonal(kernel, candidates).clone()
    rows = candidates.new_zeros(num_inducing, candidates.shape[0])
    # Few candidates have their covariances computed at once.
    K = cross_covariance(kernel, candidates, candidates) if len(candidates) ** 2 <= _MOST_AT_ONCE else None
    chosen: list[int] = []
    for i in range(num_inducing):
        pivot = int(left.argmax())
        chosen.append(pivot)
        k = cross_covariance(kernel, candidates[pivot : pivot + 1], candidates)[0] if K is None else K[pivot]
        # ℓ_i = (k(z_i, ·) − Σ_j ℓ_j(z_i) ℓ_j(·)) / √(variance left at z_i)
        row = (k - rows[:i, pivot] @ rows[:i]) / left[pivot].clamp(min=1e-12).sqrt()
        rows[i] = row
        left.sub_(row.square()).clamp_(min=0.0)
        left[pivot] = -1.0
    return candidates[chosen].clone()
