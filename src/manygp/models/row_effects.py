"""What outputs do together at one input and at no other: effects of the rows of a table.

Inducing points follow what changes slowly over the inputs. What is left at one input often has a pattern over the
outputs all the same, and where some outputs are observed there, it tells about those that are not:

    y_np = f_p(x_n) + b_pᵀ r_n + ε_np,   r_n ~ N(0, diag s)

The effects are found after training, from what f leaves of the table. At inputs that are not in the table nothing is
known of them, and they are noise as before.
"""

import math

import numpy as np
import torch

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import choose_rank, factorise
from manygp.data.table import BoolArray, FloatArray, IntArray
from manygp.kernels import cross_covariance
from manygp.likelihoods import Gaussian
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.variational import RowEffects

__all__ = ["distinct_rows", "find_row_effects", "has_row_effects", "possible_ranks"]

# Outputs and inputs from which on effects are looked for, cells at most, and the least share of the noise they explain.
_LEAST_OUTPUTS, _LEAST_INPUTS, _MOST_CELLS, _LEAST_SHARE = 3, 20, 5_000_000, 0.05
# Cells that an output has on average for each of its loadings.
_CELLS_PER_LOADING = 10
# Standard errors by which that has to be beyond chance.
_SURE = 3.0
# Share of inputs that may occur more than once.
_MOST_REPEATED = 0.1
_RANKS, _RANK_SIDE = (1, 2, 3, 4, 6, 8), 1000
_CHUNK_CELLS = 50_000
# Steps of expectation maximisation for the variances, and the least noise that they may leave.
_STEPS, _LEAST_NOISE = 30, 1e-4


@torch.no_grad()
def find_row_effects(
    model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator
) -> RowEffects | None:
    """Effects of the rows of a table beside a trained model with Gaussian noise, which shrinks to what they leave.

    None where a model of effects would not predict what f leaves in cells held out, nor where there are few outputs or
    inputs, or inputs that occur several times.
    """
    assert isinstance(model.likelihood, Gaussian)
    ranks, rows = possible_ranks(table), distinct_rows(table, scaling)
    if not ranks or rows is None:
        return None
    assert isinstance(table, Grid)
    x, row = rows
    left, unit = _left(model, table, scaling, len(x), row)
    # Residuals of cells that a model was fitted to are smaller than those of others.
    left /= np.sqrt(np.nanmean(np.square(left)))
    grid, none = Grid(x, left), Scaling.fit(Grid(x, left), inputs=False, outputs="none")
    seen = ~np.isnan(left)
    choice = choose_rank(grid, none, ranks, rng=rng, max_side=_RANK_SIDE)
    # The error of n cells by chance differs by a share of √(2/n) from what it should be.
    least = max(_LEAST_SHARE, _SURE * math.sqrt(2.0 / seen.sum()))
    if not choice.errors or choice.errors[choice.rank] > 1.0 - least:
        return None
    loadings = factorise(grid, none, choice.rank, rng=rng).loadings
    B = np.concatenate([np.ones((len(loadings), 1)), loadings], axis=1)
    mean, covariance, prior, noise = _posterior(np.where(seen, left, 0.0), seen, B)
    # As in a regression with k coefficients: residuals are too small by k / n, and predictions are off by as much more.
    k, cells = B.shape[1], _cells_per_output(table)
    model.likelihood.noise = model.likelihood.noise * min(noise * (1.0 + k / cells) / (1.0 - k / cells), 1.0)
    effects = RowEffects(len(x), table.num_outputs, table.num_features, k)
    parts = {"inputs": x, "mean": mean, "covariance": covariance, "loadings": B * unit[:, None], "prior": prior}
    for name, values in parts.items():
        getattr(effects, name).copy_(torch.as_tensor(values))
    return effects.to(model.units.device)


def possible_ranks(table: Table) -> list[int]:
    """Numbers of effects, beside one that all outputs have alike, that outputs have cells enough to tell apart."""
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
        trend = model.trend(x, h, which)
        mean = cross_covariance(model.gp.kernel, model.embed(x, h), model.gp.Z) @ conditional.alpha
        mean = mean if trend is None else mean + trend
        left = scaling.scale_y(table.values(rows)[at, output], output) - mean.cpu().numpy()
        place = (row[rows][at], output)
        np.add.at(total, place, left / unit[output])
        np.add.at(count, place, 1.0)
    return np.where(count > 0.0, total / np.maximum(count, 1.0), np.nan), unit


def _posterior(left: FloatArray, seen: BoolArray, B: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Means (n, k) and covariances (n, k, k) of the effects, their prior variances (k,), and the noise they leave.

    The variances by expectation maximisation with loadings as they are.
    """
    k, is_seen, observed = B.shape[1], seen.any(axis=1), seen.astype(np.float64)
    outer = (B[:, :, None] * B[:, None, :]).reshape(-1, k * k)
    gram, pull = (observed @ outer).reshape(-1, k, k), left @ B
    prior: FloatArray = np.full(k, 0.5 / k)
    noise = 0.5
    for step in range(_STEPS + 1):
        # C_n = (diag(1/s) + Σ_p b bᵀ / ψ)⁻¹,  m_n = C_n Σ_p b e_np / ψ
        covariance = np.asarray(np.linalg.inv(gram / noise + np.diag(1.0 / prior)), dtype=np.float64)
        mean = (covariance @ (pull / noise)[:, :, None])[:, :, 0]
        if step == _STEPS:
            break
        squares = np.square(mean) + covariance.diagonal(axis1=1, axis2=2)
        prior = np.maximum(squares[is_seen].mean(axis=0), _LEAST_NOISE)
        error = observed * (np.square(left - mean @ B.T) + covariance.reshape(-1, k * k) @ outer.T)
        noise = max(float(error.sum() / observed.sum()), _LEAST_NOISE)
    return mean, covariance, prior, noise
