"""Frames and arrays from files, and results to files: CSV, Parquet, NPZ, HDF5, NetCDF, Zarr and h5ad.

A CSV or Parquet file holds either one row per input (input columns and one column per output) or one row per
cell (input columns, a column that names the output, a column of values). An NPZ file holds `X`, `Y` and
optionally `mask`, `output_names` and `feature_names`, or `x`, `outputs` and `y` for cells. An HDF5 file holds
`all_X` and for each part its values and mask, `train/train_Y`, `train/train_mask`, `test/test_Y`,
`test/test_mask`, and may hold more.
"""

import ctypes
import datetime
import glob
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.frames import with_levels
from manygp.data.labels import input_frame
from manygp.data.stores import FIELD_SUFFIXES, read_field, read_hdf5, read_npz
from manygp.errors import DataError
from manygp.extras import need

HDF5_SUFFIXES = (".h5", ".hdf5")
# Seconds for which a folder that was made beside a file may not be held yet.
_FRESH = 1.0
# Of Linux: names from here on, and that two of them change places.
_HERE, _RENAME_EXCHANGE = -100, 2
READABLE = ".csv, .parquet, .nc, .zarr, .h5ad, .npz, .h5 or .hdf5"


def read_inputs(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the inputs to predict at: all columns of a frame, or the inputs of a table.

    Parameters
    ----------
    path
        A .csv, .parquet, .npz (array `X` or `x`), .h5 or .hdf5 (array `all_X`) file, or a .nc or .zarr file, of which
        the dimension of the input is taken.
    """
    path = existing(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".parquet"):
        return with_levels(read_frame(path))[0]
    if suffix == ".npz":
        arrays = read_npz(path)
        X = arrays.get("X", arrays.get("x"))
        names = arrays.get("feature_names")
    elif suffix in HDF5_SUFFIXES:
        X, names = read_hdf5(path, ["all_X"])["all_X"], None
    elif suffix in FIELD_SUFFIXES:
        field = read_field(path)
        return pd.DataFrame(input_frame(field[field.dims[0]]))
    else:
        raise unknown_format(path, "read", ".csv, .parquet, .nc, .zarr, .npz, .h5 or .hdf5")
    if X is None:
        raise DataError(f"{path} has no array X; save the inputs under that name.")
    frame = named_inputs(X, names, path)
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
    writers: dict[str, Callable[[Path], None]] = {
        ".csv": lambda to: frame.to_csv(to, index=False),
        ".parquet": lambda to: _write_parquet(to, frame),
        ".npz": lambda to: np.savez(to, **_columns(frame)),
    }
    if path.suffix.lower() not in writers:
        raise unknown_format(path, "written", ".csv, .parquet or .npz")
    write_file(path, writers[path.suffix.lower()])


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file, or a folder that is one to users, whole or not at all; what is there already survives a failure.

    It is written in a folder beside its place, and then put there in one step. What a process that was killed has left
    of such a folder goes with the next file of the same name.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(suffix=".tmp", prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror}); choose a folder you may write to.") from error
    try:
        with _held(beside):
            _sweep(path)
            new = beside / path.name
            write(new)
            sync(new)
            if not (new.is_dir() and path.is_dir()):
                new.replace(path)
            elif not _exchange(new, path):
                path.rename(beside / "old")
                new.rename(path)
            sync(path.parent)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error.strerror or error}); nothing was changed.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """A folder that others see is in use; False where somebody else holds it. A lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_held = True
    except OSError:
        is_held = False
    try:
        yield is_held
    finally:
        os.close(handle)


def _sweep(path: Path) -> None:
    """Remove what processes that are no more have left beside a file."""
    for litter in path.parent.glob(f".{glob.escape(path.name)}-*.tmp"):
        with suppress(OSError):
            # One that was made just now may not be held yet.
            if time.time() - litter.stat().st_mtime < _FRESH:
                continue
            with _held(litter) as is_ours:
                if is_ours:
                    shutil.rmtree(litter, ignore_errors=True)


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, be on the disk, where the system has a way to say so."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(new: Path, old: Path) -> bool:
    """Let two folders change places in one step; False where the system cannot do that."""
    if sys.platform != "linux":
        return False
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    if call is None:
        return False
    done: int = call(_HERE, os.fsencode(new), _HERE, os.fsencode(old), _RENAME_EXCHANGE)
    return done == 0


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists; a Zarr store is a folder."""
    path = Path(path)
    if not path.is_file() and not (path.suffix == ".zarr" and path.is_dir()):
        raise DataError(f"{path} is not a file; give the name of a file that exists.")
    return path


def unknown_format(path: Path, verb: str, known: str) -> DataError:
    """Return what to raise for a file of another format."""
    return DataError(f"{path} cannot be {verb}: the ending {path.suffix!r} is unknown; expected {known}.")


def read_frame(path: Path) -> pd.DataFrame:
    """Return a CSV or Parquet file as a frame, dates as dates."""
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


def frame_inputs(frame: pd.DataFrame, levels: list[str]) -> list[str]:
    """Return the columns that are inputs unless others are named: those of the index, or the first."""
    return levels or list(frame.columns[:1])


def named_inputs(X: Any, names: Any, path: Path) -> Any:
    """Return inputs as a frame, if they have names."""
    if X.ndim != 2:
        raise DataError(f"The inputs in {path} have shape {X.shape}; expected (inputs, features), so save a 2-D array.")
    if names is None:
        return X
    if names.shape != (X.shape[1],):
        shapes = f"feature_names of shape {names.shape} for inputs of shape {X.shape}"
        raise DataError(f"{path} has {shapes}; save one name for each column.")
    return pd.DataFrame(X, columns=list(map(str, names)))


def _write_parquet(path: Path, frame: pd.DataFrame) -> None:
    need("pyarrow", "files", str(path))
    # Parquet wants text for the names of columns, whatever they are in the frame.
    frame.rename(columns=str).to_parquet(path, index=False)


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the columns as plain arrays; what is no number becomes text, so that no pickle is needed."""
    arrays = {str(name): frame[name].to_numpy() for name in frame.columns}
    return {name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()}
