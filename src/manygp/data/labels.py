"""Labels of the containers people have: names of inputs, dimensions of outputs, and whether rows go together.

A table is numbers; this is what predictions need to come back in the container that the user knows. An index that only
counts rows, pandas' default, is no label.
"""

import datetime
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.axes import Axes
from manygp.data.containers import attributes_of
from manygp.data.names import given_names
from manygp.data.numbers import as_numbers, as_pandas, is_dataarray, kind_of
from manygp.data.table import FloatArray, Table
from manygp.errors import DataError

# Kinds of dates that agree wherever one of two is in UTC.
_COMMON_DATES = {"dates", "dates in UTC", "dates of a time zone"}


def input_frame(X: Any) -> Any:
    """Return inputs that have labels as a frame, one column for each input; anything else as it is.

    Columns without a name are numbered, levels of a MultiIndex are columns, and a table gives its inputs. The frame's
    index holds labels of rows that are no inputs.
    """
    X = as_pandas(X)
    if isinstance(X, Table):
        return X.X if X.feature_names is None else pd.DataFrame(X.X, columns=list(X.feature_names))
    if is_dataarray(X):
        return _frame_of_array(X)
    if is_annotated(X):
        places = input_frame(annotated_inputs(X))
        return pd.DataFrame(places, index=X.obs_names) if isinstance(places, np.ndarray) else places
    if isinstance(X, pd.MultiIndex):
        for level in X.levels:
            _check_level(level)
    if isinstance(X, pd.Index):
        return X.to_frame(index=False)
    return X.to_frame() if isinstance(X, pd.Series) else X


def _frame_of_array(X: Any) -> Any:
    if X.ndim > 2:
        raise DataError(
            f"X is a DataArray with the dimensions {', '.join(map(str, X.dims))}; inputs are rows and columns, so give "
            f"a coordinate, such as X[{X.dims[0]!r}]."
        )
    if X.ndim == 0:
        return X
    rows = X.indexes.get(X.dims[0])
    if X.ndim == 1 and X.name == X.dims[0] and rows is not None:
        return input_frame(rows)
    columns = [X.dims[0] if X.name is None else X.name] if X.ndim == 1 else X.indexes.get(X.dims[1])
    return pd.DataFrame(X.to_numpy(), index=rows, columns=columns)


def _check_level(level: pd.Index) -> None:
    try:
        as_numbers(level, "X")
    except DataError as error:
        raise DataError(
            f"Level {level.name!r} of the index holds {level[0]!r}, but inputs are numbers or dates; make its labels "
            f"columns of Y with unstack({level.name!r}), or give a list of cells to fit_cells."
        ) from error


def labelled_inputs(X: Any, inputs: FloatArray, axes: Axes) -> pd.DataFrame:
    """Return inputs, shape (n, d), as the user knows X: by name, now or in the fit, dates as dates, rows labelled."""
    frame = input_frame(X)
    if not isinstance(frame, pd.DataFrame):
        is_dated = isinstance(X, np.ndarray) and X.dtype.kind in "mM"
        frame = pd.DataFrame(X if is_dated else inputs)
    names, known = list(frame.columns), list(axes.inputs)
    is_numbered = names == list(range(len(names))) and len(known) == len(names)
    return frame.set_axis(known, axis=1) if is_numbered else frame


def as_dates(X: Any, axes: Axes) -> Any:
    """Return texts, in ISO 8601, and times among inputs as dates where the fit had dates; anything else as it is.

    These may be one time, several in a list or array, or a frame with a column of them.
    """
    X = as_pandas(X)
    if isinstance(X, pd.DataFrame) and len(axes.kinds) == X.shape[1]:
        texts = [
            name for name, kind in zip(X.columns, axes.kinds, strict=True) if _is_dated(kind) and _is_text(X[name])
        ]
        return X.assign(**{name: _parsed(X[name]) for name in texts}) if texts else X
    if len(axes.kinds) != 1 or not _is_dated(axes.kinds[0]):
        return X
    given = [X] if isinstance(X, str | datetime.date | np.datetime64) else X
    is_list = isinstance(given, list | tuple) or (isinstance(given, np.ndarray | pd.Index) and given.dtype.kind in "OU")
    if is_list and len(given):
        flat = [row[0] if isinstance(row, list | tuple | np.ndarray) and len(row) == 1 else row for row in given]
        if all(isinstance(time, str | datetime.date | np.datetime64) for time in flat):
            return pd.Index(_parsed(pd.Series(flat)), name=axes.inputs[0] if axes.inputs else None)
    return X


