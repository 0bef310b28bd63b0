"""Frames by the names of their columns: which hold inputs, which name outputs, which are values."""

from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from manygp.data.numbers import as_pandas
from manygp.errors import DataError


def long_parts(
    frame: Any,
    inputs: Sequence[Hashable] | Hashable | None,
    output: Hashable,
    value: Hashable,
    exposure: Hashable | None = None,
    name: str = "The frame",
) -> tuple[pd.DataFrame, pd.Series, pd.Series, pd.Series | None]:
    """Return inputs, outputs, values and exposures of a frame with one observation in each row, by their columns.

    Inputs are all other columns by default; `name` is what an error calls the frame.
    """
    held = as_pandas(frame)
    if not isinstance(held, pd.DataFrame):
        raise DataError(f"{name} is a {type(frame).__name__}; give a frame with one observation in each row.")
    held, _ = with_levels(held)
    others = [column for column in held.columns if column not in (output, value, exposure)]
    chosen = others if inputs is None else as_list(inputs)
    check_columns(held, name, [*chosen, output, value, *([] if exposure is None else [exposure])])
    return held[chosen], held[output], held[value], None if exposure is None else held[exposure]


def chosen_inputs(frame: pd.DataFrame, inputs: Sequence[Hashable] | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the columns of a frame that are inputs, and the others; None, where frames have no index, is refused."""
    if inputs is None:
        raise DataError(
            "X is None and frames of this library have no index to take inputs from; name the columns that hold them, "
            f"inputs=[{frame.columns[0]!r}], if that is one."
        )
    chosen = as_list(inputs)
    missing = [name for name in chosen if name not in frame.columns]
    if missing or not chosen:
        known = ", ".join(map(repr, frame.columns[:8])) + (", ..." if frame.shape[1] > 8 else "")
        raise DataError(f"inputs={inputs!r} are no columns of the frame, which has {known}; name some of these.")
    return frame[chosen], frame.drop(columns=chosen)


def as_list(names: Sequence[Hashable] | Hashable) -> list[Hashable]:
    """Return names of columns as a list, of one name too."""
    return [names] if isinstance(names, str) or not isinstance(names, Sequence) else list(names)


def with_levels(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return a frame whose index is among its columns, and their names; an index that only counts rows has none."""
    index = frame.index
    if index.nlevels == 1 and index.name is None and index.dtype.kind in "iu":
        return frame, []
    unnamed = ["index"] if index.nlevels == 1 else [f"level_{i}" for i in range(index.nlevels)]
    levels = [other if name is None else str(name) for name, other in zip(index.names, unnamed, strict=True)]
    return frame.reset_index(names=levels), levels


def check_columns(frame: pd.DataFrame, name: str, wanted: Sequence[Hashable]) -> None:
    """Refuse columns that a frame does not have, or that are wanted twice."""
    missing = [column for column in wanted if column not in frame.columns]
    if missing:
        known = ", ".join(map(str, frame.columns[:8])) + (", ..." if frame.shape[1] > 8 else "")
        raise DataError(f"{name} has no column {missing[0]!r}; it has {known}.")
    repeated = [column for i, column in enumerate(wanted) if column in wanted[:i]]
    if repeated:
        raise DataError(
            f"Column {repeated[0]!r} of {name} was given twice; give it once, as an input, output or value."
        )
