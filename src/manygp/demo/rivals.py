"""Plain ways to fill gaps that a model has to beat, each with Gaussian error bars."""

import numpy as np
from numpy.typing import NDArray

from manygp.baselines.baseline import Filled
from manygp.data import Scaling, as_table
from manygp.data.factorisation import choose_rank, factorise
from manygp.data.splits import pattern_split

_Array = NDArray[np.float64]

# How many residuals of other stations count beside a station's own.
_BORROWED = 5.0


def station_mean(Y: _Array) -> Filled:
    """The mean of each station's own observations, with their spread as error bar."""
    mean = np.nanmean(Y, axis=0)
    std = _safe_std(np.nanvar(Y, axis=0, ddof=1))
    return Filled(np.broadcast_to(mean, Y.shape), np.broadcast_to(std, Y.shape))


def station_interpolation(x: _Array, Y: _Array) -> Filled:
    """Straight lines between each station's own observations.

    Error bars come from residuals: observations are interpolated from those at least so many steps away, over all
    stations, and a missing cell takes the spread found at its own distance from the nearest observation.
    """
    mean = np.empty_like(Y)
    for j, y in enumerate(Y.T):
        seen = np.flatnonzero(~np.isnan(y))
        mean[:, j] = np.interp(x, x[seen], y[seen])
    distance = _steps_to_observation(np.isnan(Y))
    variance = np.array([_residual_variance(x, Y, steps) for steps in range(1, int(distance.max()) + 1)])
    std = _safe_std(variance)
    return Filled(mean, std[np.maximum(distance, 1) - 1])


def low_rank(X: _Array, Y: _Array) -> Filled:
    """Matrix completion by a masked factorisation.

    Rank and error bars come from cells held out in the pattern of the gaps; a station's error bar leans on its own
    residuals as far as it has any, and on those of all stations for the rest.
    """
    table = as_table(X, Y)
    scaling = Scaling.fit(table, outputs="global")
    rank = choose_rank(table, scaling).rank
    filled = scaling.unscale_mean(factorise(table, scaling, rank).predict())
    train, test = pattern_split(table, np.random.default_rng(0))
    retold = scaling.unscale_mean(factorise(train, scaling, rank).predict())
    checked = test.observed(slice(None))
    squares = np.where(checked, (Y - retold) ** 2, 0.0).sum(axis=0)
    counts = checked.sum(axis=0)
    typical = squares.sum() / counts.sum()
    variance = (squares + _BORROWED * typical) / (counts + _BORROWED)
    return Filled(filled, np.broadcast_to(np.sqrt(variance), Y.shape))


def _residual_variance(x: _Array, Y: _Array, steps: int) -> float:
    """Mean squared residual of observations interpolated from those at least `steps` steps away."""
    total, count = 0.0, 0
    for y in Y.T:
        seen = np.flatnonzero(~np.isnan(y))
        before = np.searchsorted(seen, seen - steps, side="right") - 1
        after = np.searchsorted(seen, seen + steps, side="left")
        inside = (before >= 0) & (after < len(seen))
        here, left, right = seen[inside], seen[before[inside]], seen[after[inside]]
        share = (x[here] - x[left]) / (x[right] - x[left])
        total += float(np.sum((y[here] - (1.0 - share) * y[left] - share * y[right]) ** 2))
        count += len(here)
    return total / count if count else np.nan


def _steps_to_observation(missing: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number of rows from each cell to the nearest observed one of its column."""
    far = len(missing)
    distance = np.where(missing, far, 0)
    for t in range(1, far):
        distance[t] = np.minimum(distance[t], distance[t - 1] + 1)
    for t in range(far - 2, -1, -1):
        distance[t] = np.minimum(distance[t], distance[t + 1] + 1)
    return distance


def _safe_std(variance: _Array) -> _Array:
    """Standard deviations; where there were too few residuals, the typical one."""
    typical = np.nanmedian(variance) if np.isfinite(variance).any() else 1.0
    usable = np.isfinite(variance) & (variance > 0)
    return np.sqrt(np.where(usable, variance, typical))
