"""Standard deviations of the noise that users know, for cells, inputs or outputs."""

from typing import Any

import numpy as np
import pandas as pd

from manygp.data.adapters import own_names
from manygp.data.labels import check_rows
from manygp.data.names import find_outputs, given_names
from manygp.data.numbers import as_numbers, as_pandas
from manygp.data.table import FloatArray, Table
from manygp.errors import DataError


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
