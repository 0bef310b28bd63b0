"""The observation table: what was observed, at which inputs, for which outputs.

Two layouts share one interface. A `Grid` has one row of inputs for all outputs and gaps in the values; a
`Cells` is a plain list of observations, so that every output may have inputs of its own. Neither copies the
user's values: whoever needs statistics reads them in chunks, whoever needs a minibatch gathers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from manygp.data.axes import Axes
from manygp.data.names import checked_names
from manygp.errors import DataError

if TYPE_CHECKING:
    from manygp.data.coordinates import Coordinates

__all__ = ["BoolArray", "Cells", "FloatArray", "Grid", "IntArray", "PlaceArray", "Table"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
# 32 bits where they are enough: half the memory for one number per observed cell.
PlaceArray = npt.NDArray[np.signedinteger[Any]]

# About 8 MB of float64: large enough for numpy to be efficient, small beside any table worth chunking.
CHUNK_CELLS = 1_000_000
# A list of cells takes about as much memory as a grid with this many cells for each of them.
GRID_CELLS = 4


class Table(ABC):
    """Observations of many outputs, with names for the outputs.

    Parameters
    ----------
    X
        Inputs, shape (n, d).
    num_outputs
        Number of outputs, those without a single observation included.
    output_names
        One distinct hashable name per output; 0, 1, 2, ... when not given.
    feature_names
        One name per input column, when the user's container had them.
    """

    #: What the means of counts are multiplied by at every input, shape (n,); None where there is no such thing.
    exposure: FloatArray | None = None
    #: Where outputs are, for models that know what to make of it.
    coordinates: Coordinates | None = None

    def __init__(
        self,
        X: FloatArray,
        num_outputs: int,
        output_names: Iterable[Hashable] | None,
        feature_names: Iterable[str] | None,
    ) -> None:
        if X.ndim != 2:
            raise DataError(f"X has shape {X.shape}; expected (inputs, features), so give a 2-D array.")
        self.X = X
        self.output_names = checked_names(output_names, num_outputs)
        self.feature_names = None if feature_names is None else tuple(feature_names)
        #: What the user's container calls inputs and outputs.
        self.axes = Axes(self.feature_names or ())

    @property
    def num_inputs(self) -> int:
        """Number of rows of `X`."""
        return int(self.X.shape[0])

    @property
    def num_features(self) -> int:
        """Number of columns of `X`."""
        return int(self.X.shape[1])

    @property
    def num_outputs(self) -> int:
        """Number of outputs, those without observations included."""
        return len(self.output_names)

    @property
    @abstractmethod
    def num_observed(self) -> int:
        """Number of observed cells."""

    @abstractmethod
    def count_per_output(self) -> IntArray:
        """Return the number of observed cells of every output, shape (p,)."""

    @abstractmethod
    def count_per_input(self) -> IntArray:
        """Return the number of observed cells of every input row, shape (n,)."""

    @abstractmethod
    def places(self) -> PlaceArray:
        """Return one number per observed cell that says where the layout keeps it, ascending, shape (c,)."""

    @abstractmethod
    def cells(self, places: PlaceArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input row, output and value of the cells at some places, each of shape (b,)."""

    @abstractmethod
    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        """Return input rows and values of the observed cells of one output."""

    @abstractmethod
    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input rows, outputs and values of about `size` observed cells drawn at random."""

    @abstractmethod
    def chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield input rows, outputs and values of all observed cells in the order of `places`, some at a time."""

    @abstractmethod
    def with_values(self, values: FloatArray) -> Table:
        """Return a table with other values of the observed cells, in the order of `places`, shape (c,)."""

    @abstractmethod
    def take(self, rows: IntArray) -> Table:
        """Return a copy of the table at some of its input rows."""

    @abstractmethod
    def sum_by_output(self, values: FloatArray) -> FloatArray:
        """Return Σ values_n over the input rows n at which an output was observed, shape (p, k) for values (n, k)."""

    @abstractmethod
    def compact(self) -> Table:
        """Return the same observations in the layout that takes less memory."""

    @abstractmethod
    def to_grid(self) -> Grid:
        """Return the same observations as a grid."""

    @abstractmethod
    def power_sums(self, power: int, center: FloatArray) -> FloatArray:
        """Return Σ (y - center)ᵖᵒʷᵉʳ over the observed cells of every output, shape (p,).

        Parameters
        ----------
        power
            Exponent, at least 1.
        center
            What to subtract from each output first, shape (p,).
        """


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

    def power_sums(self, power: int, center: FloatArray) -> FloatArray:
        """Return Σ (y - center)ᵖᵒʷᵉʳ over the observed cells of every output, shape (p,)."""
        total = np.zeros(self.num_outputs)
        for rows in self.row_chunks():
            deviation = np.where(self.observed(rows), self.values(rows), center)
            deviation -= center
            total += (deviation**power).sum(axis=0)
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

    def with_values(self, values: FloatArray) -> Grid:
        """Return a table with other values of the observed cells, in the order of `places`, shape (c,)."""
        Y = np.full(self.num_inputs * self.num_outputs, np.nan)
        Y[self.places()] = values
        return Grid(self.X, Y.reshape(self.num_inputs, -1), self.output_names, feature_names=self.feature_names)

    def take(self, rows: IntArray) -> Grid:
        """Return a copy of the table at some of its input rows."""
        Y = self.block(rows, np.arange(self.num_outputs))
        part = Grid(self.X[rows], Y, self.output_names, feature_names=self.feature_names)
        part.exposure = None if self.exposure is None else self.exposure[rows]
        return part

    def sum_by_output(self, values: FloatArray) -> FloatArray:
        """Return Σ values_n over the input rows n at which an output was observed, shape (p, k) for values (n, k)."""
        total = np.zeros((self.num_outputs, values.shape[1]))
        for rows in self.row_chunks():
            total += self.observed(rows).T.astype(np.float64) @ values[rows]
        return total

    def compact(self) -> Grid:
        """Return the table itself: a list of its cells would hardly be smaller."""
        return self

    def to_grid(self) -> Grid:
        """Return the table itself."""
        return self


