"""Rows that look alike."""

import numpy as np
from sklearn.impute import KNNImputer

from manygp.baselines.baseline import Baseline
from manygp.baselines.interpolation import nearest_cells
from manygp.data.table import FloatArray
from manygp.errors import SettingError

_LIKENESS = ("inputs", "outputs", "both")
_NUM_NEIGHBORS = (2, 5, 15)


class NearestRows(Baseline):
    """A gap is the average of its output over the rows most like its own that have it, by scikit-learn's `KNNImputer`.

    Parameters
    ----------
    num_neighbors
        Rows to average over, weighted by the inverse of their distance; "auto" chooses among 2, 5 and 15
        by such cells.
    by
        What makes rows alike: "inputs", "outputs" (those observed in both rows), or "both", where inputs weigh as much
        as outputs do; "auto" chooses by cells held out in the pattern of the gaps.
    max_rows
        Most rows to search among; of a longer table so many are drawn, unless by inputs alone.
    random_state
        Seed.
    """

    def __init__(
        self, num_neighbors: int | str = "auto", by: str = "auto", max_rows: int = 5_000, random_state: int = 0
    ):
        self.num_neighbors = num_neighbors
        self.by = by
        self.max_rows = max_rows
        self.random_state = random_state

    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        if self.by not in ("auto", *_LIKENESS):
            raise SettingError(f'by={self.by!r} is no likeness of rows; choose "inputs", "outputs", "both" or "auto".')
        if self.by != "auto" and self.num_neighbors != "auto":
            return self._average(X, Y)
        # Rows of single cells have nothing in common but their inputs.
        have_outputs = ((~np.isnan(Y)).sum(1) > 1).any()
        by, k = self.by, self.num_neighbors
        if by == "auto":
            tried = _LIKENESS if have_outputs else _LIKENESS[:1]
            by = self._best([self._with(_NUM_NEIGHBORS[1] if k == "auto" else k, by) for by in tried], X, Y).by
        if k == "auto":
            k = self._best([self._with(k, by) for k in _NUM_NEIGHBORS], X, Y).num_neighbors
        return self._with(k, by)._average(X, Y)

    def _with(self, num_neighbors: int | str, by: str) -> "NearestRows":
        return NearestRows(num_neighbors, by, self.max_rows, self.random_state)

    def _average(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """Averages over rows, for given settings."""
        k = int(self.num_neighbors)
        if self.by == "inputs":
            return self._average_by_inputs(X, Y, k)
        # Squared differences are summed over columns, so that few inputs need the weight of many outputs.
        weight = np.sqrt(Y.shape[1] / X.shape[1])
        table = np.hstack([weight * X, Y]) if self.by == "both" else Y
        rng = np.random.default_rng(self.random_state)
        rows = np.arange(len(Y)) if len(Y) <= self.max_rows else rng.choice(len(Y), self.max_rows, replace=False)
        imputer = KNNImputer(n_neighbors=k, weights="distance", keep_empty_features=True).fit(table[rows])
        return np.asarray(imputer.transform(table)[:, -Y.shape[1] :])

    def _average_by_inputs(self, X: FloatArray, Y: FloatArray, k: int) -> FloatArray:
        """The same where only inputs count: a tree finds the nearest cells of each output."""
        filled = Y.copy()
        for j, gap in enumerate(np.isnan(Y).T):
            if gap.any():
                filled[gap, j] = nearest_cells(X[~gap], Y[~gap, j], X[gap], k)
        return filled
