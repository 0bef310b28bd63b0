"""Results that are larger than memory, written part by part: fields to NetCDF and Zarr, frames to CSV and Parquet."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.axes import Axes
from manygp.data.fields import as_dataset, storable
from manygp.data.files import unknown_format, write_file
from manygp.data.stores import FIELD_SUFFIXES, write_field
from manygp.data.table import FloatArray
from manygp.extras import need

FRAME_SUFFIXES = (".csv", ".parquet")


def write_field_parts(
    path: Path,
    compute: Callable[[slice], Mapping[str, FloatArray]],
    parts: Sequence[slice],
    rows: pd.DataFrame,
    names: Sequence[Hashable],
    axes: Axes,
    attributes: Mapping[str, Any],
) -> None:
    """Write numbers of inputs times outputs, or of a list of cells, to a NetCDF or Zarr file, whole or not at all.

    `compute` gives them by name at the rows of a part; parts follow each other. Rows, names and axes are those of
    `as_dataset`.
    """
    array = need("dask.array", "files", str(path))
    dask = need("dask", "files", str(path))
    example = compute(slice(0, 1))

    def numbers(block_id: tuple[int, ...]) -> FloatArray:
        return np.stack(list(compute(parts[block_id[1]]).values()))

    # One array of all statistics, so that those of a part are computed together and written before the next part.
    chunks: Any = ((len(example),), tuple(part.stop - part.start for part in parts))
    chunks += tuple((size,) for size in next(iter(example.values())).shape[1:])
    like = np.empty((0,) * len(chunks))
    together = array.map_blocks(numbers, chunks=chunks, dtype=like.dtype, meta=like)
    values = {name: together[number] for number, name in enumerate(example)}
    dataset = storable(as_dataset(values, rows, names, axes)).assign_attrs(attributes)
    with dask.config.set(scheduler="synchronous"):
        write_file(path, lambda to: write_field(to, dataset))


def write_frame_parts(path: Path, frames: Iterator[pd.DataFrame]) -> None:
    """Write frames of the same columns, one below the other, to a CSV or Parquet file, whole or not at all."""
    if path.suffix.lower() not in FRAME_SUFFIXES:
        raise unknown_format(path, "written part by part", ", ".join((*FIELD_SUFFIXES, *FRAME_SUFFIXES)))
    append = _append_csv if path.suffix.lower() == ".csv" else _append_parquet
    write_file(path, lambda to: append(to, frames))


def _append_csv(to: Path, frames: Iterator[pd.DataFrame]) -> None:
    for number, frame in enumerate(frames):
        frame.to_csv(to, mode="a", header=not number, index=False)


def _append_parquet(to: Path, frames: Iterator[pd.DataFrame]) -> None:
    arrow, parquet = need("pyarrow", "files", to.name), need("pyarrow.parquet", "files", to.name)
    writer = None
    try:
        for frame in frames:
            # Parquet wants text for the names of columns, whatever they are in the frame.
            named = frame.rename(columns=str)
            schema = None if writer is None else writer.schema
            part = arrow.Table.from_pandas(named, schema=schema, preserve_index=False)
            writer = writer or parquet.ParquetWriter(to, part.schema)
            writer.write_table(part)
    finally:
        if writer is not None:
            writer.close()
