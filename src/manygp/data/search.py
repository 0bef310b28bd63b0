"""Observed cells that may tell about others: the search that comes before a model ranks them."""

import numpy as np
from scipy.spatial import cKDTree
from sklearn.neighbors import NearestNeighbors

from manygp.data.table import FloatArray, IntArray

__all__ = ["CellSearch"]

# Trees are quick for so many dimensions; beyond, products with all points are.
_TREE_DIMENSIONS = 8
# Cells for every distinct input above which cells of the same inputs are looked up.
_SHARED = 1.5
# Cells of a table with gaps for every observed one up to which these are looked up in the table itself.
_DENSE = 8


class CellSearch:
    """Candidates for the neighbours of cells, from inputs and outputs that are near.

    Where outputs share inputs, candidates are the cells at the nearest inputs of the nearest outputs; otherwise, the
    nearest cells of each of the nearest outputs. In either case the nearest cells of the output itself join them, on
    both sides where there is one input: across a gap they may be far away.

    Parameters
    ----------
    x
        Distinct inputs of the observed cells, in units in which near means alike, shape (n, d).
    h
        Outputs in such units, shape (p, h).
    row, output
        Input and output of every observed cell, shape (c,) each.
    num_shared
        Outputs that are near to others: the first of all. The rest is near to nothing but itself.
    """

    def __init__(self, x: FloatArray, h: FloatArray, row: IntArray, output: IntArray, num_shared: int):
        self.x, self.h = x, h
        order = np.lexsort((x[row, 0], output))
        self._sorted, self._first = order, np.searchsorted(output[order], np.arange(len(h) + 1))
        self._row = row
        self._keys = row * len(h) + output
        self._table: IntArray | None = None
        if len(x) * len(h) <= _DENSE * len(row):
            # Numbers of the cells of a table, −1 for gaps.
            self._table = np.full(len(x) * len(h), -1)
            self._table[self._keys[::-1]] = np.arange(len(row))[::-1]
        self._by_key = np.argsort(self._keys, kind="stable")
        self._keys = self._keys[self._by_key]
        self.shares_inputs = len(row) >= _SHARED * len(x)
        self._near_inputs = _Nearest(x)
        self._num_shared, self._near_outputs = num_shared, _Nearest(h[:num_shared])
        self._own: dict[int, cKDTree] = {}

    def candidates(
        self,
        x: FloatArray,
        output: IntArray,
        h: FloatArray,
        num_inputs: int,
        num_outputs: int,
        num_own: int,
        num_here: int = 0,
    ) -> IntArray:
        """Numbers of observed cells that may tell about cells at inputs x of outputs at h, −1 for none, shape (b, k).

        Parameters
        ----------
        x, output, h
            Inputs (b, d), outputs (b,), and where these are (b, h). An output without observed cells has any number
            that is none of those which have some.
        num_inputs, num_outputs
            How many of the nearest inputs and outputs are looked at.
        num_own
            Cells of the output itself.
        num_here
            How many outputs are looked at where the nearest input is, if that is more.
        """
        distinct, at = np.unique(output, return_inverse=True)
        first = np.zeros(len(distinct), dtype=np.int64)
        first[at] = np.arange(len(at))
        most = max(num_here, num_outputs) if self.shares_inputs else num_outputs
        near = self._near_outputs(h[first], min(most, self._num_shared))[at]
        parts = [self._cells_of(x, output[:, None], num_own)]
        if self.shares_inputs:
            inputs, back = np.unique(x, axis=0, return_inverse=True)
            rows = self._near_inputs(inputs, min(num_inputs, len(self.x)))[back.reshape(-1)]
            parts += [
                self._cells_at(rows[:, :, None], near[:, None, :num_outputs]).reshape(len(x), -1),
                self._cells_at(rows[:, :1], near[:, num_outputs:]),
            ]
        else:
            parts.append(self._cells_of(x, near, num_inputs))
        found = np.concatenate(parts, axis=1)
        found = np.sort(found, axis=1)
        found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
        return found

    def _cells_at(self, row: IntArray, output: IntArray) -> IntArray:
        """Numbers of the cells at some inputs of some outputs."""
        wanted = row * len(self.h) + output
        if self._table is not None:
            return self._table[wanted]
        place = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[place] == wanted, self._by_key[place], -1)

    def _cells_of(self, x: FloatArray, outputs: IntArray, count: int) -> IntArray:
        """Numbers of the nearest cells of each of some outputs (b, k), `count` each."""
        found = np.full((*outputs.shape, count), -1, dtype=np.int64)
        flat = outputs.reshape(-1)
        rows = np.repeat(np.arange(len(x)), outputs.shape[1])
        order = np.argsort(flat, kind="stable")
        for part in np.split(order, np.flatnonzero(np.diff(flat[order])) + 1):
            p = int(flat[part[0]]) if len(part) else -1
            if 0 <= p < len(self.h) and self._first[p] < self._first[p + 1]:
                found.reshape(-1, count)[part] = self._nearest_of(x[rows[part]], p, count)
        return found.reshape(len(x), -1)

    def _nearest_of(self, x: FloatArray, p: int, count: int) -> IntArray:
        """Numbers of the nearest cells of one output."""
        own = self._sorted[self._first[p] : self._first[p + 1]]
        if self.x.shape[1] == 1:
            # As many on the left as on the right.
            place = np.searchsorted(self.x[self._row[own], 0], x[:, 0])[:, None] + np.arange(count) - count // 2
            return np.where((place >= 0) & (place < len(own)), own[np.clip(place, 0, len(own) - 1)], -1)
        if p not in self._own:
            self._own[p] = cKDTree(self.x[self._row[own]])
        near = self._own[p].query(x, k=count)[1].reshape(len(x), count)
        return np.where(near < len(own), own[np.minimum(near, len(own) - 1)], -1)


class _Nearest:
    """The nearest of some points."""

    def __init__(self, points: FloatArray):
        method = "kd_tree" if points.shape[1] <= _TREE_DIMENSIONS else "brute"
        self._search = NearestNeighbors(algorithm=method).fit(points)

    def __call__(self, points: FloatArray, count: int) -> IntArray:
        """Numbers of the `count` nearest points to every one of some others."""
        return self._search.kneighbors(points, n_neighbors=count, return_distance=False)
