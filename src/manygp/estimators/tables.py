"""What a user gives to fit or to score a model, as a table."""

from collections.abc import Hashable, Sequence
from typing import Any

from manygp.data import Cells, Grid, Table, as_table, cells_table
from manygp.data.exposure import observed_exposure
from manygp.data.labels import input_frame
from manygp.errors import DataError


def given_table(
    X: Any,
    y: Any = None,
    mask: Any = None,
    output_names: Sequence[Hashable] | None = None,
    layer: str | None = None,
    inputs: Sequence[Hashable] | None = None,
) -> Table:
    """Return observations as a validated table of the model's own."""
    if not isinstance(X, Table):
        return as_table(X, y, mask, output_names, layer, inputs)
    others = {"y": y, "mask": mask, "output_names": output_names, "layer": layer, "inputs": inputs}
    for name, value in others.items():
        if value is not None:
            raise DataError(
                f"X is a {type(X).__name__}, which holds all of the data, and {name} was given too; leave {name} out."
            )
    rows = input_frame(X)
    if isinstance(X, Cells):
        cells = cells_table(rows, cell_names(X, X.output_names), X.y, X.output_names)
        cells.exposure = None if X.exposure is None else observed_exposure(X.exposure, X.y)
        cells.axes, cells.y_std = X.axes, X.y_std
        return cells
    assert isinstance(X, Grid)
    grid = as_table(rows, X.Y, X.mask, X.output_names)
    grid.exposure, grid.axes, grid.y_std = X.exposure, X.axes, X.y_std
    return grid


def cell_names(table: Cells, names: Sequence[Hashable]) -> list[Hashable]:
    """Return the name of the output of each cell, given one for each output."""
    return [names[i] for i in table.output]