def _is_dated(kind: str) -> bool:
    return kind in _COMMON_DATES


def _is_text(column: Any) -> bool:
    return isinstance(column, pd.Series) and pd.api.types.infer_dtype(column, skipna=False) == "string"


def _parsed(times: pd.Series) -> pd.Series:
    for is_utc in (False, True):
        try:
            return pd.to_datetime(times, format="ISO8601", utc=is_utc)
        except (ValueError, TypeError) as error:
            # Clocks change: one column may hold more than one offset, which UTC brings together.
            failure = error
    raise DataError(
        f"X holds {times.iloc[0]!r}, and its times cannot be read ({failure}); write them as 2024-03-01T12:00 or "
        "2024-03-01."
    ) from failure


def check_labels(X: Any, axes: Axes) -> None:
    """Refuse inputs in another order, or of another kind, than those of the fit: numbers, dates and time spans.

    All of these are numbers to a model, dates and spans in days. Dates without a time zone may be those of UTC.
    """
    frame = input_frame(X)
    names = list(map(str, frame.columns)) if isinstance(frame, pd.DataFrame) else []
    if sorted(names) == sorted(axes.inputs) and names != list(axes.inputs):
        raise DataError(
            f"X has the inputs {names}, but the model was fitted with {list(axes.inputs)}; give them in that order."
        )
    known, given = axes.kinds, _input_kinds(X)
    if len(known) != len(given):
        return
    for column, (then, now) in enumerate(zip(known, given, strict=True)):
        if then != now and not ("dates in UTC" in (then, now) and {then, now} <= _COMMON_DATES):
            which = f"Column {axes.inputs[column]!r} of X" if len(axes.inputs) == len(known) > 1 else "X"
            raise DataError(f"{which} holds {now}, but the model was fitted with {then}; give {then}.")


def _input_kinds(X: Any) -> tuple[str, ...]:
    """What each input column holds; nothing where a table does not know."""
    if isinstance(X, Table):
        return X.axes.kinds
    frame = input_frame(X)
    if isinstance(frame, pd.DataFrame):
        return tuple(kind_of(frame.iloc[:, i]) for i in range(frame.shape[1]))
    array = np.asarray(frame)
    return (kind_of(array),) * (array.shape[1] if array.ndim > 1 else 1)


def axes_of(X: Any, Y: Any = None) -> Axes:
    """Return the labels of inputs and outputs that survive a fit; without Y, outputs have names of their own."""
    frame = input_frame(X)
    names = list(frame.columns) if isinstance(frame, pd.DataFrame) else []
    inputs = () if names == list(range(len(names))) else tuple(map(str, names))
    return replace(_output_axes(Y), inputs=inputs, kinds=_input_kinds(X))


def _output_axes(Y: Any) -> Axes:
    if is_dataarray(Y):
        dimensions = tuple(map(str, Y.dims[1:]))
        indexes = [Y.indexes.get(name, pd.RangeIndex(Y.sizes[name])) for name in Y.dims[1:]]
        label, attributes = None if Y.name is None else str(Y.name), attributes_of(Y)
        if len(indexes) == 1 and isinstance(indexes[0], pd.MultiIndex):
            return replace(_stacked(indexes[0], dimensions[0]), label=label, attributes=attributes)
        grid = tuple(map(given_names, indexes)) if len(indexes) > 1 else ()
        dtypes = tuple(str(index.dtype) for index in indexes)
        return Axes(outputs=dimensions, dtypes=dtypes, label=label, grid=grid, attributes=attributes)
    if isinstance(Y, pd.Series):
        return Axes(label=None if Y.name is None else str(Y.name))
    if isinstance(Y, pd.DataFrame) and isinstance(Y.columns, pd.MultiIndex):
        return _stacked(Y.columns, "output")
    if isinstance(Y, pd.DataFrame):
        name = "output" if Y.columns.name is None else str(Y.columns.name)
        return Axes(outputs=(name,), dtypes=(str(Y.columns.dtype),))
    return Axes()


def _stacked(index: pd.MultiIndex, dimension: str) -> Axes:
    names = tuple(f"level_{i}" if name is None else str(name) for i, name in enumerate(index.names))
    return Axes(outputs=names, dtypes=tuple(str(level.dtype) for level in index.levels), stacked=dimension)


