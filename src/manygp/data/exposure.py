"""Exposure of input rows: what the means of their counts are multiplied by."""

from typing import Any

import numpy as np

from manygp.data.cells import Cells
from manygp.data.grid import Grid
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray, Table
from manygp.errors import DataError


def as_exposure(exposure: Any, table: Table | int) -> FloatArray:
    """Return an exposure for each row of a table, or of so many, shape (n,); "auto" for the table's size factors."""
    if isinstance(exposure, str):
        if exposure == "auto" and isinstance(table, Table):
            return size_factors(table)
        automatic = ' or "auto"' if isinstance(table, Table) else ""
        raise DataError(f"exposure={exposure!r} is unknown; give one positive number for each row{automatic}.")
    rows = table.num_inputs if isinstance(table, Table) else table
    values = as_numbers(exposure, "exposure").reshape(-1)
    if len(values) != rows:
        raise DataError(f"exposure has {len(values)} numbers and there are {rows} rows; give one for each row.")
    if not (np.isfinite(values) & (values > 0)).all():
        wrong = values[~(np.isfinite(values) & (values > 0))][0]
        raise DataError(f"exposure holds {wrong:g}; give positive finite numbers.")
    return values


def observed_exposure(exposure: Any, y: Any) -> Any:
    """Return the exposure of those cells of a list that have a value; "auto" is for all of them and stays."""
    if isinstance(exposure, str):
        return exposure
    observed = ~np.isnan(as_numbers(y, "y"))
    return as_exposure(exposure, len(observed))[observed]


def size_factors(table: Table) -> FloatArray:
    """Estimate the exposure of every row: its total over what the same cells hold on average, shape (n,).

    Only observed cells count, each against the mean of its own output, so gaps do not make a row look small. Half a
    count at the average rate keeps rows of zeros positive; rows without a cell have 1.
    """
    mean = table.power_sums(1, np.zeros(table.num_outputs)) / np.maximum(table.count_per_output(), 1)
    if isinstance(table, Cells):
        # The rows of a list are single cells, of which each place says too little.
        row = np.unique(table.X, axis=0, return_inverse=True)[1].reshape(-1)
        of_place = [np.asarray(np.bincount(row, part), dtype=np.float64) for part in (table.y, mean[table.output])]
        return _ratio(*of_place)[row]
    assert isinstance(table, Grid)
    total, expected = np.zeros(table.num_inputs), np.zeros(table.num_inputs)
    for rows in table.row_chunks():
        observed = table.observed(rows)
        total[rows] = np.where(observed, table.values(rows), 0.0).sum(1)
        expected[rows] = observed @ mean
    return _ratio(total, expected)


def _ratio(total: FloatArray, expected: FloatArray) -> FloatArray:
    # Values that are no counts may have any sum; they are refused where the likelihood is known.
    return np.asarray(np.maximum(total + 0.5, 1e-6) / np.maximum(expected + 0.5, 1e-6))
