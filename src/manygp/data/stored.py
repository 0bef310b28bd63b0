"""Values that stay where they are, on disk or in an object store, and are read in contiguous blocks."""

import itertools
import mmap
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from manygp.data.numbers import is_dataarray
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError

# Values on disk of up to so many numbers are read at once.
SMALL = 30_000_000

# About what a disk reads as fast as more of it, where a store has no chunks of its own; in numbers.
_BLOCK_NUMBERS = 2**17

# An array, or a sparse one.
Values: TypeAlias = Any


class Stored(ABC):
    """A matrix of values that is too large for memory.

    Attributes
    ----------
    shape
        Inputs and outputs, (n, p).
    block
        Rows and columns that are read at once.
    num_stored
        How many numbers the store holds.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    num_stored: int
    ndim = 2

    @abstractmethod
    def read(self, rows: slice, outputs: slice) -> Values:
        """Return the values of successive rows and outputs, NaN where missing; sparse if the store is."""

    @abstractmethod
    def gather(self, rows: IntArray, outputs: IntArray) -> Values:
        """Return the values at some rows and outputs, read block by block; sparse if the store is."""

    def __getitem__(self, rows: slice) -> Values:
        start, stop, _ = rows.indices(self.shape[0])
        return self.read(slice(start, stop), slice(0, self.shape[1]))


class StoredArray(Stored):
    """Values of an array on disk whose slices numpy can read, and a mask: numpy's memory maps, HDF5, Zarr, dask."""

    def __init__(self, array: Any, mask: Any = None) -> None:
        if array.dtype.kind not in "fiub":
            raise DataError(f"Y is an array of dtype {array.dtype}; give real numbers.")
        if mask is not None and tuple(mask.shape) != tuple(array.shape):
            raise DataError(f"The mask has shape {mask.shape} and Y has {array.shape}; give one entry for each cell.")
        self.array, self.mask = array, mask
        self.shape = n, p = (int(array.shape[0]), int(array.shape[1]))
        self.num_stored = n * p
        chunks = _chunks_of(array)
        if chunks is None:
            columns = min(p, _BLOCK_NUMBERS)
            chunks = max(1, _BLOCK_NUMBERS // max(columns, 1)), columns
        self.block = max(1, min(n, chunks[0])), max(1, min(p, chunks[1]))

    def read(self, rows: slice, outputs: slice) -> FloatArray:
        self._release()
        values = np.asarray(self.array[rows, outputs], dtype=np.float64)
        if self.mask is not None:
            values = np.where(np.asarray(self.mask[rows, outputs], dtype=np.bool_), values, np.nan)
        return values

    def _release(self) -> None:
        """Let go of the pages of a memory map that were read before, which would count as memory of this process."""
        for array in (self.array, self.mask):
            # Only where nothing could have been written to them.
            if isinstance(array, np.memmap) and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def gather(self, rows: IntArray, outputs: IntArray) -> FloatArray:
        def is_whole(numbers: IntArray) -> bool:
            return bool((np.diff(numbers) == 1).all())

        values = np.empty((len(rows), len(outputs)))
        for at, own in _spans(rows, self.block[0]):
            for of, columns in _spans(outputs, self.block[1]):
                part = self.read(at, of)
                if is_whole(rows[own]) and is_whole(outputs[columns]) and is_whole(own) and is_whole(columns):
                    # Blocks in their order are copied as they are.
                    values[own[0] : own[-1] + 1, columns[0] : columns[-1] + 1] = part
                else:
                    values[np.ix_(own, columns)] = part[np.ix_(rows[own] - at.start, outputs[columns] - of.start)]
        return values


class StoredRows(Stored):
    """Values of a sparse matrix on disk, row by row, zeros left out and observed.

    `data` and `indices` hold stored values and their columns, one after the other; `indptr`, which is kept in memory,
    where rows begin and end among them, shape (n + 1,).
    """

    def __init__(self, data: Any, indices: Any, indptr: Any, num_outputs: int) -> None:
        if data.dtype.kind not in "fiub":
            raise DataError(f"Y is a sparse matrix of dtype {data.dtype}; give real numbers.")
        self.data, self.indices, self.indptr = data, indices, np.asarray(indptr, dtype=np.int64)
        self.num_stored = int(data.shape[0])
        ends = self.indptr[[0, -1]].tolist() if self.indptr.ndim == 1 and len(self.indptr) else []
        if ends != [0, self.num_stored] or self.num_stored != indices.shape[0] or (np.diff(self.indptr) < 0).any():
            raise DataError(
                "Y is a sparse matrix that contradicts itself (rows do not follow each other); build it anew."
            )
        self.shape = n, p = len(self.indptr) - 1, int(num_outputs)
        self.block = max(1, min(n, _BLOCK_NUMBERS * n // max(self.num_stored, 1))), max(1, p)

    def read(self, rows: slice, outputs: slice) -> sparse.csr_array:
        begin, end = self.indptr[rows.start], self.indptr[rows.stop]
        data = np.asarray(self.data[begin:end], dtype=np.float64)
        columns = np.asarray(self.indices[begin:end])
        # scipy follows the indices of a matrix wherever they lead, out of its memory too.
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            wrong = columns.min() if columns.min() < 0 else columns.max()
            raise DataError(f"Y is a sparse matrix that contradicts itself (a column {wrong}); build it anew.")
        pointer = self.indptr[rows.start : rows.stop + 1] - begin
        found = sparse.csr_array((data, columns, pointer), shape=(rows.stop - rows.start, self.shape[1]))
        found.sum_duplicates()
        is_all = outputs == slice(0, self.shape[1])
        return found if is_all else found[:, outputs]

    def gather(self, rows: IntArray, outputs: IntArray) -> sparse.csr_array:
        is_all, everything = np.array_equal(outputs, np.arange(self.shape[1])), slice(0, self.shape[1])
        parts, order = [], []
        for at, own in _spans(rows, self.block[0]):
            part = self.read(at, everything)[rows[own] - at.start]
            parts.append(part if is_all else part[:, outputs])
            order.append(own)
        stacked = sparse.csr_array(sparse.vstack(parts, format="csr"))
        places = np.concatenate(order)
        return stacked if (np.diff(places) > 0).all() else stacked[np.argsort(places)]


def as_stored(values: Any, mask: Any = None) -> Stored | None:
    """Return values that are not in memory as a matrix that is read in blocks; None for values that are in memory.

    Parameters
    ----------
    values
        A numpy memory map, an HDF5 dataset, a Zarr array, a dask array, a DataArray over dask, of which all dimensions
        but the first are outputs, or a sparse matrix as AnnData keeps it in a file: a group with data, indices and
        indptr.
    mask
        True where a cell is observed, in any of these or in memory.
    """
    if isinstance(values, Stored):
        if mask is not None:
            raise DataError("Y is stored with its mask, and a mask was given too; give the mask to as_stored.")
        return values
    library = type(values).__module__.partition(".")[0]
    if library == "anndata" and hasattr(values, "group"):
        library, values = "h5py", values.group
    if library in ("h5py", "zarr") and hasattr(values, "keys"):
        return _stored_rows(values, mask)
    if is_dataarray(values) and values.chunks is not None:
        # Dask keeps blocks whole where all but the first dimension become one.
        array = values.data.reshape(values.shape[0], -1, merge_chunks=True)
    elif isinstance(values, np.memmap) or library in ("h5py", "zarr") or _is_dask(values):
        array = values
    else:
        return None
    if array.ndim != 2:
        return None
    if mask is not None:
        held = mask.data if is_dataarray(mask) else mask
        mask = held.reshape(array.shape) if hasattr(held, "reshape") else held
        mask = np.asarray(mask) if not hasattr(mask, "shape") else mask
    return StoredArray(array, mask)


def _stored_rows(group: Any, mask: Any) -> StoredRows:
    if not {"data", "indices", "indptr"} <= set(group.keys()):
        held = ", ".join(sorted(map(str, group.keys()))[:5]) or "nothing"
        raise DataError(f"Y is a group that holds {held}; give one of its arrays, or a sparse matrix by rows.")
    kind = group.attrs.get("encoding-type", "csr_matrix")
    if kind != "csr_matrix":
        raise DataError(f"Y is a {kind} on disk, which has its columns together; write it as a csr_matrix.")
    if mask is not None:
        raise DataError("Y is a sparse matrix on disk, which holds zeros and no gaps; leave the mask out.")
    shape = group.attrs.get("shape")
    if shape is None or len(shape) != 2:
        raise DataError("Y is a sparse matrix on disk without a shape among its attributes; write it as AnnData does.")
    return StoredRows(group["data"], group["indices"], group["indptr"][:], int(shape[1]))


def _is_dask(values: Any) -> bool:
    dask = sys.modules.get("dask.array")
    return dask is not None and isinstance(values, dask.Array)


def _chunks_of(array: Any) -> tuple[int, int] | None:
    """Rows and columns of a chunk of an array, the largest if they differ; None where it is in one piece."""
    # Shards of a Zarr array are what lies together on disk, and chunks what can be read of them.
    chunks = getattr(array, "chunks", None)
    if chunks is None:
        return None
    return tuple(int(max(side)) if isinstance(side, tuple) else int(side) for side in chunks)  # type: ignore[return-value]


def _spans(index: IntArray, block: int) -> Iterator[tuple[slice, IntArray]]:
    """Yield for every block with some of the numbers its stretch from the first to the last, and where they are."""
    order = np.argsort(index, kind="stable")
    of_block = index[order] // block
    edges = np.flatnonzero(np.r_[True, of_block[1:] != of_block[:-1], True]) if len(index) else np.zeros(1, dtype=int)
    for begin, end in itertools.pairwise(edges):
        own = order[begin:end]
        yield slice(int(index[own[0]]), int(index[own[-1]]) + 1), own
