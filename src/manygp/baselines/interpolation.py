"""Interpolation of every output by itself."""

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from manygp.baselines.baseline import Baseline
from manygp.data.table import FloatArray


class Interpolation(Baseline):
    """Every output by itself, between its own observed cells.

    Along one input a gap lies on the straight line between the nearest observed cells on both sides, and beyond the
    first and last of them the function is constant. Over several inputs a gap is the average of the nearest observed
    cells, weighted by the inverse of their distance.

    Parameters
    ----------
    num_neighbors
        Observed cells that a gap is averaged over where there are several inputs.
    random_state
        Seed of the cells held out in `error_std`.
    """

    def __init__(self, num_neighbors: int = 5, random_state: int = 0):
        self.num_neighbors = num_neighbors
        self.random_state = random_state

    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        filled = Y.copy()
        for j, y in enumerate(Y.T):
            gap = np.isnan(y)
            if gap.any():
                filled[gap, j] = self._interpolate(X[~gap], y[~gap], X[gap])
        return filled

    def _interpolate(self, x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
        """Values of one output at some inputs, shape (len(at),)."""
        if x.shape[1] == 1:
            # Observations that share an input count by their mean.
            place, row = np.unique(x[:, 0], return_inverse=True)
            return np.interp(at[:, 0], place, np.bincount(row, y) / np.bincount(row))
        return nearest_cells(x, y, at, self.num_neighbors)


def nearest_cells(x: FloatArray, y: FloatArray, at: FloatArray, num_neighbors: int) -> FloatArray:
    """Averages of the values at the nearest inputs, weighted by the inverse of their distance, shape (len(at),)."""
    regressor = KNeighborsRegressor(min(num_neighbors, len(y)), weights="distance")
    return np.asarray(regressor.fit(x, y).predict(at))
