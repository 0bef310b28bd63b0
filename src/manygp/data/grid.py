"""A table whose outputs share their inputs."""

from collections.abc import Hashable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from manygp.data.stored import Stored
from manygp.data.table import CHUNK_CELLS, BoolArray, FloatArray, IntArray, PlaceArray, Table
from manygp.data.tiles import Side, ahead, sides
from manygp.errors import DataError

# Cells of a block of rows that are read at once, however many a chunk should have; and cells of a part of a stored grid
# that stands for all of it.
_MOST_CELLS, _PART_CELLS = 2**25, 30_000_000
# Stretches of successive rows that such a part has at least, of a row or more.
_LEAST_STRETCHES = 32


class Grid(Table):
    """Inputs shared by all outputs, and a matrix of values with gaps.

    Parameters
    ----------
    X
        Inputs, shape (n, d).
    Y
        Values, shape (n, p); NaN means missing. Kept by reference. A `scipy.sparse.csr_array` stays sparse until rows
        or a batch of it are asked for; what it does not store are zeros, and observed. A `Stored` matrix stays where it
        is, and is read in blocks.
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
        Y: FloatArray | sparse.csr_array | Stored,
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
        if mask is not None and isinstance(Y, Stored):
            raise DataError("Y is stored, and a mask was given beside it; give the mask to as_stored.")
        # An array, a sparse array, or one that is not in memory.
        self.Y: Any = Y
        self.mask = mask

    @property
    def is_stored(self) -> bool:
        return isinstance(self.Y, Stored)

    def row_chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[slice]:
        """Yield slices over the input rows that hold about `max_cells` cells each, or as many as are read at once."""
        step = max(1, max_cells // max(1, self.num_outputs))
        if isinstance(self.Y, Stored) and self.Y.block[0] * self.num_outputs <= _MOST_CELLS:
            step = self.Y.block[0] * max(1, step // self.Y.block[0])
        for start in range(0, self.num_inputs, step):
            yield slice(start, min(start + step, self.num_inputs))

    def values(self, rows: slice) -> FloatArray:
        """Return the values of some rows, those under a False mask included, shape (rows, p)."""
        return _dense(self.Y[rows])

    def observed(self, rows: slice) -> BoolArray:
        """Return which cells of some rows are observed, shape (rows, p)."""
        return self._seen(self.values(rows), rows)

    def _seen(self, values: FloatArray, rows: slice) -> BoolArray:
        present = ~np.isnan(values)
        if self.mask is not None:
            present &= self.mask[rows]
        return present

    def block(self, rows: IntArray, outputs: IntArray) -> FloatArray:
        """Return a copy of the values at some rows and outputs, NaN where missing, shape (rows, outputs)."""
        if isinstance(self.Y, Stored):
            return _dense(self.Y.gather(rows, outputs))
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
            held = self.Y[rows]
            if sparse.issparse(held) and self.mask is None:
                row = np.repeat(np.arange(held.shape[0]), np.diff(held.indptr))
                seen, output, y = ~np.isnan(held.data), held.indices, held.data
                per_input[rows] = self.num_outputs - np.bincount(row[~seen], minlength=held.shape[0])
                per_output += held.shape[0] - np.bincount(output[~seen], minlength=self.num_outputs)
            else:
                y = _dense(held)
                seen = self._seen(y, rows)
                per_input[rows], per_output = seen.sum(axis=1), per_output + seen.sum(axis=0)
            infinite = np.isinf(y) & seen
            if infinite.any():
                first = np.argwhere(infinite)[0]
                at, column = first if len(first) == 2 else (row[first[0]], output[first[0]])
                raise DataError(
                    f"Y contains infinity (row {rows.start + at}, output {self.output_names[column]!r}); "
                    "mark missing values as NaN and remove infinite ones."
                )
        return per_input, per_output

    @property
    def num_observed(self) -> int:
        return int(self._counts[1].sum())

    def count_per_input(self) -> IntArray:
        return self._counts[0].copy()

    def count_per_output(self) -> IntArray:
        return self._counts[1].copy()

    def power_sums(self, power: int, center: FloatArray, unit: float = 1.0) -> FloatArray:
        total = np.zeros(self.num_outputs)
        for rows in self.row_chunks():
            values = self.values(rows)
            deviation = np.where(self._seen(values, rows), values, center)
            deviation -= center
            total += ((deviation / unit) ** power).sum(axis=0)
        return total

    def places(self) -> PlaceArray:
        """Return the flat positions of the observed cells in `Y`, shape (c,)."""
        self.check_in_memory()
        size = self.num_inputs * self.num_outputs
        places: PlaceArray = np.empty(self.num_observed, dtype=np.int32 if size < 2**31 else np.int64)
        start = 0
        for rows in self.row_chunks():
            found = np.flatnonzero(self.observed(rows)) + rows.start * self.num_outputs
            places[start : start + len(found)] = found
            start += len(found)
        return places

    def cells(self, places: PlaceArray) -> tuple[IntArray, IntArray, FloatArray]:
        self.check_in_memory()
        row, output = np.divmod(places.astype(np.int64), self.num_outputs)
        return row, output, np.asarray(self.Y[row, output], dtype=np.float64)

    def known_variance(self, row: IntArray, output: IntArray) -> FloatArray | None:
        if self.y_std is None:
            return None
        return np.square(np.broadcast_to(self.y_std, (self.num_inputs, self.num_outputs))[row, output])

    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        y = self.block(np.arange(self.num_inputs), np.array([output]))[:, 0]
        row = np.flatnonzero(~np.isnan(y))
        return row, y[row]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        if self.is_stored:
            at = self._some_rows(_LEAST_STRETCHES * self.num_outputs, rng)
            row, output, y = self.take(at).sample(size, rng)
            return at[row], output, y
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
        for rows in self.row_chunks(max_cells):
            values = self.values(rows)
            row, output = np.nonzero(self._seen(values, rows))
            yield row + rows.start, output, values[row, output]

    def _contents(self) -> Iterator[np.ndarray]:
        for rows in self.row_chunks():
            held = self.Y[rows]
            if sparse.issparse(held) and self.mask is None:
                yield from (held.indptr, held.indices, held.data)
                continue
            values = _dense(held)
            present = self._seen(values, rows)
            yield np.packbits(present)
            yield values[present]

    def output_chunks(self, max_cells: int) -> Iterator[tuple[slice, IntArray, IntArray, FloatArray]]:
        rows, width = np.arange(self.num_inputs), max(1, max_cells // self.num_inputs)
        # A sparse array by rows would be walked through for every few outputs.
        columns = self.Y.tocsc() if sparse.issparse(self.Y) and self.mask is None else None
        for begin in range(0, self.num_outputs, width):
            chosen = slice(begin, min(begin + width, self.num_outputs))
            of = np.arange(chosen.start, chosen.stop)
            block = self.block(rows, of) if columns is None else _dense(columns[:, chosen])
            row, output = np.nonzero(~np.isnan(block))
            yield chosen, row, output, block[row, output]

    @property
    def size(self) -> int:
        return self.num_inputs * self.num_outputs

    def with_values(self, values: FloatArray) -> "Grid":
        Y = np.full(self.num_inputs * self.num_outputs, np.nan)
        Y[self.places()] = values
        return Grid(self.X, Y.reshape(self.num_inputs, -1), self.output_names, feature_names=self.feature_names)

    def with_inputs(self, X: FloatArray) -> "Grid":
        new = Grid(X, self.Y, self.output_names, mask=self.mask)
        new.exposure, new.y_std, new.coordinates, new.axes = self.exposure, self.y_std, self.coordinates, self.axes
        return new

    def value_chunks(self) -> Iterator[FloatArray]:
        """Yield all values that were observed, some at a time; zeros of a sparse grid once for each chunk."""
        for rows in self.row_chunks():
            held = self.Y[rows]
            if sparse.issparse(held) and self.mask is None:
                zero = [0.0] if held.nnz < held.shape[0] * held.shape[1] else []
                yield np.r_[zero, held.data[~np.isnan(held.data)]]
            else:
                values = _dense(held)
                yield values[self._seen(values, rows)]

    def sides(self) -> tuple[Side, Side]:
        """Return rows and outputs as they are cut into parts that fit into memory: one part, if all of it is there."""
        n, p = self.num_inputs, self.num_outputs
        return sides((n, p), self.Y.block) if isinstance(self.Y, Stored) else (Side(n, n, 1), Side(p, p, 1))

    def tiles(self, parts: Iterable[tuple[IntArray, IntArray]]) -> "Iterator[tuple[IntArray, IntArray, Grid]]":
        """Yield parts at some rows and outputs, in memory; the next one is read while the last one is used.

        Parameters
        ----------
        parts
            Rows and outputs of each part; those of a grid in memory are all rows and all outputs.
        """
        if not isinstance(self.Y, Stored):
            return ((rows, outputs, self) for rows, outputs in parts)
        Y = self.Y
        return ahead(lambda part: (*part, Grid(self.X[part[0]], Y.gather(*part))), parts)

    def in_memory(self, rng: np.random.Generator) -> "Grid":
        if not self.is_stored:
            return self
        part = self.take(self._some_rows(_PART_CELLS, rng))
        part.axes, part.coordinates, part.is_part = self.axes, self.coordinates, True
        return part

    def _some_rows(self, max_cells: int, rng: np.random.Generator) -> IntArray:
        """Rows of about so many cells, ascending, in stretches that are read at once."""
        count = max(_LEAST_STRETCHES, max_cells // self.num_outputs)
        if count >= self.num_inputs:
            return np.arange(self.num_inputs)
        block = self.Y.block[0] if isinstance(self.Y, Stored) else 1
        length = max(1, min(block, count // _LEAST_STRETCHES))
        starts = np.sort(rng.choice(self.num_inputs // length, count // length, replace=False)) * length
        return (starts[:, None] + np.arange(length)).reshape(-1)

    def check_in_memory(self) -> None:
        """Refuse, for those who need all cells at once, a table that is stored."""
        if self.is_stored:
            raise DataError(
                f"This needs all {self.num_inputs:,} x {self.num_outputs:,} cells in memory, and they are stored "
                "elsewhere; take some rows with take(rows), or read the values first."
            )

    def take(self, rows: IntArray) -> "Grid":
        Y = self.block(rows, np.arange(self.num_outputs))
        part = Grid(self.X[rows], Y, self.output_names, feature_names=self.feature_names)
        part.exposure = None if self.exposure is None else self.exposure[rows]
        part.y_std = self.y_std if self.y_std is None or len(self.y_std) == 1 else self.y_std[rows]
        return part

    def sum_by_output(self, values: FloatArray) -> FloatArray:
        total = np.zeros((self.num_outputs, values.shape[1]))
        for rows in self.row_chunks():
            total += self.observed(rows).T.astype(np.float64) @ values[rows]
        return total

    def cross_products(self, center: FloatArray, scale: FloatArray) -> FloatArray:
        total = np.zeros((self.num_outputs, self.num_outputs))
        for rows in self.row_chunks():
            values = self.values(rows)
            deviation = np.where(self._seen(values, rows), (values - center) / scale, 0.0)
            total += deviation.T @ deviation
        return total

    def compact(self) -> "Grid":
        """Return the table itself: a list of its cells would hardly be smaller."""
        return self

    def to_grid(self) -> "Grid":
        """Return the table itself."""
        return self


def _dense(values: Any) -> FloatArray:
    return np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=np.float64)
