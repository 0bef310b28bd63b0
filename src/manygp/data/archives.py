"""Arrays by name from NPZ and HDF5 files, which are not to be trusted: sizes are checked before memory is taken."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from manygp.data.stored import SMALL
from manygp.errors import DataError
from manygp.extras import need

__all__ = ["read_hdf5", "read_npz"]

# An array of more bytes than this must have left a trace in its file: what packs best, deflate, packs 1,032 into one.
_LARGE_ARRAY, _BEST_PACKING = 2**30, 1_100
# RuntimeError is that of archives that are encrypted or packed in an unknown way.
_SPOILT = (OSError, ValueError, EOFError, TypeError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def read_npz(path: Path) -> dict[str, Any]:
    """Return all arrays of an NPZ file; none may need pickle."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            return {name: _npz_array(archive, entry, path) for name, entry in entries.items()}
    except DataError:
        raise
    except _SPOILT as error:
        raise DataError(f"{path} cannot be read as an NPZ file of plain arrays; write it with numpy.savez.") from error


def _npz_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Any:
    with archive.open(entry) as stream:
        is_first = npy.read_magic(stream) == (1, 0)
        shape, _, dtype = (npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0)(stream)
    _check_claim(path, entry.filename, math.prod(shape) * dtype.itemsize, entry.compress_size)
    with archive.open(entry) as stream:
        return npy.read_array(stream, allow_pickle=False)


def read_hdf5(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return some arrays of an HDF5 file, by their paths in it; large ones stay there, and the file stays open."""
    h5py = need("h5py", "files", str(path))
    try:
        with ExitStack() as stack:
            file = stack.enter_context(h5py.File(path))
            # A link that leads nowhere is None.
            found = {name: file.get(name) for name in names}
            for name, held in found.items():
                if not isinstance(held, h5py.Dataset) or held.shape is None:
                    raise DataError(f"{path} has no array {name!r}; expected {', '.join(names)}.")
                _check_claim(path, name, held.size * held.dtype.itemsize, held.id.get_storage_size())
            if any(held.size > SMALL for held in found.values()):
                stack.pop_all()
            return {name: held if held.size > SMALL else held[()] for name, held in found.items()}
    except DataError:
        raise
    except _SPOILT as error:
        raise DataError(f"{path} cannot be read as an HDF5 file; check that it is what its name says.") from error


def _check_claim(path: Path, name: str, claimed: int, held: int) -> None:
    if claimed > _LARGE_ARRAY and claimed > _BEST_PACKING * held:
        size = f"{claimed / 1e9:,.0f} GB"
        raise DataError(f"{path} claims {size} for {name!r}, far more than it can hold; check that the file is whole.")
