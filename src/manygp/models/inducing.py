"""Inducing points among the embedded cells of a table."""

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance, kernel_diagonal

__all__ = ["greedy_inducing", "sample_cells", "sample_places"]


def sample_cells(
    table: Table, scaling: Scaling, size: int, rng: np.random.Generator
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Scaled inputs, outputs and scaled values of about `size` observed cells drawn at random."""
    row, output, y = sample_places(table, size, rng)
    return scaling.scale_x(table.X[row]), output, scaling.scale_y(y, output)


def sample_places(table: Table, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
    """Input rows, outputs and values of about `size` observed cells drawn at random."""
    if isinstance(table, Cells):
        chosen = rng.choice(len(table.y), min(size, len(table.y)), replace=False)
        row, output, y = chosen, table.output[chosen], table.y[chosen]
    else:
        assert isinstance(table, Grid)
        rows, outputs = table.num_inputs, table.num_outputs
        draws = int(min(4.0, 1.2 * rows * outputs / table.num_observed) * size) + 50
        if draws >= rows * outputs or table.num_observed < 0.2 * rows * outputs:
            row, output = _observed_subset(table, size, rng)
        else:
            flat = rng.integers(rows * outputs, size=draws)
            row, output = np.divmod(np.unique(flat), outputs)
        y = np.asarray(table.Y[row, output], dtype=np.float64)
        seen = ~np.isnan(y) & (True if table.mask is None else table.mask[row, output])
        row, output, y = row[seen], output[seen], y[seen]
        if len(y) > size:
            kept = rng.choice(len(y), size, replace=False)
            row, output, y = row[kept], output[kept], y[kept]
    return row, output, y


def _observed_subset(table: Grid, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Positions of observed cells, at most `size` of them, each equally likely."""
    chosen = np.sort(rng.choice(table.num_observed, min(size, table.num_observed), replace=False))
    rows, outputs, passed = [], [], 0
    for chunk in table.row_chunks():
        row, output = np.nonzero(table.observed(chunk))
        here = chosen[(chosen >= passed) & (chosen < passed + len(row))] - passed
        rows.append(row[here] + chunk.start)
        outputs.append(output[here])
        passed += len(row)
    return np.concatenate(rows), np.concatenate(outputs)


@torch.no_grad()
def greedy_inducing(kernel: Kernel, candidates: Float[Tensor, "c e"], num_inducing: int) -> Float[Tensor, "m e"]:
    """Inducing points among candidates, each where the variance left by those before is largest.

    This is a pivoted Cholesky factorisation of the candidates' covariance: O(c m²) time, O(c m) memory.
    """
    left = kernel_diagonal(kernel, candidates).clone()
    rows = candidates.new_zeros(num_inducing, candidates.shape[0])
    chosen: list[int] = []
    for i in range(num_inducing):
        pivot = int(left.argmax())
        chosen.append(pivot)
        k = cross_covariance(kernel, candidates[pivot : pivot + 1], candidates)[0]
        # ℓ_i = (k(z_i, ·) − Σ_j ℓ_j(z_i) ℓ_j(·)) / √(variance left at z_i)
        row = (k - rows[:i, pivot] @ rows[:i]) / left[pivot].clamp(min=1e-12).sqrt()
        rows[i] = row
        left.sub_(row.square()).clamp_(min=0.0)
        left[pivot] = -1.0
    return candidates[chosen].clone()
