"""Tables from files and frames to files: CSV, Parquet, NPZ and HDF5.

A CSV or Parquet file holds either one row per input (input columns and one column per output) or one row per
cell (input columns, a column that names the output, a column of values). An NPZ file holds `X`, `Y` and
optionally `mask`, `output_names` and `feature_names`, or `x`, `outputs` and `y` for cells. An HDF5 file holds
`all_X` and for each part its values and mask, `train/train_Y`, `train/train_mask`, `test/test_Y`,
`test/test_mask`, and may hold more.
"""

from __future__ import annotations

import datetime
import os
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.adapters import as_table, cells_table
from manygp.data.archives import read_hdf5, read_npz
from manygp.data.frames import check_columns, long_parts, with_levels
from manygp.data.table import Table
from manygp.errors import DataError
from manygp.extras import need

__all__ = ["read_inputs", "read_table", "write_frame"]

HDF5_SUFFIXES = (".h5", ".hdf5")


def read_table(
    path: str | os.PathLike[str],
    *,
    part: str = "train",
    input_columns: Sequence[str] | None = None,
    output_column: str | None = None,
    value_column: str | None = None,
) -> Table:
    """Read a table; the ending of the name says in which format.

    Parameters
    ----------
    path
        A .csv, .parquet, .npz, .h5 or .hdf5 file.
    part
        "train" or "test", for files that hold both (HDF5); other files are one part.
    input_columns
        Input columns of a CSV or Parquet file; by default the first column, and in a file with one row per cell
        all columns but the two below.
    output_column, value_column
        Give both for a CSV or Parquet file with one row per cell: the column that names the output, and that
        of the value.
    """
    path = _existing(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        frame = _read_frame(path)
        if (output_column is None) != (value_column is None):
            raise DataError("One of output_column and value_column is given; a file with one row per cell needs both.")
        if output_column is not None and value_column is not None:
            x, outputs, y, _ = long_parts(frame, input_columns, output_column, value_column, name=str(path))
            return cells_table(x, outputs, y)
        return _grid_of_frame(frame, path, input_columns)
    if suffix == ".npz":
        return _table_of_arrays(read_npz(path), path)
    if suffix in HDF5_SUFFIXES:
        return _hdf5_table(path, part)
    raise _unknown_format(path, "read", ".csv, .parquet, .npz, .h5 or .hdf5")


def read_inputs(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the inputs to predict at: all columns of a frame, or the inputs of a table.

    Parameters
    ----------
    path
        A .csv, .parquet, .npz (array `X` or `x`), .h5 or .hdf5 (array `all_X`) file.
    """
    path = _existing(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        return with_levels(_read_frame(path))[0]
    if suffix == ".npz":
        arrays = read_npz(path)
        X = arrays.get("X", arrays.get("x"))
        names = arrays.get("feature_names")
    elif suffix in HDF5_SUFFIXES:
        X, names = read_hdf5(path, ["all_X"])["all_X"], None
    else:
        raise _unknown_format(path, "read", ".csv, .parquet, .npz, .h5 or .hdf5")
    if X is None:
        raise DataError(f"{path} has no array X; save the inputs under that name.")
    frame = _named(X, names, path)
    return frame if names is not None else pd.DataFrame(frame, columns=[f"x{i}" for i in range(X.shape[1])])


def write_frame(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a frame whole or not at all; an older file of the same name survives a failure.

    Parameters
    ----------
    path
        A .csv, .parquet or .npz (one array per column) file.
    frame
        What to write; its index is left out.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    writers: dict[str, Callable[[Path], None]] = {
        ".csv": lambda to: frame.to_csv(to, index=False),
        ".parquet": lambda to: _write_parquet(to, frame),
        ".npz": lambda to: np.savez(to, **_columns(frame)),
    }
    if suffix not in writers:
        raise _unknown_format(path, "written", ".csv, .parquet or .npz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(suffix=suffix, prefix=f".{path.stem}-", dir=path.parent)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); choose a folder you may write to.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        writers[suffix](temporary)
        # A temporary file is private; the result gets the rights any new file would have.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); nothing was changed.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _existing(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file; give the name of a file that exists.")
    return path


def _unknown_format(path: Path, verb: str, known: str) -> DataError:
    return DataError(f"{path} cannot be {verb}: the ending {path.suffix!r} is unknown; expected {known}.")


def _read_frame(path: Path) -> pd.DataFrame:
    parquet = path.suffix.lower() == ".parquet"
    if parquet:
        need("pyarrow", "files", str(path))
    try:
        frame = pd.read_parquet(path) if parquet else pd.read_csv(path, float_precision="round_trip")
    except (OSError, ValueError, UnicodeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as a table ({reason}); check that it is what its name says.") from error
    for name in frame.select_dtypes(include=["object", "string"]).columns:
        # Dates are text in a CSV file; a column that is not dates throughout stays as it is. In UTC, because clocks
        # change: a column may hold more than one offset.
        times = pd.to_datetime(frame[name], errors="coerce", format="ISO8601", utc=True)
        if times.notna().all() and len(times):
            has_offsets = frame[name].astype(str).str.contains("[T ].*[Zz+-]").any()
            frame[name] = times if has_offsets else times.dt.tz_localize(None)
    if not parquet:
        _warn_without_header(frame.columns, path)
    return frame


def _warn_without_header(columns: Iterable[Hashable], path: Path) -> None:
    """Warn where the first row of a CSV file, taken for names, may be data."""
    names = [str(name) for name in columns if not str(name).startswith("Unnamed: ")]
    # A frame without names is written with the numbers of its columns.
    if names and names != [str(i) for i in range(len(names))] and all(map(_is_datum, names)):
        warnings.warn(
            f"All columns of {path} are named by numbers ({', '.join(names[:3])}): if its first row holds data and no "
            "names, put a row of names above it.",
            UserWarning,
            stacklevel=5,
        )


def _is_datum(name: str) -> bool:
    """Whether the name of a column could be a value; pandas tells equal ones apart by a number at the end."""
    for read in (float, lambda text: float(text.rpartition(".")[0]), datetime.datetime.fromisoformat):
        try:
            read(name)
        except ValueError:
            continue
        return True
    return False


def _grid_of_frame(frame: pd.DataFrame, path: Path, input_columns: Sequence[str] | None) -> Table:
    frame, levels = with_levels(frame)
    inputs = (levels or list(frame.columns[:1])) if input_columns is None else list(input_columns)
    check_columns(frame, str(path), inputs)
    outputs = [name for name in frame.columns if name not in (*inputs, *levels)]
    if not outputs:
        raise DataError(f"{path} has no column beside the inputs {', '.join(map(str, inputs))}; add one per output.")
    return as_table(frame[inputs], frame[outputs])


def _table_of_arrays(arrays: dict[str, Any], path: Path) -> Table:
    names = arrays["output_names"].tolist() if "output_names" in arrays else None
    features = arrays.get("feature_names")
    if {"x", "outputs", "y"} <= arrays.keys():
        return cells_table(_named(arrays["x"], features, path), arrays["outputs"], arrays["y"], names)
    if not {"X", "Y"} <= arrays.keys():
        found = ", ".join(sorted(arrays)) or "none"
        raise DataError(f"{path} holds the arrays {found}; expected X and Y, or x, outputs and y for cells.")
    return as_table(_named(arrays["X"], features, path), arrays["Y"], arrays.get("mask"), names)


def _named(X: Any, names: Any, path: Path) -> Any:
    """Inputs as a frame, if they have names."""
    if X.ndim != 2:
        raise DataError(f"The inputs in {path} have shape {X.shape}; expected (inputs, features), so save a 2-D array.")
    if names is None:
        return X
    if names.shape != (X.shape[1],):
        shapes = f"feature_names of shape {names.shape} for inputs of shape {X.shape}"
        raise DataError(f"{path} has {shapes}; save one name for each column.")
    return pd.DataFrame(X, columns=list(map(str, names)))


def _hdf5_table(path: Path, part: str) -> Table:
    if part not in ("train", "test"):
        raise DataError(f'part={part!r} is no part of a file; choose "train" or "test".')
    values, mask = f"{part}/{part}_Y", f"{part}/{part}_mask"
    arrays = read_hdf5(path, ["all_X", values, mask])
    return as_table(arrays["all_X"], arrays[values], arrays[mask])


def _write_parquet(path: Path, frame: pd.DataFrame) -> None:
    need("pyarrow", "files", str(path))
    # Parquet wants text for the names of columns, whatever they are in the frame.
    frame.rename(columns=str).to_parquet(path, index=False)


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns as plain arrays; what is no number becomes text, so that no pickle is needed."""
    arrays = {str(name): frame[name].to_numpy() for name in frame.columns}
    return {name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()}


def _umask() -> int:
    # The only way to learn the mask is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
