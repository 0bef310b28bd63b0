"""Files of arrays, fields and annotated data: NPZ, HDF5, NetCDF, Zarr and h5ad, mostly by packages that only some have.

Files are not to be trusted: sizes of arrays are checked before memory is taken.
"""

import math
import zipfile
import zlib
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from manygp.data.labels import annotated_values
from manygp.data.stored import SMALL
from manygp.errors import DataError
from manygp.extras import need

FIELD_SUFFIXES = (".nc", ".nc4", ".zarr")
ANNOTATED_SUFFIXES = (".h5ad",)


def read_field(path: Path, x: str | None = None, y: str | None = None, where: str | None = None) -> Any:
    """Return a variable of a NetCDF or Zarr file as a DataArray whose first dimension is the input.

    The input is the dimension `x`, by default one that holds times, else the first. The variable `y` need not be named
    where only one has two dimensions or more; its values count where the variable `where` is true. A large one stays in
    the file, over dask.
    """
    xarray = need("xarray", "xarray", str(path))
    need("zarr" if path.suffix == ".zarr" else "netCDF4", "files" if path.suffix == ".zarr" else "xarray", str(path))
    try:
        options: dict[str, Any] = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {}
        with xarray.open_dataset(path, **options) as opened:
            is_large = max((held.size for held in opened.data_vars.values()), default=0) > SMALL
            dataset = None if is_large else opened.load()
        if dataset is None:
            need("dask.array", "files", str(path))
            dataset = xarray.open_dataset(path, chunks={}, **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as a field ({reason}); check that it is what its name says.") from error
    field = _variable(dataset, path, y, where)
    if where is not None:
        field = field.where(_named(dataset, path, where, "--where").astype(bool))
    first = _input_dimension(field, path, x)
    return field.transpose(first, ...)


def _variable(dataset: Any, path: Path, y: str | None, where: str | None) -> Any:
    if y is not None:
        return _named(dataset, path, y, "--y")
    wide = [
        name for name, held in dataset.data_vars.items() if held.ndim > 1 and held.dtype.kind in "fiu" and name != where
    ]
    if len(wide) != 1:
        known = ", ".join(map(str, wide)) or "none"
        raise DataError(f"{path} has not one variable of several dimensions but {known}; name one with --y.")
    return dataset[wide[0]]


def _named(dataset: Any, path: Path, name: str, option: str) -> Any:
    if name not in dataset.data_vars:
        known = ", ".join(map(str, dataset.data_vars)) or "none"
        raise DataError(f"{path} has no variable {name!r}; {option} names one of: {known}.")
    return dataset[name]


def _input_dimension(field: Any, path: Path, x: str | None) -> Hashable:
    if x is not None:
        if x not in field.dims:
            known = ", ".join(map(str, field.dims))
            raise DataError(f"{field.name} in {path} has no dimension {x!r}; --x names one of: {known}.")
        return x
    times = [name for name in field.dims if field.indexes[name].dtype.kind in "mMO"] if field.indexes else []
    dimension: Hashable = times[0] if times else field.dims[0]
    return dimension


def write_field(path: Path, dataset: Any) -> None:
    """Write a Dataset to a .nc, .nc4 or .zarr file at a place where there is none."""
    if path.suffix == ".zarr":
        need("zarr", "files", str(path))
        dataset.to_zarr(path, mode="w", consolidated=False)
        return
    need("netCDF4", "xarray", str(path))
    dataset.to_netcdf(path, engine="netcdf4")


def read_annotated(path: Path, x: str | None = None, y: str | None = None) -> tuple[Any, Any, Any]:
    """Return an AnnData from a file, its inputs `obsm[x]`, "spatial" by default, and its values, the layer y or `X`."""
    anndata = need("anndata", "anndata", str(path))
    try:
        # The file of a large one stays open in the background.
        data = anndata.read_h5ad(path, backed="r" if path.stat().st_size > 8 * SMALL else None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as an AnnData; check that it is what its name says.") from error
    key = "spatial" if x is None else x
    if key not in data.obsm:
        known = ", ".join(map(repr, data.obsm)) or "nothing"
        raise DataError(f"{path} has no obsm[{key!r}] to take inputs from; --x names one of: {known}.")
    return data, data.obsm[key], annotated_values(data, y)


def write_annotated(path: Path, data: Any) -> None:
    """Write an AnnData to a .h5ad file."""
    data.write_h5ad(path)


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
