"""What a data set poses: cells to learn from and cells to predict."""

from dataclasses import dataclass

import numpy as np

from manygp.data import Grid
from manygp.data.table import FloatArray


@dataclass(frozen=True, eq=False)
class Problem:
    """A table and its split.

    Parameters
    ----------
    train, test
        What is learnt from and what is predicted. They share inputs, and outputs unless these are new.
    places
        Where the outputs are, shape (p, 2): north and east. None if they are nowhere.
    coordinates
        The same in the units that models see.
    new_places, new_coordinates
        The same for the outputs of `test`, if these are others than those of `train`.
    is_globe
        Whether places are in degrees.
    unit
        Unit of the values.
    center, scale
        From the table's values to the unit: center + scale * value.
    input_label
        What the input measures.
    is_counts
        Whether the values are counts; then scores plug in the mean of f, as the paper does.
    shown
        Names of outputs that figures show first.
    """

    train: Grid
    test: Grid
    places: FloatArray | None = None
    coordinates: FloatArray | None = None
    new_places: FloatArray | None = None
    new_coordinates: FloatArray | None = None
    is_globe: bool = True
    unit: str = ""
    center: float = 0.0
    scale: float = 1.0
    input_label: str = "input"
    is_counts: bool = False
    shown: tuple[str, ...] = ()

    @property
    def has_new_outputs(self) -> bool:
        """Whether the outputs to predict were never observed."""
        return self.new_coordinates is not None


def values_of(table: Grid) -> FloatArray:
    """The values of a grid with NaN where they are missing or belong to the other part, shape (n, p)."""
    return table.Y if table.mask is None else np.where(table.mask, table.Y, np.nan)
