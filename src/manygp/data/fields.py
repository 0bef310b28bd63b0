"""Numbers of inputs times outputs as an xarray Dataset, over the dimensions that the user knows."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.axes import Axes
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray
from manygp.extras import need


def as_dataset(values: Mapping[str, FloatArray], rows: pd.DataFrame, names: Sequence[Hashable], axes: Axes) -> Any:
    """Return an xarray Dataset with a variable for each array: of inputs times outputs (n, p), or a list of cells (c,).

    Outputs that were a field have its dimensions again, NaN where an output of the field is not among them. A list of
    cells has the one dimension "cell", with inputs and outputs as coordinates. Arrays are of numpy or, with all outputs
    in a block, of dask; names are those of the columns, or of the output of each cell.
    """
    xarray = need("xarray", "xarray", "to_xarray")
    labels = output_labels(names, axes)
    is_list = next(iter(values.values())).ndim == 1
    taken = {*values, *labels, axes.stacked}
    if is_list:
        inputs = rows.set_axis(input_names(rows, taken), axis=1)
        columns = {name: ("cell", _coordinate(column)) for name, column in [*inputs.items(), *labels.items()]}
        return _with_attributes(
            xarray.Dataset({name: ("cell", array) for name, array in values.items()}, columns), axes
        )
    dimension, coordinates = _input_axis(rows, taken)
    if axes.stacked is not None and len(labels) > 1:
        index = pd.MultiIndex.from_arrays(list(labels.values()), names=list(labels))
        stacked = xarray.Coordinates.from_pandas_multiindex(index, axes.stacked)
        variables = {name: ((dimension, axes.stacked), array) for name, array in values.items()}
        return _with_attributes(xarray.Dataset(variables, coordinates).assign_coords(stacked), axes)
    if not labels:
        dimensions: tuple[str, ...] = (dimension,)
        shaped = {name: array[:, 0] for name, array in values.items()}
    else:
        codes, grid = _grid(labels, axes)
        coordinates |= {name: (name, _coordinate(index)) for name, index in grid.items()}
        shape = (len(rows), *map(len, grid.values()))
        dimensions, shaped = (dimension, *grid), {name: _spread(array, codes, shape) for name, array in values.items()}
    fields = {name: (dimensions, array) for name, array in shaped.items()}
    return _with_attributes(xarray.Dataset(fields, coordinates), axes)


def _with_attributes(dataset: Any, axes: Axes) -> Any:
    """The dataset with the attributes of the fit, of its values and its coordinates."""
    attributes: dict[str, Any] = json.loads(axes.attributes) if axes.attributes else {}
    for name in dataset.data_vars:
        dataset[name].attrs |= attributes.get("", {})
    for name in dataset.coords:
        dataset[name].attrs |= attributes.get(str(name), {})
    return dataset


def storable(dataset: Any) -> Any:
    """Return a Dataset that files can hold: levels of a MultiIndex are plain coordinates, mixed labels are text."""
    stacked = [name for name in dataset.dims if isinstance(dataset.indexes.get(name), pd.MultiIndex)]
    dataset = dataset.reset_index(stacked).drop_vars(stacked, errors="ignore")
    for name, coordinate in dataset.coords.items():
        labels = coordinate.to_numpy()
        if labels.dtype == object and pd.api.types.infer_dtype(labels) in ("mixed", "mixed-integer"):
            texts = np.array([str(label) for label in labels], dtype=object)
            dataset = dataset.assign_coords({name: (coordinate.dims, texts, coordinate.attrs)})
    return dataset


def input_names(rows: pd.DataFrame, taken: Iterable[Hashable]) -> list[str]:
    """Return names for the columns of inputs: x0, x1 where they are numbers, with "input_" in front where taken."""
    names = [f"x{name}" if isinstance(name, int) else str(name) for name in rows.columns]
    return [_free(f"input_{name}", {*taken, *names}) if name in taken else name for name in names]


def _free(name: str, taken: Iterable[Hashable]) -> str:
    return _free(f"input_{name}", taken) if name in taken else name


def output_labels(names: Sequence[Hashable], axes: Axes) -> dict[str, pd.Index]:
    """Return what tells outputs apart, in the kinds of the fit; nothing where values had no axis of outputs."""
    if not axes.outputs and len(set(names)) == 1:
        return {}
    parts = len(axes.outputs)
    if parts == 1:
        return {axes.outputs[0]: _of_kind(names, axes.dtypes[0])}
    if all(isinstance(name, tuple) and len(name) == parts for name in names):
        columns = zip(*names, strict=True)
        return {label: _of_kind(c, kind) for label, c, kind in zip(axes.outputs, columns, axes.dtypes, strict=True)}
    # Outputs that joined after the fit may be called anything.
    return {"output": _of_kind(names, "object")}


def _of_kind(labels: Iterable[Any], kind: str) -> pd.Index:
    index = pd.Index(list(labels), dtype=object, tupleize_cols=False)
    try:
        return index.astype(kind)
    except (TypeError, ValueError):
        return index


def _grid(labels: dict[str, pd.Index], axes: Axes) -> tuple[list[Any], dict[str, pd.Index]]:
    """Where outputs are on the grid of their labels, and its axes: those of the field, or in order of appearance."""
    if len(labels) == 1:
        return [slice(None)], labels
    if len(axes.grid) == len(labels):
        known = {name: _of_kind(axis, kind) for name, axis, kind in zip(labels, axes.grid, axes.dtypes, strict=True)}
        codes = [known[name].get_indexer(index) for name, index in labels.items()]
        if all((code >= 0).all() for code in codes):
            return codes, known
    found = {name: index.factorize() for name, index in labels.items()}
    return [codes for codes, _ in found.values()], {name: distinct for name, (_, distinct) in found.items()}


def _spread(array: Any, codes: Sequence[Any], shape: tuple[int, ...]) -> Any:
    if not isinstance(array, np.ndarray):
        # Of dask, which has each block spread when it is asked for.
        chunks, added = (array.chunks[0], *((size,) for size in shape[1:])), list(range(2, len(shape)))
        like = np.empty((0,) * len(shape))
        return array.map_blocks(
            lambda block: _spread(block, codes, (len(block), *shape[1:])),
            chunks=chunks,
            new_axis=added or None,
            dtype=like.dtype,
            meta=like,
        )
    field = np.full(shape, np.nan)
    field[(slice(None), *codes)] = array
    return field


def _input_axis(rows: pd.DataFrame, taken: set[Any]) -> tuple[str, dict[str, Any]]:
    """The dimension of the inputs and its coordinates."""
    index = rows.index
    if rows.shape[1] == 1 and isinstance(index, pd.RangeIndex):
        name = rows.columns[0]
        dimension = _free("input" if isinstance(name, int) else str(name), taken)
        return dimension, {dimension: (dimension, _coordinate(rows.iloc[:, 0]))}
    dimension = _free("input" if index.name is None else str(index.name), taken)
    coordinates: dict[str, Any] = {}
    if not isinstance(index, pd.RangeIndex):
        coordinates[dimension] = (dimension, _coordinate(index))
    for position, name in enumerate(input_names(rows, {*taken, dimension})):
        coordinates[name] = (dimension, _coordinate(rows.iloc[:, position]))
    return dimension, coordinates


def _coordinate(labels: Any) -> np.ndarray[Any, Any]:
    """Labels as numpy has them: dates of a time zone in UTC, periods by their beginning."""
    series = pd.Series(labels.array if isinstance(labels, pd.Series) else labels.to_flat_index())
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert(None)
    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    if isinstance(series.dtype, np.dtype):
        return np.asarray(series.to_numpy())
    is_number = pd.api.types.is_numeric_dtype(series.dtype)
    return as_numbers(series, "X") if is_number else np.asarray(series.to_numpy(dtype=object))
