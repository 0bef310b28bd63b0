"""`manygp fill`: the gaps of a file, filled into a file of the same kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.files import HDF5_SUFFIXES, unknown_format, write_file, write_frame
from manygp.data.numbers import as_numbers
from manygp.data.sources import Source
from manygp.data.stores import ANNOTATED_SUFFIXES, FIELD_SUFFIXES, write_annotated, write_field
from manygp.errors import DataError
from manygp.estimators.filling import fill_long, fill_table
from manygp.extras import need

_STATISTICS = ("mean", "std", "lower", "upper")
# What a file of each kind can be written as.
_SUFFIXES: dict[str, Sequence[str]] = {
    "wide": (".csv", ".parquet"),
    "long": (".csv", ".parquet"),
    "field": FIELD_SUFFIXES,
    "annotated": ANNOTATED_SUFFIXES,
    "arrays": (".npz", *HDF5_SUFFIXES),
}


def check_kind(source: Source, out: Path) -> None:
    """Refuse a name for the result that ends in a format of another kind, before any work."""
    if out.suffix.lower() not in _SUFFIXES[source.kind]:
        raise unknown_format(out, "written from this file", " or ".join(_SUFFIXES[source.kind]))


def fit_source(estimator: Any, source: Source) -> Any:
    """Fit an estimator to what a file holds."""
    return estimator.fit(source.table())


def fill_source(estimator: Any, source: Source, level: float = 0.9) -> tuple[dict[str, Any], int]:
    """Return what a file holds with its gaps filled, by statistic, and how many there were."""
    data = source.data
    if source.kind == "wide":
        chosen = data[[*source.inputs, *source.outputs]]
        found = fill_table(estimator, chosen[source.inputs], chosen[source.outputs], _STATISTICS, level)
        return found, _count(chosen[source.outputs], found["mean"])
    if source.kind == "long":
        found = fill_long(estimator, data, source.inputs, source.outputs, source.value, _STATISTICS, level)
        return found, _count(data[source.value], found["mean"][source.value])
    if source.kind == "field":
        found = fill_table(estimator, data, None, _STATISTICS, level)
        return found, _count(data.to_numpy(), found["mean"].to_numpy())
    if source.kind == "annotated":
        values = source.outputs.toarray() if hasattr(source.outputs, "toarray") else np.asarray(source.outputs)
        found = fill_table(estimator, source.inputs, values.astype(np.float64), _STATISTICS, level)
        return found, _count(values, found["mean"])
    if "outputs" in data:
        raise DataError("A list of cells has no gaps to fill; give a table with NaN in it, or use manygp predict.")
    values = as_numbers(data["Y"], "Y")
    if data.get("mask") is not None:
        values = np.where(np.asarray(data["mask"], dtype=bool), values, np.nan)
    found = fill_table(estimator, data["X"], values, _STATISTICS, level)
    return found, _count(values, found["mean"])


def _count(before: Any, after: Any) -> int:
    return int(np.isnan(as_numbers(before, "y")).sum() - np.isnan(as_numbers(after, "y")).sum())


def write_filled(out: Path, source: Source, found: dict[str, Any], level: float, std: Path | None = None) -> None:
    """Write what `fill_source` returned in the layout of its file.

    A field gets variables, an AnnData layers, arrays get arrays for the standard deviation and the ends of the
    interval; a long frame gets columns; standard deviations of a wide one go to a file of their own, if any.
    """
    data, percent = source.data, f"{100 * level:g}"
    if source.kind == "wide":
        write_frame(out, _with_columns(data, found["mean"]))
        if std is not None:
            write_frame(std, _with_columns(data, found["std"]))
        return
    if source.kind == "long":
        columns = {"std": found["std"], f"lower{percent}": found["lower"], f"upper{percent}": found["upper"]}
        extra = {name: held[source.value].to_numpy() for name, held in columns.items()}
        write_frame(out, found["mean"].assign(**extra))
        return
    if source.kind == "field":
        name = str(data.name or "value")
        parts = {name: found["mean"].rename(name)}
        for statistic in ("std", "lower", "upper"):
            label = f"{name}_std" if statistic == "std" else f"{name}_{statistic}{percent}"
            parts[label] = found[statistic].rename(label)
        dataset = need("xarray", "xarray", str(out)).Dataset(parts)
        for variable in dataset.variables.values():
            # How values were packed in the file that was read need not suit those that were filled in.
            variable.encoding = {key: held for key, held in variable.encoding.items() if key in ("units", "calendar")}
        write_file(out, lambda to: write_field(to, dataset))
        return
    if source.kind == "annotated":
        filled = data.copy()
        for statistic in ("mean", "std"):
            filled.layers[f"manygp_{statistic}"] = np.asarray(found[statistic], dtype=np.float32)
        write_file(out, lambda to: write_annotated(to, filled))
        return
    arrays = {"X": as_numbers(data["X"], "X"), "Y": found["mean"], "std": found["std"]}
    arrays |= {f"{name}{percent}": found[name] for name in ("lower", "upper")}
    write_file(out, lambda to: _write_arrays(to, arrays))


def _with_columns(frame: pd.DataFrame, columns: pd.DataFrame) -> pd.DataFrame:
    back = frame.copy()
    for name in columns.columns:
        back[name] = columns[name].to_numpy()
    return back


def _write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
        return
    with need("h5py", "files", str(path)).File(path, "w") as file:
        for name, values in arrays.items():
            file[name] = values
