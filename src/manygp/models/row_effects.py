"""What outputs do together at one input and at no other: effects of the rows of a table.

Inducing points follow what changes slowly over the inputs. What is left at one input often has a pattern over the
outputs all the same, and where some outputs are observed there, it tells about those that are not:

    y_np = f_p(x_n) + b_pᵀ r_n + ε_np,   r_n ~ N(0, I)

The effects are found after training, from what f leaves of the table. At inputs that are not in the table nothing is
known of them, and they are noise as before.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Grid, Scaling, Table
from manygp.data.table import FloatArray, IntArray
from manygp.kernels import cross_covariance
from manygp.likelihoods import Gaussian
from manygp.models.factor_analysis import Factors
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Points, RowEffects

# Outputs and inputs from which on effects are looked for, and cells at most.
_LEAST_OUTPUTS, _LEAST_INPUTS, _MOST_CELLS = 3, 20, 5_000_000
# Cells that an output has on average for each of its loadings.
_CELLS_PER_LOADING = 10
# Share of inputs that may occur more than once.
_MOST_REPEATED = 0.1
# Numbers of effects to choose from.
_RANKS = (1, 2, 3, 4, 6, 8)
# Ranks are compared on so many cells at most, by a share of these that is held out: the least gain in nats for each,
# and by how many standard errors it has to be beyond chance.
_RANK_CELLS, HELD_SHARE, _LEAST_GAIN, _SURE = 1_000_000, 0.1, 0.01, 3.0
# Cells that are worked on at once.
_CHUNK_CELLS = 50_000
# Steps of expectation maximisation; the noise that they begin with, and the least that they may leave.
_STEPS, _FIRST_NOISE, _LEAST_NOISE = 40, 0.5, 1e-4


@torch.no_grad()
def find_row_effects(
    model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator
) -> list[RowEffects]:
    """Effects of the rows of a table beside a trained model with Gaussian noise.

    The noise shrinks to what they leave, unless it is fixed.

    Empty where a model of effects would not predict what f leaves in cells held out, nor where there are few outputs or
    inputs, or inputs that occur several times.
    """
    assert isinstance(model.likelihood, Gaussian)
    ranks, rows = possible_ranks(table), distinct_rows(table, scaling)
    if not ranks or rows is None:
        return []
    assert isinstance(table, Grid)
    x, row = rows
    left, unit = _left(model, table, scaling, len(x), row)
    size = np.sqrt(np.nanmean(np.square(left)))
    if size == 0.0:
        return []
    # Residuals of cells that a model was fitted to are smaller than those of others.
    left /= size
    y = torch.as_tensor(left, device=model.units.device)
    rank = _choose_rank(y, ranks, rng)
    if rank is None:
        return []
    factors, noise = _analyse(y, rank, rng)
    if not model.likelihood.is_fixed:
        model.likelihood.noise = model.likelihood.noise * min(noise, 1.0)
    units = y.new_tensor(unit)
    loadings, unknown = factors.loadings * units.unsqueeze(-1), factors.own_variance() * units.square()
    return [RowEffects.known(torch.as_tensor(x), factors.mean, factors.covariance, loadings, unknown)]


def possible_ranks(table: Table) -> list[int]:
    """Numbers of effects that outputs have cells enough to tell apart, and to tell from f."""
    most = _cells_per_output(table) / _CELLS_PER_LOADING - 1.0
    return [rank for rank in _RANKS if rank < table.num_outputs - 1 and rank <= most]


def distinct_rows(table: Table, scaling: Scaling, most_cells: int = _MOST_CELLS) -> tuple[FloatArray, IntArray] | None:
    """Distinct inputs of a table, as the model sees them, and the number that each row has among them.

    None for tables that have no effects of rows: lists of cells, few or too many of them, and inputs that occur again.
    """
    if not isinstance(table, Grid) or table.num_outputs < _LEAST_OUTPUTS or table.num_inputs < _LEAST_INPUTS:
        return None
    if table.num_inputs * table.num_outputs > most_cells:
        return None
    x, row = np.unique(scaling.scale_x(table.X), axis=0, return_inverse=True)
    return (x, row.reshape(-1)) if len(x) >= (1.0 - _MOST_REPEATED) * table.num_inputs else None


def has_row_effects(table: Table, scaling: Scaling, rank: int) -> bool:
    """Whether effects of rows could be all that factors of this rank are."""
    return any(rank <= possible for possible in possible_ranks(table)) and distinct_rows(table, scaling) is not None


def _cells_per_output(table: Table) -> float:
    """Cells that an output has on average, if it has any."""
    counts = table.count_per_output()
    return float(counts[counts > 0].mean()) if counts.any() else 0.0


def _left(
    model: TransformedLatentModel, table: Grid, scaling: Scaling, num_rows: int, row: IntArray
) -> tuple[FloatArray, FloatArray]:
    """What f leaves of the cells, mean over rows that are one, in standard deviations of the noise; and these (p,)."""
    device, outputs = model.units.device, torch.arange(table.num_outputs, device=model.units.device)
    _, variance = model.likelihood.conditional_moments(torch.zeros(len(outputs), device=device).double(), outputs)
    unit, conditional = np.sqrt(variance.cpu().numpy()), model.gp.conditional()
    total, count = np.zeros((num_rows, table.num_outputs)), np.zeros((num_rows, table.num_outputs))
    for rows in table.row_chunks(_CHUNK_CELLS):
        at, output = np.nonzero(table.observed(rows))
        x = torch.as_tensor(scaling.scale_x(table.X[rows])[at], device=device)
        which = torch.as_tensor(output, device=device)
        h = model.latents.means(which)
        mean = cross_covariance(model.gp.kernel, model.embed(x, h), model.gp.Z) @ conditional.alpha
        mean = mean + model.terms.mean(Points(x, which, torch.as_tensor(row[rows][at], device=device), h))
        left = scaling.scale_y(table.values(rows)[at, output], output) - mean.cpu().numpy()
        place = (row[rows][at], output)
        np.add.at(total, place, left / unit[output])
        np.add.at(count, place, 1.0)
    return np.where(count > 0.0, total / np.maximum(count, 1.0), np.nan), unit


def _choose_rank(left: Float[Tensor, "n p"], ranks: list[int], rng: np.random.Generator) -> int | None:
    """The rank under which residuals held out are most likely; None if that is not beyond chance."""
    left = left[torch.as_tensor(rng.permutation(len(left))[: _RANK_CELLS // left.shape[1]], device=left.device)]
    held = torch.as_tensor(rng.random(left.shape) < HELD_SHARE, device=left.device) & ~left.isnan()
    rest, row = torch.where(held, torch.nan, left), torch.arange(len(left), device=left.device)

    def gain(rank: int) -> Float[Tensor, " b"]:
        factors, noise = _analyse(rest, rank, rng)
        variance = (factors.variances(row) + noise)[held]
        error = (left - factors.effects(row)[0])[held]
        # log N(y | g, v + σ²) − log N(y | 0, 1)
        return 0.5 * (left[held].square() - error.square() / variance - variance.log())

    return best_rank(ranks, gain, _LEAST_GAIN)


def best_rank(ranks: list[int], gain: Callable[[int], Float[Tensor, " b"]], least_gain: float) -> int | None:
    """The rank by which cells held out gain most, in nats each; None if that is little, or not beyond chance.

    Ranks are tried in their order for as long as the gain grows.
    """
    best, gained = None, -math.inf
    for rank in ranks:
        gains = gain(rank)
        mean, deviation = float(gains.mean()), float(gains.std()) / math.sqrt(max(len(gains), 1))
        if not mean > gained:
            break
        best, gained = rank if mean > max(least_gain, _SURE * deviation) else None, mean
    return best


def _analyse(left: Float[Tensor, "n p"], rank: int, rng: np.random.Generator) -> tuple[Factors, float]:
    """Factors of residuals, NaN for none, and the noise that they leave."""
    row, seen = torch.arange(len(left), device=left.device), (~left.isnan()).to(left.dtype)
    y, noise = left.nan_to_num(), _FIRST_NOISE
    factors = Factors.first(y / noise, seen / noise, row, rank, rng)
    for _ in range(_STEPS):
        factors = factors.improved(y / noise, seen / noise, row, has_levels=False)
        error = (y - factors.effects(row)[0]).square() + factors.variances(row)
        noise = max(float((seen * error).sum() / seen.sum()), _LEAST_NOISE)
    return Factors.at(y / noise, seen / noise, row, factors.coefficients, factors.covariance_of), noise
