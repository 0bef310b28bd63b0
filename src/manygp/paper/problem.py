"""What a data set poses: cells to learn from and cells to predict."""

from dataclasses import dataclass

import numpy as np

from manygp.data import Grid
from manygp.data.table import FloatArray


@dataclass(frozen=True, eq=False)
class Problem:
    """A table and its split."""

    #: What is learnt from and what is predicted. They share inputs, and outputs unless these are new.
    train: Grid
    test: Grid
    #: Where the outputs are, shape (p, 2): north and east. None if they are nowhere.
    places: FloatArray | None = None
    #: The same in the units that models see.
    coordinates: FloatArray | None = None
    #: The same for the outputs of `test`, if these are others than those of `train`.
    new_places: FloatArray | None = None
    new_coordinates: FloatArray | None = None
    #: Whether places are in degrees.
    is_globe: bool = True
    #: Unit of the values.
    unit: str = ""
    #: From the table's values to the unit: center + scale * value.
    center: float = 0.0
    scale: float = 1.0
    #: What the input measures.
    input_label: str = "input"
    #: Whether the values are counts; then scores plug in the mean of f, as the paper does.
    is_counts: bool = False
    #: Names of outputs that figures show first.
    shown: tuple[str, ...] = ()

    @property
    def has_new_outputs(self) -> bool:
        """Whether the outputs to predict were never observed."""
        return self.new_coordinates is not None


def values_of(table: Grid) -> FloatArray:
    """The values of a grid with NaN where they are missing or belong to the other part, shape (n, p)."""
    return table.Y if table.mask is None else np.where(table.mask, table.Y, np.nan)
