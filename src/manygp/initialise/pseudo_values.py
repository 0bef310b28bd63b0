"""Guesses of f behind counts or labels: what lets them start like measurements do.

Levels, factors and lengthscales are looked for in a table of guessed values of f less the level of their output; what
is found is only a start, and the likelihood itself decides from there.
"""

import numpy as np
import torch
from torch import Tensor

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray, IntArray
from manygp.initialise.evidence import Lengthscales
from manygp.likelihoods import Gaussian, Likelihood
from manygp.models.latent_variable import LatentVariableModel
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.variational import GaussianEvidence, NaturalPosterior

__all__ = ["GUESS_TOLERANCE", "check_support", "guess_table", "start_likelihood", "start_posterior"]

# As of `choose_rank`: guesses are mostly noise, of which no rank explains anything.
GUESS_TOLERANCE = 2e-3
# A grid of guesses is a copy of the values; of more cells than this only some rows are guessed.
_MAX_CELLS = 30_000_000
# Cells that parameters of the likelihood start from: so many for each output, within limits for all.
_CELLS_PER_OUTPUT, _LEAST_SAMPLE, _MOST_SAMPLE = 1_000, 100_000, 4_000_000
_CHUNK_CELLS = 4_000_000
_POSTERIOR_CELLS = 8192
# Guesses are centred so often, and no guess is farther from its level than this.
_CENTRINGS, _FARTHEST = 3, 4.0


def check_support(likelihood: Likelihood, table: Table) -> None:
    """Refuse values that the likelihood cannot have, a chunk at a time."""
    if isinstance(table, Cells):
        likelihood.check(table.y)
        return
    assert isinstance(table, Grid)
    for rows in table.row_chunks():
        likelihood.check(np.where(table.observed(rows), table.values(rows), np.nan))


