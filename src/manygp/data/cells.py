"""A table whose outputs have inputs of their own."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from scipy import sparse

from manygp.data.grid import Grid
from manygp.data.table import CHUNK_CELLS, FloatArray, IntArray, PlaceArray, Table
from manygp.errors import DataError

# A list of cells takes about as much memory as a grid with this many cells for each of them.
GRID_CELLS = 4


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
    def row_outputs(self) -> IntArray | None:
        """Output of each cell, shape (c,)."""
        return self.output

    @property
    def num_observed(self) -> int:
        return len(self.y)

    def count_per_output(self) -> IntArray:
        return np.bincount(self.output, minlength=self.num_outputs).astype(np.int64)

    def count_per_input(self) -> IntArray:
        return np.ones(self.num_inputs, dtype=np.int64)

    def power_sums(self, power: int, center: FloatArray, unit: float = 1.0) -> FloatArray:
        deviation = ((self.y - center[self.output]) / unit) ** power
        return np.bincount(self.output, weights=deviation, minlength=self.num_outputs).astype(np.float64)

    def places(self) -> PlaceArray:
        """Return the positions of the cells in the list, shape (c,)."""
        return np.arange(len(self.y), dtype=np.int64)

    def cells(self, places: PlaceArray) -> tuple[IntArray, IntArray, FloatArray]:
        return places.astype(np.int64), self.output[places], self.y[places]

    def known_variance(self, row: IntArray, output: IntArray) -> FloatArray | None:
        return None if self.y_std is None else np.square(self.y_std[row])

    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        row = np.flatnonzero(self.output == output)
        return row, self.y[row]

    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        return self.cells(rng.choice(len(self.y), min(size, len(self.y)), replace=False))

    def chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        for begin in range(0, len(self.y), max_cells):
            yield self.cells(np.arange(begin, min(begin + max_cells, len(self.y))))

    def _contents(self) -> Iterator[np.ndarray]:
        yield from (self.output, self.y)

    def output_chunks(self, max_cells: int) -> Iterator[tuple[slice, IntArray, IntArray, FloatArray]]:
        """Yield all outputs at once with the rows, outputs and values of all cells, which are in memory already."""
        yield slice(0, self.num_outputs), np.arange(len(self.y)), self.output, self.y

    @property
    def size(self) -> int:
        """How many numbers a copy of the values takes."""
        return len(self.y)

    def with_values(self, values: FloatArray) -> "Cells":
        return Cells(self.X, self.output, values, self.output_names, feature_names=self.feature_names)

    def with_inputs(self, X: FloatArray) -> "Cells":
        new = Cells(X, self.output, self.y, self.output_names)
        new.exposure, new.y_std, new.coordinates, new.axes = self.exposure, self.y_std, self.coordinates, self.axes
        return new

    def take(self, rows: IntArray) -> "Cells":
        """Return a copy of the table at some of its input rows, which are its cells."""
        names = {"feature_names": self.feature_names}
        part = Cells(self.X[rows], self.output[rows], self.y[rows], self.output_names, **names)
        part.exposure = None if self.exposure is None else self.exposure[rows]
        part.y_std = None if self.y_std is None else self.y_std[rows]
        return part

    def sum_by_output(self, values: FloatArray) -> FloatArray:
        p = self.num_outputs
        return np.stack([np.bincount(self.output, column, p) for column in values.T], axis=1)

    def cross_products(self, center: FloatArray, scale: FloatArray) -> FloatArray:
        X, row = np.unique(self.X, axis=0, return_inverse=True)
        deviation = (self.y - center[self.output]) / scale[self.output]
        columns = sparse.csr_array((deviation, (row.reshape(-1), self.output)), shape=(len(X), self.num_outputs))
        return np.asarray((columns.T @ columns).toarray())

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
        grid = Grid(X, Y, self.output_names, feature_names=self.feature_names)
        if self.y_std is not None:
            grid.y_std = np.full(Y.shape, np.nan)
            grid.y_std[row, self.output] = self.y_std
        return grid