def check_rows(X: Any, Y: Any, names: tuple[str, str] = ("X", "Y")) -> None:
    """Refuse two containers whose rows say that they do not go together; `names` are for the error."""
    first, second = names
    if is_dataarray(X) and is_dataarray(Y) and X.ndim and Y.ndim and X.dims[0] in Y.dims[1:]:
        raise DataError(
            f"The rows of {first} are along {X.dims[0]!r} and those of {second} along {Y.dims[0]!r}; give "
            f"{second}.transpose({X.dims[0]!r}, ...)."
        )
    ours, theirs = _row_labels(X), _row_labels(Y)
    # Another number of rows is an error that others explain better.
    if ours is None or theirs is None or len(ours) != len(theirs) or ours.equals(theirs):
        return
    row = next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), 0)
    raise DataError(
        f"Row {row} of {first} is labelled {ours[row]!s} and that of {second} {theirs[row]!s}; bring both into one "
        f"order, for example with {second}.reindex({first}.index), or drop the labels with to_numpy()."
    )


def _row_labels(value: Any) -> pd.Index | None:
    if is_dataarray(value) and value.ndim:
        return value.indexes.get(value.dims[0])
    has_labels = isinstance(value, pd.DataFrame | pd.Series) and not isinstance(value.index, pd.RangeIndex)
    return value.index if has_labels else None


def aligned_mask(mask: Any, Y: Any) -> Any:
    """Return a mask with its rows, columns or dimensions in the order of Y, where both have labels."""
    if is_dataarray(mask) and is_dataarray(Y):
        if set(mask.dims) != set(Y.dims):
            raise DataError(f"The mask has the dimensions {mask.dims} and Y has {Y.dims}; give the mask those of Y.")
        shared = [dimension for dimension in Y.dims if dimension in mask.indexes and dimension in Y.indexes]
        order = {name: _order(mask.indexes[name], Y.indexes[name], f"coordinates {name!r}") for name in shared}
        return mask.transpose(*Y.dims).isel(order)
    if isinstance(mask, pd.DataFrame | pd.Series) and isinstance(Y, pd.DataFrame | pd.Series):
        mask = mask.iloc[_order(mask.index, Y.index, "row labels")]
    if isinstance(mask, pd.DataFrame) and isinstance(Y, pd.DataFrame):
        mask = mask.iloc[:, _order(mask.columns, Y.columns, "columns")]
    return mask


def _order(given: pd.Index, wanted: pd.Index, what: str) -> Any:
    """Where the wanted labels are among those given; in the order given where one of the two only counts."""
    if len(given) != len(wanted) or given.equals(wanted):
        return slice(None)
    found = given.get_indexer(wanted) if given.is_unique else np.full(len(wanted), -1)
    if (found >= 0).all() and wanted.is_unique:
        return found
    if isinstance(given, pd.RangeIndex) or isinstance(wanted, pd.RangeIndex):
        return slice(None)
    missing = wanted[int(np.argmin(found))]
    raise DataError(f"The mask has other {what} than Y, without {missing!r}; give it those of Y, in any order.")


# Where places of observations are kept by custom.
PLACES = "spatial"


def is_annotated(value: object) -> bool:
    """Return whether a value is an AnnData."""
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(value, anndata.AnnData)


def annotated_inputs(data: Any) -> Any:
    """Return the places of the observations, shape (n, d)."""
    if PLACES not in data.obsm:
        known = ", ".join(repr(key) for key in data.obsm) or "nothing"
        raise DataError(
            f"The AnnData has no obsm[{PLACES!r}] to take inputs from (obsm holds {known}); put them there, or pass "
            "inputs, values and output_names one by one."
        )
    return data.obsm[PLACES]


def annotated_values(data: Any, layer: str | None) -> Any:
    """Return the values of a layer, or of `X`, shape (n, p), sparse if they are."""
    if layer is not None and layer not in data.layers:
        known = ", ".join(repr(key) for key in data.layers) or "none"
        raise DataError(f"The AnnData has no layer {layer!r} (it has {known}); name one of them, or none for X.")
    values = data.X if layer is None else data.layers[layer]
    if values is None:
        raise DataError("The AnnData has no X; name the layer that holds the values with layer=.")
    # Of a file that is open in the background, rows can be read one by one if they are together.
    is_backed = type(values).__module__.startswith("anndata")
    return values[:] if is_backed and getattr(values, "format", "") != "csr" else values
