"""Linear trends: what outputs do along each input, so that inducing points are left for what bends.

A function of d inputs has d slopes for every output, each of which would take about one inducing point. As a mean
function m_p(x) = xᵀ (W h_p + w + δ_p) they cost nothing, and new outputs have theirs from their latent vectors.
"""

import numpy as np
import torch

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Trend

__all__ = ["find_slopes", "start_trend", "without_slopes"]

# Inputs from which on trends are looked for, cells for every slope, and the least share of the variance they explain.
_MANY_FEATURES, _CELLS_PER_SLOPE, _LEAST_SHARE = 4, 20, 0.2
# Cells by which slopes are drawn to zero, so that inputs that say the same, and outputs with few cells, do no harm.
_PRIOR_CELLS = 0.1
# Numbers at most of the normal equations of all outputs, of the table of what trends leave, and of a chunk.
_MOST_NUMBERS, _MOST_CELLS, _CHUNK_NUMBERS = 50_000_000, 5_000_000, 5_000_000


def find_slopes(table: Table) -> FloatArray | None:
    """Slopes of every output along the inputs, in the table's units, shape (p, d), by least squares over its own cells.

    None where they are few, hardly known or of little use.
    """
    p, d = table.num_outputs, table.num_features + 1
    is_known = table.num_observed >= _CELLS_PER_SLOPE * p * d and p * d**2 <= _MOST_NUMBERS
    if table.num_features < _MANY_FEATURES or not is_known:
        return None
    scaling = Scaling.fit(table)
    squares, b, total = np.zeros((p, d * d)), np.zeros((p, d)), np.zeros(p)
    step = max(1, _CHUNK_NUMBERS // max(d * d, table.size // table.num_inputs))
    for begin in range(0, table.num_inputs, step):
        part = table.take(np.arange(begin, min(begin + step, table.num_inputs)))
        x = np.concatenate([np.ones((part.num_inputs, 1)), scaling.scale_x(part.X)], axis=1)
        row, output, y = part.cells(part.places())
        y = scaling.scale_y(y, output)
        squares += part.sum_by_output((x[:, :, None] * x[:, None, :]).reshape(len(x), -1))
        b += np.stack([np.bincount(output, y * column[row], p) for column in x.T], axis=1)
        total += np.bincount(output, y**2, p)
    A = squares.reshape(p, d, d)
    A[:, np.arange(d), np.arange(d)] += _PRIOR_CELLS
    V = np.linalg.solve(A, b[:, :, None])[:, :, 0]
    # Values of an output have mean 0 and mean square 1, for each degree of freedom.
    left = (total - (V * b).sum(axis=1)).sum() / (table.num_observed - p * d)
    slopes: FloatArray = scaling.y_scale[:, None] * V[:, 1:] / scaling.x_scale
    return slopes if left <= (1.0 - _LEAST_SHARE) * total.sum() / (table.num_observed - p) else None


def without_slopes(table: Table, slopes: FloatArray, rng: np.random.Generator) -> Table:
    """What trends through the centre of the inputs leave of a table, or of a sample of its rows."""
    if table.size > _MOST_CELLS:
        most = max(1, table.num_inputs * _MOST_CELLS // table.size)
        table = table.take(np.sort(rng.choice(table.num_inputs, most, replace=False)))
    center = table.X.mean(axis=0)
    left = [y - ((table.X[row] - center) * slopes[output]).sum(axis=1) for row, output, y in table.chunks()]
    return table.with_values(np.concatenate(left))


def start_trend(
    model: TransformedLatentModel, left: Table, scaling: Scaling, factors: Factorisation | None, slopes: FloatArray
) -> None:
    """Set the trend of a model: slopes as a linear function of the latent vectors, and what is an output's own.

    Parameters
    ----------
    model
        The model to set.
    left, scaling, factors
        What slopes leave of the table, its scaling, which centres inputs, and its factors, whose loadings are the
        latent vectors.
    slopes
        What `find_slopes` found.
    """
    B = slopes * scaling.x_scale / scaling.y_scale[:, None]
    known = np.ones((len(B), 1)) if factors is None else np.c_[factors.loadings, np.ones(len(B))]
    V = np.linalg.lstsq(known, B, rcond=1e-6)[0]
    rest = B - known @ V
    # A slope that n cells with residuals of variance r tell is off by r / n; deviations shrink to what is beyond that.
    counts = np.maximum(left.count_per_output(), 1)
    chance = (left.power_sums(2, scaling.y_center) / scaling.y_scale**2 / counts**2)[:, None]
    spread = max(float(np.mean(np.square(rest) - chance)), 0.0)
    for trend in model.terms.of(Trend):
        trend.set(torch.as_tensor(V.T), torch.as_tensor(rest * spread / (spread + chance)))
