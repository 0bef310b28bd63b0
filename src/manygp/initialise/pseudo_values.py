"""Pseudo-values: what f may be behind counts or labels, which lets these start like measurements do.

Levels, factors and lengthscales are looked for in a table of pseudo-values less the level of their output; what is
found is only a start, and the likelihood itself decides from there.
"""

import numpy as np
import torch
from torch import Tensor

from manygp.data import Table
from manygp.data.table import FloatArray, IntArray
from manygp.likelihoods import Likelihood

__all__ = ["check_support", "exposure_at", "pseudo_values"]

# Pseudo-values are a copy of the table; of one with more cells than this only some rows are taken.
_MAX_CELLS, _CHUNK_CELLS = 30_000_000, 4_000_000
# Pseudo-values are centred so often, and none is farther from its level than this.
_CENTRINGS, _FARTHEST = 3, 4.0


def check_support(likelihood: Likelihood, table: Table) -> None:
    """Refuse values that the likelihood cannot have, a chunk at a time."""
    for y in table.value_chunks():
        likelihood.check(y)


@torch.no_grad()
def pseudo_values(likelihood: Likelihood, table: Table, rng: np.random.Generator) -> tuple[Table, FloatArray]:
    """A table of pseudo-values less the levels, at all inputs or at a sample of them, and the levels (p,)."""
    part = table
    if table.size > _MAX_CELLS:
        most = max(1, table.num_inputs * _MAX_CELLS // table.size)
        part = table.take(np.sort(rng.choice(table.num_inputs, most, replace=False)))
    seen = torch.as_tensor(table.count_per_output() > 0)
    level = _levels(likelihood, table)
    values, center = np.empty(part.num_observed), np.zeros(len(level))
    # The mean of a count hangs on its largest values, that of pseudo-values does not.
    for _ in range(_CENTRINGS):
        level = level + torch.as_tensor(center)
        level = torch.where(seen, level, level[seen].mean())
        center = _fill(values, likelihood, part, level)
    begin = 0
    for _, output, y in part.chunks(_CHUNK_CELLS):
        values[begin : begin + len(y)] -= center[output]
        begin += len(y)
    return part.with_values(values), level.numpy() + center


def _fill(values: FloatArray, likelihood: Likelihood, table: Table, level: Tensor) -> FloatArray:
    """Write pseudo-values less the levels into an array; returns their means (p,)."""
    total, count, begin = np.zeros(len(level)), np.zeros(len(level)), 0
    for row, output, y in table.chunks(_CHUNK_CELLS):
        which = torch.as_tensor(output)
        f = likelihood.guess(torch.as_tensor(y), which, level, exposure_at(table, row))
        distance = (f - level.index_select(0, which)).clamp(-_FARTHEST, _FARTHEST).numpy()
        values[begin : begin + len(y)] = distance
        total += np.bincount(output, distance, len(level))
        count += np.bincount(output, minlength=len(level))
        begin += len(y)
    return np.asarray(total / np.maximum(count, 1))


def _levels(likelihood: Likelihood, table: Table) -> Tensor:
    """Levels of the outputs from all their cells; of no meaning for outputs without cells."""
    level = torch.zeros(table.num_outputs, dtype=torch.float64)
    for chosen, row, output, y in table.output_chunks(_CHUNK_CELLS):
        if len(y):
            values, which, count = torch.as_tensor(y), torch.as_tensor(output), chosen.stop - chosen.start
            level[chosen] = likelihood.level(values, which, count, exposure_at(table, row)).double()
    return level


def exposure_at(table: Table, rows: IntArray) -> Tensor | None:
    """Exposure of some input rows, if there is such a thing."""
    return None if table.exposure is None else torch.as_tensor(table.exposure[rows])
