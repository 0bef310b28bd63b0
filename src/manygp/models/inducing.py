"""Inducing points among the embedded cells of a table."""

import numpy as np
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.linalg import cholesky_pivots
from manygp.variational import KernelBatch, covariance_of

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
def greedy_inducing(
    kernel: Kernel | KernelBatch, candidates: Float[Tensor, "c e"], num_inducing: int
) -> Float[Tensor, "*q m e"]:
    """Inducing points among candidates, of every kernel, each where the variance left by those before is largest.

    This is a pivoted Cholesky factorisation of the candidates' covariance: O(c m²) time, O(c m) memory.
    """
    k = covariance_of(kernel)
    diagonal = k.diagonal(candidates)
    chosen = cholesky_pivots(
        diagonal.view(-1, len(candidates)),
        lambda pivot: k(candidates[pivot].unsqueeze(-2), candidates).squeeze(-2),
        num_inducing,
    )
    return candidates[chosen].view(*diagonal.shape[:-1], num_inducing, -1)
