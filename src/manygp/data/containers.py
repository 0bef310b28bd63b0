"""The way back: numbers of a prediction in the container that the fit was given, with its labels and attributes."""

import json
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.axes import Axes
from manygp.data.fields import as_dataset, input_names, output_labels
from manygp.data.numbers import EPOCH, is_dataarray, like_native
from manygp.data.table import FloatArray
from manygp.extras import need

# Libraries of frames other than pandas, which come in and go out through narwhals.
OTHER_FRAMES = ("cudf", "modin", "polars", "pyarrow")
_MICROSECONDS = 86_400_000_000


def container_of(values: Any) -> str:
    """Return what values came in: "numpy" for everything without labels, "pandas", "xarray" or another library."""
    if isinstance(values, pd.DataFrame | pd.Series):
        return "pandas"
    library = type(values).__module__.partition(".")[0]
    return library if library in OTHER_FRAMES else "xarray" if is_dataarray(values) else "numpy"


def attributes_of(field: Any) -> str:
    """Return the attributes of a DataArray and of the coordinates along its dimensions as JSON."""
    attributes = {"": field.attrs} | {str(name): field[name].attrs for name in field.dims if name in field.coords}
    kept = {name: {str(key): _plain(value) for key, value in held.items()} for name, held in attributes.items() if held}
    return json.dumps(kept) if kept else ""


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    is_kept = isinstance(value, str | int | float | list) and value == value
    return value if is_kept else str(value)


def known_inputs(inputs: FloatArray, axes: Axes) -> pd.DataFrame:
    """Return inputs of a fit, shape (n, d), as the user knows them: by name, days as dates or time spans."""
    kinds = axes.kinds if len(axes.kinds) == inputs.shape[1] else ("numbers",) * inputs.shape[1]
    names = axes.inputs if len(axes.inputs) == inputs.shape[1] else range(inputs.shape[1])
    columns = {name: _of_kind(inputs[:, i], kind) for i, (name, kind) in enumerate(zip(names, kinds, strict=True))}
    return pd.DataFrame(columns)


def _of_kind(days: FloatArray, kind: str) -> Any:
    """A column of inputs in the kind that `kind_of` told of it."""
    if kind == "numbers":
        return days
    # Days in double precision are good to a microsecond for thousands of years.
    span = np.round(days * _MICROSECONDS).astype("timedelta64[us]")
    if kind == "time spans":
        return span
    if kind.startswith("dates of the calendar "):
        calendar = kind.removeprefix("dates of the calendar ")
        return need("cftime", "xarray", kind).num2date(days, "days since 1970-01-01", calendar)
    times = pd.Series(EPOCH.astype("datetime64[us]") + span)
    with suppress(OverflowError, ValueError):
        times = times.astype("datetime64[ns]")
    return times if kind == "dates" else times.dt.tz_localize("UTC")


def row_index(X: Any, rows: pd.DataFrame) -> pd.Index:
    """Return the index of a frame of predictions: that of a frame of inputs X, else the labelled inputs themselves."""
    if isinstance(X, pd.DataFrame) or not isinstance(rows.index, pd.RangeIndex):
        return rows.index
    names = [None if isinstance(name, int) else name for name in rows.columns]
    if len(names) == 1:
        return pd.Index(rows.iloc[:, 0], name=names[0])
    return pd.MultiIndex.from_frame(rows, names=names)


def in_container(
    values: FloatArray,
    X: Any,
    rows: pd.DataFrame,
    names: Sequence[Hashable],
    axes: Axes,
    container: str,
    is_flat: bool = False,
) -> Any:
    """Return numbers of inputs times outputs, shape (n, p), in a container.

    Those of a list of cells, shape (c,), become a long frame or have the one dimension "cell". Inputs are X as given,
    and `rows` as the user knows them; `is_flat` says that the fit was given one output without an axis for it.
    """
    if container == "numpy":
        return values[:, 0] if is_flat else values
    if container == "xarray":
        field = as_dataset({"values": values}, rows, names, axes)["values"]
        return field.rename(axes.label)
    if values.ndim == 1:
        output, label = axes.outputs[0] if len(axes.outputs) == 1 else "output", axes.label or "mean"
        long = rows.set_axis(input_names(rows, {output, label}), axis=1)
        long = long.assign(**{output: pd.Series(list(names), long.index, dtype=object), label: values})
        return long if container == "pandas" else like_native({name: long[name].to_numpy() for name in long}, container)
    if container == "pandas":
        frame = pd.DataFrame(values, row_index(X, rows), output_columns(names, axes))
        return frame.iloc[:, 0].rename(axes.label) if is_flat else frame
    known = rows.set_axis(input_names(rows, set(map(str, names))), axis=1)
    columns = {name: known[name].to_numpy() for name in known.columns}
    return like_native(columns | {str(name): values[:, i] for i, name in enumerate(names)}, container)


def output_columns(names: Sequence[Hashable], axes: Axes) -> pd.Index:
    """Return the columns of a frame with a column for each output."""
    labels = output_labels(names, axes)
    if len(labels) > 1:
        return pd.MultiIndex.from_arrays(list(labels.values()), names=list(labels))
    if not labels:
        return pd.Index(list(names), dtype=object, tupleize_cols=False)
    ((label, index),) = labels.items()
    # A frame whose columns have no name gets none.
    return index.rename(None if label == "output" else label)
