"""The observation table: what was observed, at which inputs, for which outputs.

Two layouts share one interface. A `Grid` has one row of inputs for all outputs and gaps in the values; a
`Cells` is a plain list of observations, so that every output may have inputs of its own. Neither copies the
user's values: whoever needs statistics reads them in chunks, whoever needs a minibatch gathers it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from manygp.data.axes import Axes
from manygp.data.names import checked_names
from manygp.errors import DataError

if TYPE_CHECKING:
    from manygp.data.coordinates import Coordinates
    from manygp.data.grid import Grid

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
# 32 bits where they are enough: half the memory for one number per observed cell.
PlaceArray = npt.NDArray[np.signedinteger[Any]]

# About 8 MB of float64: large enough for numpy to be efficient, small beside any table worth chunking.
CHUNK_CELLS = 1_000_000


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
    #: Known standard deviations of the noise: of a grid what broadcasts to (n, p), of a list of cells (c,).
    y_std: FloatArray | None = None
    #: Whether it is a part of a larger table, at some rows, that stands for all of it.
    is_part: bool = False
    #: Where outputs are, for models that know what to make of it.
    coordinates: "Coordinates | None" = None

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
    def row_outputs(self) -> IntArray | None:
        """Output of each input row where rows are cells, shape (n,); None where outputs share their inputs."""
        return None

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
    def known_variance(self, row: IntArray, output: IntArray) -> FloatArray | None:
        """Return the known variance of the noise of some cells, None where nothing is known of it."""

    @abstractmethod
    def column(self, output: int) -> tuple[IntArray, FloatArray]:
        """Return input rows and values of the observed cells of one output."""

    @abstractmethod
    def sample(self, size: int, rng: np.random.Generator) -> tuple[IntArray, IntArray, FloatArray]:
        """Return input rows, outputs and values of about `size` observed cells drawn at random."""

    @abstractmethod
    def chunks(self, max_cells: int = CHUNK_CELLS) -> Iterator[tuple[IntArray, IntArray, FloatArray]]:
        """Yield input rows, outputs and values of all observed cells in the order of `places`, some at a time."""

    def value_chunks(self) -> Iterator[FloatArray]:
        """Yield all values that were observed, some at a time, those that occur often perhaps only once."""
        for _, _, values in self.chunks():
            yield values

    @property
    def is_stored(self) -> bool:
        """Whether the values are not in memory, nor would be."""
        return False

    def in_memory(self, rng: np.random.Generator) -> "Table":
        """Return the table itself, or a part of it at random rows if it is stored."""
        return self

    @abstractmethod
    def output_chunks(self, max_cells: int) -> Iterator[tuple[slice, IntArray, IntArray, FloatArray]]:
        """Yield some successive outputs at a time; rows, outputs (counted from the first) and values of their cells."""

    def digest(self) -> str:
        """Return a text that is another one for other observations, names, exposures, known noise or coordinates."""
        told = hashlib.blake2b(repr((type(self).__name__, self.X.shape, self.output_names)).encode(), digest_size=16)
        told.update(self.X.tobytes())
        for part in self._contents():
            told.update(part.tobytes())
        if self.exposure is not None:
            told.update(self.exposure.tobytes())
        if self.y_std is not None:
            told.update(self.y_std.tobytes())
        if self.coordinates is not None:
            told.update(self.coordinates.features.tobytes())
        return told.hexdigest()

    @abstractmethod
    def _contents(self) -> Iterator[np.ndarray]:
        """Yield arrays that together say which cells were observed, and their values."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers a copy of the values takes, gaps included."""

    @abstractmethod
    def with_values(self, values: FloatArray) -> "Table":
        """Return a table with other values of the observed cells, in the order of `places`, shape (c,)."""

    @abstractmethod
    def with_inputs(self, X: FloatArray) -> "Table":
        """Return the same observations, without copying them, at inputs that are told otherwise, shape (n, d')."""

    @abstractmethod
    def take(self, rows: IntArray) -> "Table":
        """Return a copy of the table at some of its input rows."""

    @abstractmethod
    def sum_by_output(self, values: FloatArray) -> FloatArray:
        """Return Σ values_n over the input rows n at which an output was observed, shape (p, k) for values (n, k)."""

    @abstractmethod
    def cross_products(self, center: FloatArray, scale: FloatArray) -> FloatArray:
        """Return Σ (y - center)(y' - center') / scale scale' of any two outputs over inputs that they share, (p, p)."""

    @abstractmethod
    def compact(self) -> "Table":
        """Return the same observations in the layout that takes less memory."""

    @abstractmethod
    def to_grid(self) -> "Grid":
        """Return the same observations as a grid."""

    @abstractmethod
    def power_sums(self, power: int, center: FloatArray, unit: float = 1.0) -> FloatArray:
        """Return Σ ((y - center) / unit)ᵖᵒʷᵉʳ over the observed cells of every output, shape (p,).

        Parameters
        ----------
        power
            Exponent, at least 1.
        center
            What to subtract from each output first, shape (p,).
        unit
            What to divide by, where powers would be out of the range of numbers.
        """
