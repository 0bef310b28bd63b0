"""What a file holds, in the container that people know it in: a frame, a field, an AnnData, or arrays."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from manygp.data.adapters import as_table, cells_table
from manygp.data.files import HDF5_SUFFIXES, READABLE, existing, frame_inputs, named_inputs, read_frame, unknown_format
from manygp.data.frames import check_columns, long_parts, with_levels
from manygp.data.stores import ANNOTATED_SUFFIXES, FIELD_SUFFIXES, read_annotated, read_field, read_hdf5, read_npz
from manygp.data.table import Table
from manygp.errors import DataError


@dataclass(frozen=True)
class Source:
    """The contents of a file."""

    #: What `data` is: a frame with a column for each output ("wide") or a row for each cell ("long"), a DataArray, an
    #: AnnData, or arrays by name.
    kind: Literal["wide", "long", "field", "annotated", "arrays"]
    #: The container itself.
    data: Any
    #: Columns of a frame that hold inputs; the inputs of an AnnData.
    inputs: Any = None
    #: Columns of a wide frame that hold outputs; the column of a long one that names them; the values of an AnnData.
    outputs: Any = None
    #: Column of the values of a long frame.
    value: str | None = None

    def table(self) -> Table:
        """The observations as a table."""
        if self.kind == "wide":
            return as_table(self.data[self.inputs], self.data[self.outputs])
        if self.kind == "long":
            x, outputs, y, _ = long_parts(self.data, self.inputs, self.outputs, self.value)
            return cells_table(x, outputs, y)
        if self.kind == "field":
            return as_table(self.data)
        if self.kind == "annotated":
            return as_table(self.inputs, self.outputs, output_names=tuple(self.data.var_names))
        arrays = self.data
        if "outputs" in arrays:
            return cells_table(arrays["X"], arrays["outputs"], arrays["Y"], arrays.get("output_names"))
        return as_table(arrays["X"], arrays["Y"], arrays.get("mask"), arrays.get("output_names"))


def read_table(
    path: str | os.PathLike[str],
    *,
    part: str = "train",
    x: Sequence[str] | None = None,
    y: Sequence[str] | None = None,
    where: str | None = None,
    output_column: str | None = None,
) -> Table:
    """Read a table; the ending of the name says in which format.

    Parameters
    ----------
    path
        A .csv, .parquet, .nc, .zarr, .h5ad, .npz, .h5 or .hdf5 file.
    part
        "train" or "test", for HDF5 files of the paper, which hold both; other files are one part.
    x
        Where the inputs are: columns of a CSV or Parquet file, by default the first, and in a file with one row per
        cell all that are left; the dimension of a field; the key of `obsm`; the array of an HDF5 or NPZ file.
    y
        Where the values are: columns, by default all but the inputs; the variable of a field; a layer; an array.
    where
        What is true where a value counts: a variable of a field, a layer, an array, or a column of a file with one row
        per cell.
    output_column
        For a CSV or Parquet file with one row per cell: the column that names the output; `y` is that of the value.
    """
    return read_source(path, part=part, x=x, y=y, where=where, output_column=output_column).table()


def read_source(
    path: str | os.PathLike[str],
    *,
    part: str = "train",
    x: Sequence[str] | None = None,
    y: Sequence[str] | None = None,
    where: str | None = None,
    output_column: str | None = None,
) -> Source:
    """Read a file into the container that people know it in; parameters are those of `read_table`."""
    path = existing(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        return _frame_source(path, x, y, where, output_column)
    if output_column is not None:
        raise DataError(f"{path} has no columns, and output_column={output_column!r} was given; leave it out.")
    if suffix in FIELD_SUFFIXES:
        return Source("field", read_field(path, _one(x, "--x"), _one(y, "--y"), where))
    if suffix in ANNOTATED_SUFFIXES:
        data, inputs, values = read_annotated(path, _one(x, "--x"), _one(y, "--y"))
        if where is not None:
            seen = np.asarray(_dense(_layer(data, where, path)), dtype=bool)
            values = np.where(seen, _dense(values), np.nan)
        return Source("annotated", data, inputs, values)
    if suffix == ".npz":
        return _npz_source(path, _one(x, "--x"), _one(y, "--y"), where)
    if suffix in HDF5_SUFFIXES:
        return Source("arrays", _hdf5_arrays(path, part, _one(x, "--x"), _one(y, "--y"), where))
    raise unknown_format(path, "read", READABLE)


def _one(names: Sequence[str] | None, option: str) -> str | None:
    if names is not None and len(names) != 1:
        raise DataError(f"{option} names {len(names)} things ({', '.join(names)}) where one is wanted; name one.")
    return None if names is None else names[0]


def _frame_source(
    path: Path, x: Sequence[str] | None, y: Sequence[str] | None, where: str | None, output_column: str | None
) -> Source:
    frame, levels = with_levels(read_frame(path))
    if output_column is not None:
        value = _one(y, "--y")
        if value is None:
            raise DataError(f"{path} has one row per cell, since it has an output column; name that of the values too.")
        if where is not None:
            check_columns(frame, str(path), [where])
            frame = frame.assign(**{value: frame[value].where(frame[where].astype(bool))}).drop(columns=where)
        inputs, *_ = long_parts(frame, x, output_column, value, name=str(path))
        return Source("long", frame, list(inputs.columns), output_column, value)
    if where is not None:
        raise DataError(f"{path} has a row for each input, where empty cells are missing; leave --where out.")
    inputs = frame_inputs(frame, levels) if x is None else list(x)
    check_columns(frame, str(path), inputs)
    outputs = [name for name in frame.columns if name not in (*inputs, *levels)] if y is None else list(y)
    check_columns(frame, str(path), [*inputs, *outputs])
    if not outputs:
        raise DataError(f"{path} has no column beside the inputs {', '.join(map(str, inputs))}; add one per output.")
    return Source("wide", frame, inputs, outputs)


def _npz_source(path: Path, x: str | None, y: str | None, where: str | None) -> Source:
    arrays = read_npz(path)
    names = {"output_names": arrays["output_names"].tolist()} if "output_names" in arrays else {}
    features = arrays.get("feature_names")
    if x is None and y is None and {"x", "outputs", "y"} <= arrays.keys():
        held = {"X": named_inputs(arrays["x"], features, path), "outputs": arrays["outputs"], "Y": arrays["y"]}
        return Source("arrays", held | names)
    x, y, mask = x or "X", y or "Y", where or "mask"
    if not {x, y} <= arrays.keys() or (where is not None and where not in arrays):
        found = ", ".join(sorted(arrays)) or "none"
        expected = "X and Y, or x, outputs and y for cells" if (x, y) == ("X", "Y") else f"{x} and {y}"
        raise DataError(f"{path} holds the arrays {found}; expected {expected}.")
    held = {"X": named_inputs(arrays[x], features, path), "Y": arrays[y]}
    return Source("arrays", held | ({"mask": arrays[mask]} if mask in arrays else {}) | names)


def _hdf5_arrays(path: Path, part: str, x: str | None, y: str | None, where: str | None) -> dict[str, Any]:
    if part not in ("train", "test"):
        raise DataError(f'part={part!r} is no part of a file; choose "train" or "test".')
    x = x or "all_X"
    mask = where if y is not None else where or f"{part}/{part}_mask"
    y = y or f"{part}/{part}_Y"
    arrays = read_hdf5(path, [x, y, *([] if mask is None else [mask])])
    return {"X": arrays[x], "Y": arrays[y]} | ({} if mask is None else {"mask": arrays[mask]})


def _layer(data: Any, name: str, path: Path) -> Any:
    if name not in data.layers:
        known = ", ".join(map(repr, data.layers)) or "none"
        raise DataError(f"{path} has no layer {name!r}; --where names one of: {known}.")
    return data.layers[name]


def _dense(values: Any) -> Any:
    return values.toarray() if hasattr(values, "toarray") else values
