"""From the containers people have (lists, numpy, scipy, pandas, xarray, AnnData) to a validated `Table`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from manygp.data.cells import Cells
from manygp.data.containers import OTHER_FRAMES, container_of
from manygp.data.frames import chosen_inputs
from manygp.data.grid import Grid
from manygp.data.labels import aligned_mask, annotated_values, axes_of, check_rows, input_frame, is_annotated
from manygp.data.names import given_names, label_cells
from manygp.data.numbers import as_numbers, as_pandas, is_dataarray, is_dataset
from manygp.data.stored import SMALL, Stored, as_stored
from manygp.data.table import BoolArray, FloatArray
from manygp.errors import DataError

__all__ = ["as_inputs", "as_table", "cells_table", "own_features", "own_inputs", "own_names"]

# Squares of larger inputs are beyond double precision.
_LARGEST_INPUT = 1e150


def as_table(
    X: Any,
    Y: Any = None,
    mask: Any = None,
    output_names: Iterable[Hashable] | None = None,
    layer: str | None = None,
    inputs: Sequence[Hashable] | None = None,
) -> Grid:
    """Return inputs and values as a validated grid that refers to the values without copying float64 ones.

    Parameters
    ----------
    X
        Inputs, (n, d); a frame's columns become the feature names. None takes the inputs from the first
        dimension of a DataArray `Y`, or from the index of a frame `Y`; either may come alone, as X without Y. An
        AnnData brings everything: the places of its observations as inputs, its values, and its variables as outputs.
        Labels of rows, if X and Y both have some, must be the same.
    Y
        Values, (n, p) or (n,), NaN where missing; a frame's columns become the output names. All dimensions
        of a DataArray but the first are stacked into outputs named by their coordinates; of a field with several such
        dimensions, places that were never observed are left out. A scipy sparse matrix stays sparse, its zeros
        observed. What is too large for memory stays on disk: a memory map, an HDF5 dataset, a Zarr array, a DataArray
        over dask, with all of its places, the values of a backed AnnData, or a `Stored` matrix of any size.
    mask
        True where a cell is observed, of the shape of `Y`; in the order of its labels if both have some.
    output_names
        Names for the outputs in place of those found in `Y`.
    layer
        Layer of an AnnData that holds the values; its `X` by default.
    inputs
        Columns of a frame of values that hold the inputs, where its index does not.
    """
    container = container_of(X if Y is None else Y)
    X, Y, mask = as_pandas(X), as_pandas(Y), as_pandas(mask)
    if Y is None and container != "numpy":
        X, Y = None, X
    if inputs is not None or (X is None and container in OTHER_FRAMES):
        if X is not None or not isinstance(Y, pd.DataFrame):
            raise DataError("inputs= names columns of a frame of values; give the frame alone, or X without inputs=.")
        X, Y = chosen_inputs(Y, inputs)
    if is_annotated(X):
        if Y is not None:
            raise DataError("X is an AnnData, which holds the values itself, and Y was given too; leave Y out.")
        output_names = own_names(X) if output_names is None else output_names
        Y = annotated_values(X, layer)
    elif layer is not None:
        raise DataError(f"layer={layer!r} belongs to an AnnData, and X is a {type(X).__name__}; leave it out.")
    if Y is None and is_dataset(X):
        raise DataError(_about_dataset(X))
    if Y is None:
        raise DataError("A model requires y to be passed, but the target y is None; give the observed values as Y.")
    if is_dataset(Y):
        raise DataError(_about_dataset(Y))
    if X is None:
        X = own_inputs(Y)
    numbers = as_inputs(X)
    _warn_of_counters(X)
    check_rows(X, Y)
    names = own_names(Y) if output_names is None else output_names
    mask = aligned_mask(mask, Y)
    stored = as_stored(Y, mask)
    values: Any
    observed: BoolArray | None
    if stored is not None and (isinstance(Y, Stored) or stored.num_stored > SMALL):
        values, observed = stored, None
    else:
        if stored is not None and not isinstance(Y, np.ndarray) and not is_dataarray(Y):
            Y, mask = stored[:], None
        values = _as_csr(Y, "Y") if sparse.issparse(Y) else _as_matrix(as_numbers(Y, "Y", allow_dates=False), Y, "Y")
        observed = _as_mask(Y, mask, values)
    if values.shape[1] == 0:
        raise DataError(f"Y has no output (shape={values.shape}); give at least one column.")
    if output_names is None and is_dataarray(Y) and Y.ndim > 2 and names is not None and values is not stored:
        names, values, observed = _without_empty(tuple(names), values, observed)
    table = Grid(numbers, values, names, mask=observed, feature_names=own_features(X))
    table.axes = replace(axes_of(X, Y if output_names is None else None), container=container)
    if not table.num_observed:
        raise DataError("Y has no observed cell: every value is NaN or masked; give at least one observed value.")
    return table


def cells_table(
    x: Any,
    outputs: Any,
    y: Any,
    output_names: Iterable[Hashable] | None = None,
) -> Cells:
    """Return a list of observations as a validated table; cells whose value is NaN are left out.

    Parameters
    ----------
    x
        Input of each cell, (c, d).
    outputs
        Name of the output of each cell, (c,).
    y
        Value of each cell, (c,).
    output_names
        All output names in order, for outputs without a cell or an order of one's own; by default the sorted
        distinct names in `outputs`, or the categories of a categorical.
    """
    container = container_of(y)
    x, outputs, y = as_pandas(x), as_pandas(outputs), as_pandas(y)
    inputs = as_inputs(x, name="x")
    _warn_of_counters(x)
    check_rows(x, y, ("x", "y"))
    check_rows(x, outputs, ("x", "outputs"))
    values = as_numbers(y, "y", allow_dates=False)
    if values.ndim != 1 or len(values) != len(inputs):
        raise DataError(f"x has {len(inputs)} rows and y has shape {values.shape}; give one value for each row of x.")
    if np.isinf(values).any():
        raise DataError("y contains infinity; mark missing values as NaN and remove infinite ones.")
    labels, names = label_cells(outputs, None if output_names is None else given_names(output_names))
    if len(labels) != len(values):
        raise DataError(f"There are {len(values)} cells and {len(labels)} outputs; name one output for each cell.")
    kept = ~np.isnan(values)
    if not kept.any():
        raise DataError("y has no observed cell: every value is NaN or there is none; give at least one value.")
    if not kept.all():
        inputs, labels, values = inputs[kept], labels[kept], values[kept]
    table = Cells(inputs, labels, values, names, feature_names=own_features(x))
    label, output = getattr(y, "name", None), getattr(outputs, "name", None)
    table.axes = replace(
        axes_of(x),
        outputs=("output" if output is None else str(output),),
        container=container,
        label=None if label is None else str(label),
    )
    return table


def as_inputs(X: Any, num_features: int | None = None, *, model: str = "the model", name: str = "X") -> FloatArray:
    """Return inputs as a validated float64 matrix, shape (n, d).

    Parameters
    ----------
    X
        A 2-D array-like or frame; a Series, Index or 1-D DataArray is taken as one column, a MultiIndex as one for
        each level, and of an AnnData the places of its observations. Datetimes become days since 1970.
    num_features
        Number of columns that the model was fitted with.
    model, name
        What to call the model and the inputs in an error.
    """
    if is_dataset(X):
        dimension = next(iter(X.sizes), "time")
        raise DataError(
            f"{name} is an xarray Dataset; inputs are one of its coordinates, such as {name}[{dimension!r}]."
        )
    numbers = as_numbers(input_frame(X), name)
    if numbers.ndim != 2:
        raise DataError(
            f"Expected 2D array, got {numbers.ndim}D array of shape {numbers.shape} for {name}. "
            f"Reshape your data: {name}.reshape(-1, 1) for one feature, {name}.reshape(1, -1) for one input."
        )
    rows, features = numbers.shape
    if features == 0:
        raise DataError(f"{name} has 0 feature(s) (shape={numbers.shape}) while a minimum of 1 is required.")
    if num_features is not None and features != num_features:
        raise DataError(f"{name} has {features} features, but {model} is expecting {num_features} features as input.")
    if rows == 0:
        raise DataError(f"{name} has 0 rows (shape={numbers.shape}) while a minimum of 1 is required.")
    if not np.isfinite(numbers).all():
        raise DataError(f"{name} contains NaN or infinity; inputs must be known, so drop or fill those rows.")
    largest = np.abs(numbers).max()
    if largest > _LARGEST_INPUT:
        raise DataError(f"{name} contains {largest:.3g}, which is too large to square; divide it by a large number.")
    return numbers


def _without_empty(
    names: tuple[Hashable, ...], values: FloatArray, observed: BoolArray | None
) -> tuple[tuple[Hashable, ...], FloatArray, BoolArray | None]:
    """Outputs of a field that were observed at all: land, say, has no temperature of the sea."""
    present = ~np.isnan(values) if observed is None else ~np.isnan(values) & observed
    kept = present.any(axis=0)
    if kept.all() or not kept.any():
        return names, values, observed
    chosen = tuple(names[i] for i in np.flatnonzero(kept))
    return chosen, values[:, kept], None if observed is None else observed[:, kept]


def own_inputs(Y: Any) -> Any:
    """Return the inputs that a DataArray or a frame of values brings along."""
    if is_dataarray(Y) and Y.ndim:
        first = Y.dims[0]
        times = [dimension for dimension in Y.dims if _is_time(Y.indexes.get(dimension))]
        if times and first not in times:
            raise DataError(
                f"The first dimension of Y, {first!r}, would be the input, but {times[0]!r} holds times; give "
                f"Y.transpose({times[0]!r}, ...), or X=Y[{first!r}] if you mean it."
            )
        return Y.indexes[first] if first in Y.indexes else pd.RangeIndex(Y.shape[0], name=first)
    if isinstance(Y, pd.DataFrame):
        _warn_of_row_numbers(Y)
    if isinstance(Y, pd.DataFrame | pd.Series):
        return Y.index
    raise DataError(f"X is None and Y is a {type(Y).__name__} without input coordinates; give X, one row per row of Y.")


def _warn_of_row_numbers(Y: pd.DataFrame) -> None:
    """Warn where an input seems to have been left among the outputs, as `reset_index` does."""
    is_counted = isinstance(Y.index, pd.RangeIndex) and Y.index.name is None
    if not is_counted or Y.shape[1] < 2 or len(Y) < 3 or not pd.api.types.is_numeric_dtype(first := Y.iloc[:, 0]):
        return
    if first.notna().all() and first.is_monotonic_increasing and first.is_unique:
        name = Y.columns[0]
        warnings.warn(
            f"X is None and the index of Y only counts its rows, so the rising column {name!r} is taken for an output: "
            f"if it is the input, give Y.set_index({name!r}).",
            UserWarning,
            stacklevel=5,
        )


def _warn_of_counters(X: Any) -> None:
    """Warn where an input only counts the rows beside one that holds dates."""
    if not isinstance(X, pd.DataFrame) or len(X) < 3:
        return
    dates = [name for name in X.columns if pd.api.types.is_datetime64_any_dtype(X[name])]
    numbers = [name for name in X.columns if pd.api.types.is_integer_dtype(X[name])]
    counters = [name for name in numbers if (np.diff(X[name].to_numpy()) == 1).all()]
    if dates and counters:
        warnings.warn(
            f"The input {counters[0]!r} only counts the rows beside the dates of {dates[0]!r}, so that rows would be "
            f"far apart twice: leave it out, as in X.drop(columns={counters[0]!r}).",
            UserWarning,
            stacklevel=5,
        )


def _is_time(index: pd.Index | None) -> bool:
    # Times of other calendars are objects, in an index of xarray's own.
    is_pandas = isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex | pd.PeriodIndex)
    return is_pandas or type(index).__name__ == "CFTimeIndex"


def _about_dataset(Y: Any) -> str:
    """What to do about an xarray Dataset in place of values."""
    variable = next(iter(Y.data_vars), "name")
    first = next((name for name in Y.dims if _is_time(Y.indexes.get(name))), next(iter(Y.dims), "time"))
    return (
        f"Y is an xarray Dataset; give one of its variables, Y[{variable!r}], or all of them as one array, "
        f"Y.to_dataarray('variable').transpose({first!r}, ...)."
    )


def own_names(Y: Any) -> tuple[Hashable, ...] | None:
    """Return what columns, coordinates or the variables of an AnnData call the outputs, where they have names."""
    Y = as_pandas(Y)
    if is_annotated(Y):
        return tuple(Y.var_names)
    if isinstance(Y, pd.DataFrame):
        return tuple(Y.columns)
    if isinstance(Y, pd.Series) and Y.name is not None:
        return (Y.name,)
    if is_dataarray(Y) and Y.ndim >= 2:
        axes = [_axis_names(Y, dimension) for dimension in Y.dims[1:]]
        return tuple(axes[0] if len(axes) == 1 else itertools.product(*axes))
    return None


def _axis_names(Y: Any, dimension: Hashable) -> list[Hashable]:
    if dimension not in Y.indexes:
        return list(range(Y.sizes[dimension]))
    return list(Y.indexes[dimension].tolist())


def _as_matrix(values: Any, source: Any, name: str) -> Any:
    if values.ndim == 1:
        return values[:, None]
    if values.ndim > 2 and is_dataarray(source):
        return values.reshape(len(values), -1)
    if values.ndim != 2:
        raise DataError(f"{name} has shape {values.shape}; expected (inputs, outputs), so give a 2-D array.")
    return values


def _as_csr(Y: Any, name: str) -> sparse.csr_array:
    if Y.dtype.kind not in "fiub":
        raise DataError(f"{name} is a sparse matrix of dtype {Y.dtype}; give real numbers.")
    try:
        # scipy follows the indices of a matrix wherever they lead, out of its memory too.
        _check_indices(Y)
        # Refers to the data of a CSR matrix; what is stored twice is added up in a copy.
        values = sparse.csr_array(Y.reshape(-1, 1) if Y.ndim == 1 else Y)
        _check_indices(values)
    except ValueError as error:
        raise DataError(f"{name} is a sparse matrix that contradicts itself ({error}); build it again.") from error
    if not values.has_canonical_format:
        values = values.copy()
        values.sum_duplicates()
    return values


def _check_indices(Y: Any) -> None:
    """Raise a ValueError for entries outside of the matrix."""
    if hasattr(Y, "check_format"):
        Y.check_format(full_check=True)
    for index, size in zip(getattr(Y, "coords", ()), Y.shape, strict=False):
        if len(index) and not 0 <= index.min() <= index.max() < size:
            raise ValueError(f"index {index.max() if index.min() >= 0 else index.min()} for an axis of {size}")


def _as_mask(Y: Any, mask: Any, values: FloatArray) -> BoolArray | None:
    if mask is None:
        return None
    array = _as_csr(mask, "The mask").toarray() if sparse.issparse(mask) else np.asarray(mask)
    if array.dtype != np.bool_:
        if not np.isin(array, (0, 1)).all():
            raise DataError(f"The mask has dtype {array.dtype}; expected True where a cell is observed, else False.")
        array = array.astype(np.bool_)
    given = np.shape(Y)
    if array.shape not in (given, values.shape):
        raise DataError(f"The mask has shape {array.shape} and Y has {given}; give one entry for each cell.")
    return array.reshape(values.shape)


def own_features(X: Any) -> tuple[str, ...] | None:
    """Return what the columns of a frame call the features, where all of them have names."""
    X = as_pandas(X)
    # Numbered columns are not names, to scikit-learn neither.
    if isinstance(X, pd.DataFrame) and all(isinstance(column, str) for column in X.columns):
        return tuple(X.columns)
    return None
