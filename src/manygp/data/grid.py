"""A table whose outputs share their inputs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from manygp.data.table import CHUNK_CELLS, BoolArray, FloatArray, IntArray, PlaceArray, Table
from manygp.errors import DataError

__all__ = ["Grid"]


class Grid(Table):
    """Inputs shared by all outputs, and a matrix of values with gaps.

    Parameters
    ----------
    X
        Inputs, shape (n, d).
    Y
        Values, shape (n, p); NaN means missing. Kept by reference. A `scipy.sparse.csr_array` stays sparse until rows
        or a batch of it are asked for; what it does not store are zeros, and observed.
    output_names
        One name per column of `Y`.
    mask
        True where a cell is observed, shape (n, p); a NaN under True is missing all the same. Kept by
        reference.
    feature_names
        One name per column of `X`.
    """

    def __init__(
        self,
        X: FloatArray,
        Y: FloatArray | sparse.csr_array,
        output_names: Iterable[Hashable] | None = None,
        *,
        mask: BoolArray | None = None,
        feature_names: Iterable[str] | None = None,
    ) -> None:
        if Y.ndim != 2:
            raise DataError(f"Y has shape {Y.shape}; expected (inputs, outputs), so give a 2-D array.")
        super().__init__(X, Y.shape[1], output_names, feature_names)
        if Y.shape[0] != len(X):
            raise DataError(f"X has {len(X)} rows and Y has {Y.shape[0]}; give one row of Y for each row of X.")
        if mask is not None and mask.shape != Y.shape:
            raise DataError(f"The mask has shape {mask.shape} and Y has {Y.shape}; give one entry for each cell.")
        self.Y = Y
        self.mask = mask

    def row_chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[slice]:
        """Yield slices over the input rows that hold about `max_cells` cells each."""
        step = max(1, max_cells // max(1, self.num_outputs))
        for start in range(0, self.num_inputs, step):
            yield slice(start, min(start + step, self.num_inputs))

    def values(self, rows: slice) -> FloatArray:
        """Return the values of some rows, those under a False mask included, shape (rows, p)."""
        return _dense(self.Y[rows])

    def observed(self, rows: slice) -> BoolArray:
        """Return which cells of some rows are observed, shape (rows, p)."""
        present = ~np.isnan(self.values(rows))
        if self.mask is not None:
            present &= self.mask[rows]
        return present

    def block(self, rows: IntArray, outputs: IntArray) -> FloatArray:
        """Return a copy of the values at some rows and outputs, NaN where missing, shape (rows, outputs)."""
        index = np.ix_(rows, outputs)
        # Rows first: a sparse array holds them in one piece.
        values = _dense(self.Y[rows][:, outputs]) if sparse.issparse(self.Y) else _dense(self.Y[index])
        if self.mask is not None:
            values[~self.mask[index]] = np.nan
        return values

    @cached_property
    def _counts(self) -> tuple[IntArray, IntArray]:
        per_input = np.zeros(self.num_inputs, dtype=np.int64)
        per_output = np.zeros(self.num_outputs, dtype=np.int64)
        for rows in self.row_chunks():
            present = self.observed(rows)
            per_input[rows] = present.sum(axis=1)
            per_output += present.sum(axis=0)
        return per_input, per_output

    @property
    def num_observed(self) -> int:
        """Number of observed cells."""
        return int(self._counts[1].sum())

    def count_per_input(self) -> IntArray:
        """Return the number of observed cells of every input row, shape (n,)."""
        return self._counts[0].copy()

    def count_per_output(self) -> IntArray:
        """Return the number of observed cells of every output, shape (p,)."""
        return self._counts[1].copy()

    def power_sums(self, power: int, center: FloatArray, unit: float = 1.0) -> FloatArray:
        """Return Σ ((y - center) / unit)ᵖᵒʷᵉʳ over the observed cells of every output, shape (p,)."""
        total = np.zeros(self.num_outputs)
        for rows in self.row_chunks():
            deviation = np.where(self.observed(rows), self.values(rows), center)
            deviation -= center
            total += ((deviation / unit) ** power).sum(axis=0)
        return total

    def places(self) -> PlaceArray:
        """Return the flat positions of the observed cells in `Y`, shape (c,)."""
        size = self.num_inputs * self.num_outputs
        places: PlaceArray = np.empty(self.num_observed, dtype=np.int32 if size < 2**31 else np.int64)
        start = 0
        for rows in self.row_chunks():
            found = np.flatnonzero(self.observed(rows)) + rows.start * self.num_outputs
            places[start : start + len(found)] = found
            start += len(found)
        return places

    def cells(self, places: PlaceArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input row, output and value of the cells at some places, each of shape (b,)."""
        row, output = np.divmod(places.astype(np.int64), self.num_outputs)
        return row, output, np.asarray(self.Y[row, output], dtype=np.float64)

    def known_variance(self, row: IntArray, output: IntArray) -> FloatArray | None:
        """Return the known variance of the noise of some cells, None where nothing is known of it."""
        if self.y_std is None:
            return None
        return np.square(np.broadcast_to(self.y_std, (self.num_inputs, self.num_outputs))[row, output])

    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        """Return input rows and values of the observed cells of one output."""
        y = self.block(np.arange(self.num_inputs), np.array([output]))[:, 0]
        row = np.flatnonzero(~np.isnan(y))
        return row, y[row]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input rows, outputs and values of about `size` observed cells drawn at random."""
        rows, outputs = self.num_inputs, self.num_outputs
        draws = int(min(4.0, 1.2 * rows * outputs / self.num_observed) * size) + 50
        if draws >= rows * outputs or self.num_observed < 0.2 * rows * outputs:
            row, output = self._observed_subset(size, rng)
        else:
            flat = rng.integers(rows * outputs, size=draws)
            row, output = np.divmod(np.unique(flat), outputs)
        y = np.asarray(self.Y[row, output], dtype=np.float64)
        seen = ~np.isnan(y) & (True if self.mask is None else self.mask[row, output])
        row, output, y = row[seen], output[seen], y[seen]
        if len(y) > size:
            kept = rng.choice(len(y), size, replace=False)
            row, output, y = row[kept], output[kept], y[kept]
        return row, output, y

    def _observed_subset(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return positions of observed cells, at most `size` of them, each equally likely."""
        chosen = np.sort(rng.choice(self.num_observed, min(size, self.num_observed), replace=False))
        rows, outputs, passed = [], [], 0
        for chunk in self.row_chunks():
            row, output = np.nonzero(self.observed(chunk))
            here = chosen[(chosen >= passed) & (chosen < passed + len(row))] - passed
            rows.append(row[here] + chunk.start)
            outputs.append(output[here])
            passed += len(row)
        return np.concatenate(rows), np.concatenate(outputs)

    def chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield input rows, outputs and values of all observed cells in the order of `places`, some at a time."""
        for rows in self.row_chunks(max_cells):
            row, output = np.nonzero(self.observed(rows))
            yield row + rows.start, output, self.values(rows)[row, output]

    def _contents(self) -> Iterator[np.ndarray]:
        for rows in self.row_chunks():
            present = self.observed(rows)
            yield np.packbits(present)
            yield self.values(rows)[present]

    def output_chunks(self, max_cells: int) -> Iterator[tuple[slice, IntArray, IntArray, FloatArray]]:
        """Yield some successive outputs at a time; rows, outputs (counted from the first) and values of their cells."""
        rows, width = np.arange(self.num_inputs), max(1, max_cells // self.num_inputs)
        for begin in range(0, self.num_outputs, width):
            chosen = slice(begin, min(begin + width, self.num_outputs))
            block = self.block(rows, np.arange(chosen.start, chosen.stop))
            row, output = np.nonzero(~np.isnan(block))
            yield chosen, row, output, block[row, output]

    @property
    def size(self) -> int:
        """How many numbers a copy of the values takes, gaps included."""
        return self.num_inputs * self.num_outputs

    def with_values(self, values: FloatArray) -> Grid:
        """Return a table with other values of the observed cells, in the order of `places`, shape (c,)."""
        Y = np.full(self.num_inputs * self.num_outputs, np.nan)
        Y[self.places()] = values
        return Grid(self.X, Y.reshape(self.num_inputs, -1), self.output_names, feature_names=self.feature_names)

    def with_inputs(self, X: FloatArray) -> Grid:
        """Return the same observations, without copying them, at inputs that are told otherwise, shape (n, d')."""
        new = Grid(X, self.Y, self.output_names, mask=self.mask)
        new.exposure, new.y_std, new.coordinates, new.axes = self.exposure, self.y_std, self.coordinates, self.axes
        return new

    def take(self, rows: IntArray) -> Grid:
        """Return a copy of the table at some of its input rows."""
        Y = self.block(rows, np.arange(self.num_outputs))
        part = Grid(self.X[rows], Y, self.output_names, feature_names=self.feature_names)
        part.exposure = None if self.exposure is None else self.exposure[rows]
        part.y_std = self.y_std if self.y_std is None or len(self.y_std) == 1 else self.y_std[rows]
        return part

    def sum_by_output(self, values: FloatArray) -> FloatArray:
        """Return Σ values_n over the input rows n at which an output was observed, shape (p, k) for values (n, k)."""
        total = np.zeros((self.num_outputs, values.shape[1]))
        for rows in self.row_chunks():
            total += self.observed(rows).T.astype(np.float64) @ values[rows]
        return total

    def cross_products(self, center: FloatArray, scale: FloatArray) -> FloatArray:
        """Return Σ (y - center)(y' - center') / scale scale' of any two outputs over inputs that they share, (p, p)."""
        total = np.zeros((self.num_outputs, self.num_outputs))
        for rows in self.row_chunks():
            deviation = np.where(self.observed(rows), (self.values(rows) - center) / scale, 0.0)
            total += deviation.T @ deviation
        return total

    def compact(self) -> Grid:
        """Return the table itself: a list of its cells would hardly be smaller."""
        return self

    def to_grid(self) -> Grid:
        """Return the table itself."""
        return self


def _dense(values: Any) -> FloatArray:
    return np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=np.float64)