def guess_table(likelihood: Likelihood, table: Table, rng: np.random.Generator) -> tuple[Table, FloatArray]:
    """A table of guesses of f less the levels, at all inputs or at a sample of them, and the levels (p,)."""
    if isinstance(table, Grid):
        most = max(1, _MAX_CELLS // table.num_outputs)
        rows = np.arange(table.num_inputs)
        if len(rows) > most:
            rows = np.sort(rng.choice(rows, most, replace=False))
        guesses: Table = Grid(table.X[rows], np.full((len(rows), table.num_outputs), np.nan), table.output_names)
    else:
        assert isinstance(table, Cells)
        rows = np.arange(len(table.y))
        guesses = Cells(table.X, table.output, np.empty(len(table.y)), table.output_names)
    seen = torch.as_tensor(table.count_per_output() > 0)
    level = _levels(likelihood, table)
    # The mean of a count hangs on its largest values, that of the guesses does not.
    for _ in range(_CENTRINGS):
        level = torch.where(seen, level, level[seen].mean())
        level = level + _fill(guesses, likelihood, table, rows, level)
    return guesses, level.numpy()


def _fill(guesses: Table, likelihood: Likelihood, table: Table, rows: IntArray, level: Tensor) -> Tensor:
    """Write guesses less the levels and less their own means, which are returned, into a table."""
    values: FloatArray = guesses.Y if isinstance(guesses, Grid) else guesses.y  # type: ignore[attr-defined]
    place: tuple[IntArray, ...]
    total, count = np.zeros(len(level)), np.zeros(len(level))
    for at in np.array_split(np.arange(len(rows)), 1 + values.size // _CHUNK_CELLS):
        if isinstance(table, Grid):
            block = table.block(rows[at], np.arange(table.num_outputs))
            row, output = np.nonzero(~np.isnan(block))
            y, exposure, place = block[row, output], _exposure(table, rows[at][row]), (at[row], output)
        else:
            assert isinstance(table, Cells)
            y, output, exposure, place = table.y[at], table.output[at], _exposure(table, at), (at,)
        which = torch.as_tensor(output)
        distance = likelihood.guess(torch.as_tensor(y), which, level, exposure) - level.index_select(0, which)
        values[place] = distance.detach().clamp(-_FARTHEST, _FARTHEST).numpy()
        total += np.bincount(output, values[place], len(level))
        count += np.bincount(output, minlength=len(level))
    center = total / np.maximum(count, 1)
    values -= center if isinstance(guesses, Grid) else center[guesses.output]  # type: ignore[attr-defined]
    return torch.as_tensor(center)


def _levels(likelihood: Likelihood, table: Table) -> Tensor:
    """Levels of the outputs from all their cells, some outputs at a time; of no meaning for outputs without cells."""
    if isinstance(table, Cells):
        y, which = torch.as_tensor(table.y), torch.as_tensor(table.output)
        return likelihood.level(y, which, table.num_outputs, _exposure(table, slice(None))).detach()
    assert isinstance(table, Grid)
    rows, width, levels = np.arange(table.num_inputs), max(1, _CHUNK_CELLS // table.num_inputs), []
    for begin in range(0, table.num_outputs, width):
        columns = np.arange(begin, min(begin + width, table.num_outputs))
        block = table.block(rows, columns)
        row, output = np.nonzero(~np.isnan(block))
        if len(row):
            y, which = torch.as_tensor(block[row, output]), torch.as_tensor(output)
            levels.append(likelihood.level(y, which, len(columns), _exposure(table, row)).detach().double())
        else:
            levels.append(torch.zeros(len(columns), dtype=torch.float64))
    return torch.cat(levels)


@torch.no_grad()
def start_likelihood(
    model: LatentVariableModel,
    table: Table,
    scaling: Scaling,
    factors: Factorisation | None,
    rng: np.random.Generator,
) -> None:
    """Set the parameters of the likelihood from a sample of cells, around the factors if there are some.

    `factors` describe the rows of `table`, in the units of f less its levels.
    """
    if isinstance(model.likelihood, Gaussian) and model.likelihood.noise.numel() == 1:
        # The noise is known from the start of the rest.
        return
    size = int(np.clip(_CELLS_PER_OUTPUT * table.num_outputs, _LEAST_SAMPLE, _MOST_SAMPLE))
    sample = _Sample(table, size, rng, scaling)
    level = model.levels(sample.outputs)
    f = level
    if factors is not None:
        row, output = sample.row, sample.outputs.numpy()
        fit = torch.as_tensor(factors.row_mean[row] + (factors.row_factors[row] * factors.loadings[output]).sum(1))
        f = fit if level is None else level + fit
    model.likelihood.start_from(sample.y, sample.outputs, f, sample.exposure)


@torch.no_grad()
def start_posterior(
    model: TransformedLatentModel, guesses: Table, scaling: Scaling, found: Lengthscales, rng: np.random.Generator
) -> None:
    """Let q(u) begin where the guesses put it: at the prior, exp(f) would be anything."""
    if not isinstance(model.gp.posterior, NaturalPosterior):
        return
    sample = _Sample(guesses, _POSTERIOR_CELLS, rng)
    x = torch.as_tensor(scaling.scale_x(guesses.X[sample.row]))
    e = model.embed(x, model.latents.mean[sample.outputs])
    noise = torch.tensor(max(found.noise, 1e-2), dtype=torch.float64)
    evidence = GaussianEvidence.from_batch(model.gp.kernel, e, model.gp.Z, sample.y, noise, model.gp.jitter)
    weight = guesses.num_observed / len(sample.y)
    model.gp.posterior.step(*evidence.natural_target(model.gp.posterior, weight), 1.0)


class _Sample:
    """Some observed cells as tensors, values scaled if a scaling is given."""

    def __init__(self, table: Table, size: int, rng: np.random.Generator, scaling: Scaling | None = None):
        self.row, output, y = table.sample(size, rng)
        self.outputs = torch.as_tensor(output)
        self.y = torch.as_tensor(np.asarray(y if scaling is None else scaling.scale_y(y, output), dtype=np.float64))
        self.exposure = _exposure(table, self.row)


def _exposure(table: Table, rows: IntArray | slice) -> Tensor | None:
    return None if table.exposure is None else torch.as_tensor(table.exposure[rows])
