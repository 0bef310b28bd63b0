"""Between files and estimators: what was read, said in words, fitted and scored."""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from manygp import distributed
from manygp.data import Grid, Table
from manygp.data.files import write_frame
from manygp.data.names import match_names
from manygp.data.table import FloatArray
from manygp.errors import DataError
from manygp.prediction import Prediction


def listed(text: str | None) -> list[str] | None:
    """The names in a text that separates them by commas."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise DataError(f"{text!r} names no column; separate names by commas, for example a,b.")
    return names


def some(names: Sequence[Hashable], most: int = 3) -> str:
    """A few of many names, for people to read."""
    if len(names) <= most + 1:
        return ", ".join(map(str, names))
    return f"{', '.join(map(str, names[: most - 1]))}, …, {names[-1]}"


def describe(table: Table) -> str:
    """One sentence on what a file was taken as."""
    features = table.feature_names or table.axes.inputs or _positions(table.num_features)
    plural = "s" if len(features) > 1 else ""
    outputs = f"{table.num_outputs:,} output{'s' if table.num_outputs > 1 else ''} ({some(table.output_names)})"
    text = f"input{plural} {some(features)}, {outputs}, {table.num_observed:,} observed cells"
    if isinstance(table, Grid):
        total = table.num_inputs * table.num_outputs
        text = f"{table.num_inputs:,} rows, {text} of {total:,} ({1 - table.num_observed / total:.0%} missing)"
    return f"{text}."


def score_table(estimator: Any, table: Table) -> dict[str, float]:
    """Scores of an estimator on the observed cells of a table; its outputs are matched by name."""
    names = match_names(table.output_names, estimator.output_names_)
    features = table.feature_names or _positions(table.num_features)
    X = match_inputs(estimator, pd.DataFrame(table.X, columns=list(features)))
    matched = copy.copy(table)
    matched.X = np.asarray(X)
    matched.feature_names = tuple(X.columns) if isinstance(X, pd.DataFrame) else None
    if table.axes.kinds:
        kinds = np.asarray(match_inputs(estimator, pd.DataFrame([table.axes.kinds], columns=list(features))))
        matched.axes = replace(table.axes, inputs=matched.feature_names or (), kinds=tuple(kinds[0]))
    return dict(distributed.evaluate(estimator, matched, outputs=names))


def match_inputs(estimator: Any, inputs: pd.DataFrame) -> pd.DataFrame | FloatArray:
    """Inputs in the columns and order that an estimator was fitted with.

    Where one of the two sides has no names of its own, columns are matched by position.
    """
    wanted = getattr(estimator, "feature_names_in_", None)
    if wanted is None:
        return inputs.to_numpy()
    wanted = list(wanted)
    missing = [name for name in wanted if name not in inputs.columns]
    if missing and list(inputs.columns) == _positions(len(wanted)):
        return inputs.set_axis(wanted, axis=1)
    if missing:
        raise DataError(
            f"There is no input column {missing[0]!r}; the model was fitted with the inputs {some(wanted, 6)}, "
            f"and the file has {some(list(inputs.columns), 6)}."
        )
    return inputs[wanted]


def write_prediction(path: Path, prediction: Prediction, level: float = 0.9) -> None:
    """Write a prediction: a row for each cell to a CSV, Parquet or NPZ file, a field to a NetCDF or Zarr file."""
    if path.suffix.lower() == ".npz":
        frame = prediction.to_frame(level)
        if distributed.is_first():
            write_frame(path, frame)
    else:
        prediction.write(path, level)


def _positions(count: int) -> list[str]:
    """What input columns without names are called."""
    return [f"x{i}" for i in range(count)]
