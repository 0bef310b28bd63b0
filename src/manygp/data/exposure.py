"""What users know of cells beside their values: exposure of counts, and standard deviations of noise."""

from typing import Any

import numpy as np
import pandas as pd

from manygp.data.adapters import own_names
from manygp.data.cells import Cells
from manygp.data.grid import Grid
from manygp.data.labels import check_rows
from manygp.data.names import find_outputs, given_names
from manygp.data.numbers import as_numbers, as_pandas
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


def as_y_std(y_std: Any, table: Table, y: Any = None) -> FloatArray:
    """Return known standard deviations as validated numbers that broadcast to (n, p).

    `y_std` is a number; one for each output, in order or by name (a dictionary or Series); one for each input, shape
    (n, 1); or one for each cell, in a container like that of the values y. One axis of as many numbers as there are
    inputs are those of inputs, if there are not as many outputs.
    """
    if table.is_stored:
        raise DataError("y_std needs all cells in memory, and this table is stored elsewhere; read its values first.")
    if table.row_outputs is not None:
        return observed_y_std(y_std, table.cells(table.places())[2])
    n, p = table.num_inputs, table.num_outputs
    y_std = pd.Series(y_std) if isinstance(y_std, dict) else as_pandas(y_std)
    if isinstance(y_std, pd.Series) and set(table.output_names) <= set(given_names(y_std.index)):
        y_std = as_numbers(y_std, "y_std")[find_outputs(given_names(y_std.index), table.output_names)]
    names = own_names(y_std) if getattr(y_std, "ndim", 0) > 1 else None
    if y is not None and names is not None:
        check_rows(y, y_std, ("y", "y_std"))
    values = as_numbers(y_std, "y_std", allow_dates=False)
    if values.ndim > 1:
        values = values.reshape(len(values), -1)
    if names is not None and values.shape[1] > 1:
        values = values[:, find_outputs(tuple(names), table.output_names)]
    if values.ndim == 1:
        if len(values) == n == p:
            raise DataError(
                f"y_std has {n} numbers for {n} inputs and {n} outputs; give shape ({n}, 1) for those of inputs, "
                f"(1, {n}) for those of outputs."
            )
        values = values.reshape((n, 1) if len(values) == n else (1, -1))
    values = values.reshape(1, 1) if values.ndim == 0 else values
    if values.shape[0] not in (1, n) or values.shape[1] not in (1, p):
        raise DataError(
            f"y_std has shape {values.shape}, but y has {(n, p)}; give one number for each cell, output or input."
        )
    _check(np.broadcast_to(values, (n, p))[table.cells(table.places())[:2]] if n * p else values)
    return values


def observed_y_std(y_std: Any, y: Any) -> FloatArray:
    """Return the known standard deviations, given for each cell or for all, of those cells that have a value, (c,)."""
    kept = ~np.isnan(as_numbers(as_pandas(y), "y"))
    values = as_numbers(as_pandas(y_std), "y_std", allow_dates=False)
    if values.shape not in ((), kept.shape):
        raise DataError(f"y_std has shape {values.shape} and there are {len(kept)} cells; give one number for each.")
    values = np.broadcast_to(values, kept.shape)[kept]
    _check(values)
    return values


def _check(values: FloatArray) -> None:
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if len(wrong):
        raise DataError(
            f"y_std holds {wrong[0]:g} where y is observed; give finite numbers of at least 0, 0 where there is no "
            "noise but the one that is learnt."
        )
