"""How far sparse GPs are to be believed from their cells: one factor of all lengthscales, by cells held out."""

import logging
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from manygp.data import Grid, GridPlan, Scaling
from manygp.data.splits import pattern_split
from manygp.data.table import IntArray
from manygp.errors import DataError
from manygp.models.indgp import SparseIndependentModel
from manygp.variational import CellBatch

logger = logging.getLogger("manygp")

# Multiples of the lengthscales that the bound has found, from shorter to longer, beside the bound's own.
_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25)
# Outputs whose held-out cells are looked at: at least and at most so many.
_LEAST_OUTPUTS, _MOST_OUTPUTS = 3, 500
# Standard errors by which another factor must be better.
_CLEARLY = 2.0
# Numbers of covariances with inducing points that are made at a time.
_CHUNK_NUMBERS = 4_000_000


@torch.no_grad()
def stretch_lengthscales(
    model: SparseIndependentModel, table: Grid, scaling: Scaling, rng: np.random.Generator
) -> float:
    """Multiply all lengthscales by the factor that predicts held-out cells best, and set every q(u) to its optimum.

    A bound looks at cells that have neighbours. How fast a GP should return to its prior where it has none hardly
    enters, and where the kernel is not quite the right one, too long a lengthscale carries slopes far into a gap. So
    cells are held out in the pattern of the gaps, and their log density decides, if it is clear over outputs. For
    Gaussian noise only, whose q(u) need one natural step on all cells of their outputs. Returns the factor.
    """
    best = 1.0
    try:
        train, held = pattern_split(table, rng)
    except DataError:
        # Too few cells to hold any out.
        train = held = table
    outputs = np.flatnonzero((held.count_per_output() > 0) & (train.count_per_output() > 0))
    if train is not table and len(outputs) >= _LEAST_OUTPUTS:
        outputs = np.sort(rng.permutation(outputs)[:_MOST_OUTPUTS])
        as_found, most = _held_out_densities(model, train, held, scaling, outputs), 0.0
        for factor in _FACTORS:
            model.processes.stretch(factor)
            gain = _held_out_densities(model, train, held, scaling, outputs) - as_found
            model.processes.stretch(1.0 / factor)
            total, error = float(gain.sum()), float(gain.std()) * len(gain) ** 0.5
            if total > max(most, _CLEARLY * error):
                best, most = factor, total
    model.processes.stretch(best)
    logger.info("lengthscales times %.2f by held-out cells", best)
    for batch in _batches(model, table, scaling, np.arange(table.num_outputs)):
        model.settle(batch)
    return best


def _held_out_densities(
    model: SparseIndependentModel, train: Grid, held: Grid, scaling: Scaling, outputs: IntArray
) -> Tensor:
    """Log density of the held-out cells of every one of some outputs, given their cells in the training part."""
    parts = []
    known, unknown = (_batches(model, part, scaling, outputs) for part in (train, held))
    for given, asked in zip(known, unknown, strict=True):
        model.settle(given)
        density = model.log_density(asked)
        parts.append(density.new_zeros(len(asked.outputs)).index_add(0, asked.column, density))
    return torch.cat(parts)


def _batches(model: SparseIndependentModel, table: Grid, scaling: Scaling, outputs: IntArray) -> Iterator[CellBatch]:
    """All cells of some outputs, some outputs at a time."""
    plan, rows, device = GridPlan(table, scaling), np.arange(table.num_inputs), model.processes.Z.device
    chunks = -(-len(outputs) * table.num_inputs * model.processes.num_inducing // _CHUNK_NUMBERS)
    for part in np.array_split(outputs, min(len(outputs), chunks)):
        yield CellBatch.from_arrays(plan.batch(rows, part), torch.float64, device)