def _dense(values: Any) -> FloatArray:
    return np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=np.float64)


class Cells(Table):
    """A list of observations, each with its own input.

    Parameters
    ----------
    X
        Input of each cell, shape (c, d).
    output
        Position of the output of each cell in `output_names`, shape (c,).
    y
        Value of each cell, shape (c,).
    output_names
        One name per output; 0, 1, ... up to the largest position when not given.
    feature_names
        One name per column of `X`.
    """

    def __init__(
        self,
        X: FloatArray,
        output: IntArray,
        y: FloatArray,
        output_names: Sequence[Hashable] | None = None,
        *,
        feature_names: Iterable[str] | None = None,
    ) -> None:
        if not len(X) == len(output) == len(y):
            raise DataError(
                f"Cells have {len(X)} inputs, {len(output)} outputs and {len(y)} values; "
                "give one of each for every cell."
            )
        largest = int(output.max(initial=-1))
        num_outputs = largest + 1 if output_names is None else len(output_names)
        if largest >= num_outputs or output.min(initial=0) < 0:
            raise DataError(
                f"Cells refer to outputs {output.min()} to {largest} and there are {num_outputs} names; "
                f"give positions from 0 to {num_outputs - 1}."
            )
        super().__init__(X, num_outputs, output_names, feature_names)
        self.output = output
        self.y = y

    @property
    def num_observed(self) -> int:
        """Number of observed cells."""
        return len(self.y)

    def count_per_output(self) -> IntArray:
        """Return the number of observed cells of every output, shape (p,)."""
        return np.bincount(self.output, minlength=self.num_outputs).astype(np.int64)

    def count_per_input(self) -> IntArray:
        """Return the number of observed cells of every input row, which is one, shape (n,)."""
        return np.ones(self.num_inputs, dtype=np.int64)

    def power_sums(self, power: int, center: FloatArray) -> FloatArray:
        """Return Σ (y - center)ᵖᵒʷᵉʳ over the observed cells of every output, shape (p,)."""
        deviation = (self.y - center[self.output]) ** power
        return np.bincount(self.output, weights=deviation, minlength=self.num_outputs).astype(np.float64)

    def places(self) -> PlaceArray:
        """Return the positions of the cells in the list, shape (c,)."""
        return np.arange(len(self.y), dtype=np.int64)

    def cells(self, places: PlaceArray) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input row, output and value of the cells at some places, each of shape (b,)."""
        return places.astype(np.int64), self.output[places], self.y[places]

    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        """Return input rows and values of the observed cells of one output."""
        row = np.flatnonzero(self.output == output)
        return row, self.y[row]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input rows, outputs and values of at most `size` observed cells drawn at random."""
        return self.cells(rng.choice(len(self.y), min(size, len(self.y)), replace=False))

    def chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield input rows, outputs and values of all observed cells in the order of `places`, some at a time."""
        for begin in range(0, len(self.y), max_cells):
            yield self.cells(np.arange(begin, min(begin + max_cells, len(self.y))))

    def with_values(self, values: FloatArray) -> Cells:
        """Return a table with other values of the observed cells, in the order of `places`, shape (c,)."""
        return Cells(self.X, self.output, values, self.output_names, feature_names=self.feature_names)

    def take(self, rows: IntArray) -> Cells:
        """Return a copy of the table at some of its input rows, which are its cells."""
        names = {"feature_names": self.feature_names}
        part = Cells(self.X[rows], self.output[rows], self.y[rows], self.output_names, **names)
        part.exposure = None if self.exposure is None else self.exposure[rows]
        return part

    def sum_by_output(self, values: FloatArray) -> FloatArray:
        """Return Σ values_n over the input rows n at which an output was observed, shape (p, k) for values (n, k)."""
        p = self.num_outputs
        return np.stack([np.bincount(self.output, column, p) for column in values.T], axis=1)

    def compact(self) -> Table:
        """Return the same observations as a grid if that is no larger than a few times the cells, else as they are."""
        X, row, is_repeated = self._rows()
        if self.exposure is not None or is_repeated or len(X) * self.num_outputs > GRID_CELLS * len(self.y):
            return self
        grid = self._grid(X, row)
        grid.coordinates = self.coordinates
        return grid

    def to_grid(self) -> Grid:
        """Return the same observations as a grid over the distinct inputs.

        The grid has one row per distinct input and one column per output, so this pays where outputs share
        their inputs. Two cells with the same input and output do not fit and raise a `DataError`.
        """
        X, row, is_repeated = self._rows()
        if is_repeated:
            raise DataError(
                "Some output has several values at one input, and a grid holds one for each; average them, "
                "or keep the cells as they are."
            )
        return self._grid(X, row)

    def _rows(self) -> tuple[FloatArray, IntArray, bool]:
        """Distinct inputs, the row of every cell among them, and whether two cells have the same row and output."""
        X, row = np.unique(self.X, axis=0, return_inverse=True)
        row = row.reshape(-1)
        return X, row, len(np.unique(row * self.num_outputs + self.output)) < len(row)

    def _grid(self, X: FloatArray, row: IntArray) -> Grid:
        Y = np.full((len(X), self.num_outputs), np.nan)
        Y[row, self.output] = self.y
        return Grid(X, Y, self.output_names, feature_names=self.feature_names)
