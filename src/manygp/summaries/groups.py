"""Weights of cells in sums: as arrays, over outputs or inputs, by labels, by periods of time."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from manygp.data.fields import input_names
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError

OVER = ("output", "input", "all")


def given_weights(weights: Any, shape: tuple[int, ...]) -> tuple[sparse.csr_array, pd.DataFrame]:
    """Weights that were given as numbers: of all cells for one sum, or with a first axis for several.

    That is an array of the shape of the prediction, or with one axis more in front; or a matrix, sparse or not, of sums
    times cells. A data frame of such a matrix names the sums by its index.
    """
    size = int(np.prod(shape))
    labels = weights.index if isinstance(weights, pd.DataFrame) and weights.shape != shape else None
    if sparse.issparse(weights):
        matrix = sparse.csr_array(weights, dtype=np.float64)
    else:
        values = as_numbers(weights, "weights", allow_dates=False)
        if values.shape == shape:
            values = values.reshape(1, size)
        elif values.ndim > 1 and values.shape[1:] in (shape, (size,)):
            values = values.reshape(len(values), size)
        else:
            raise DataError(
                f"weights have shape {values.shape}, but the prediction has shape {shape}; give one weight for each of "
                "its cells, or a matrix with a row of them for each sum."
            )
        matrix = sparse.csr_array(values)
    if matrix.shape[1] != size:
        raise DataError(f"weights have {matrix.shape[1]} columns and the prediction {size} cells; give one for each.")
    if not np.isfinite(matrix.data).all():
        raise DataError("weights hold NaN or infinity; give finite numbers, 0 for cells that do not count.")
    return matrix, pd.DataFrame({"sum": np.arange(matrix.shape[0]) if labels is None else labels})


def group_weights(
    over: str,
    weights: Any,
    by: Any,
    freq: str | None,
    is_total: bool,
    shape: tuple[int, ...],
    rows: pd.DataFrame,
    names: Sequence[Hashable],
) -> tuple[sparse.csr_array, pd.DataFrame]:
    """Weights of means, or totals, over outputs or inputs, by labels; see `mean_over` of predictions.

    Totals take weights as they are, those of a mean add up to one. Rows are the inputs of the prediction as the user
    knows them, names those of its outputs.
    """
    if over not in OVER:
        raise SettingError(f"over={over!r} is unknown: use one of {', '.join(map(repr, OVER))}.")
    is_list = len(shape) == 1
    cells = np.arange(shape[0]) if is_list else np.arange(shape[0] * shape[1])
    row, column = (cells, cells) if is_list else (cells // shape[1], cells % shape[1])
    along = row if over == "input" else column
    keys = rows.index if over == "input" else list(names)
    value = np.ones(len(keys)) if weights is None else _aligned(weights, keys, "weights", True)
    parts: dict[str, Any] = {}
    if over == "output" and freq is None:
        parts |= _inputs(rows, row)
    if freq is not None:
        parts["period"] = _periods(rows, freq)[row]
    if over == "input":
        parts["output"] = _codes(names, column)
    if by is not None:
        parts["label"] = _codes(_aligned(by, keys, "by", False), along)
    labels, group = _distinct(parts, len(cells))
    size = len(labels)
    totals = np.bincount(group, weights=value[along], minlength=size)
    if not is_total and (np.abs(totals) < 1e-300).any():
        raise DataError("The weights of a mean add up to 0; give others, or use sum_over, where they need not add up.")
    entry = value[along] if is_total else value[along] / totals[group]
    return sparse.csr_array((entry, (group, cells)), shape=(size, len(cells))), labels


def _aligned(values: Any, keys: Sequence[Hashable], name: str, is_number: bool) -> Any:
    """One value for each key, from a mapping or series by key, or from an array in their order."""
    if isinstance(values, pd.Series) and not isinstance(values.index, pd.RangeIndex):
        values = dict(zip(values.index, values, strict=True))
    if isinstance(values, dict):
        missing = [key for key in keys if key not in values]
        if missing:
            raise DataError(f"{name} say nothing about {missing[0]!r}; give a value for each.")
        values = [values[key] for key in keys]
    if hasattr(values, "values") and not isinstance(values, pd.Series):
        values = np.asarray(values.values).reshape(-1)
    if is_number:
        values = as_numbers(values, name, allow_dates=False)
    if len(values) != len(keys):
        raise DataError(f"{name} have {len(values)} entries for {len(keys)}; give one for each.")
    return values if is_number else list(values)


def _inputs(rows: pd.DataFrame, row: IntArray) -> dict[str, Any]:
    """Labels of inputs: their index if it says something, else their columns."""
    if not isinstance(rows.index, pd.RangeIndex):
        return {str(rows.index.name or "input"): rows.index[row]}
    return {name: rows.iloc[:, k].array[row] for k, name in enumerate(input_names(rows, {"period", "label", "sum"}))}


def _periods(rows: pd.DataFrame, freq: str) -> pd.DatetimeIndex:
    """Beginning of the period of every input."""
    dated = rows.select_dtypes(["datetime", "datetimetz"])
    dates = rows.index if isinstance(rows.index, pd.DatetimeIndex) else None
    if dates is None and dated.shape[1] == 1:
        dates = pd.DatetimeIndex(dated.iloc[:, 0])
    if dates is None:
        raise DataError(f"freq={freq!r} needs inputs with dates; give X with an index or a column of dates, or use by.")
    try:
        groups = pd.Series(np.arange(len(dates)), index=dates).groupby(pd.Grouper(freq=freq))
    except ValueError as error:
        raise SettingError(f"freq={freq!r} is no frequency of pandas: use one such as 'YS' or 'MS'.") from error
    start = np.empty(len(dates), dtype="datetime64[ns]")
    for period, members in groups:
        start[members.to_numpy()] = np.datetime64(pd.Timestamp(period).tz_localize(None), "ns")
    return pd.DatetimeIndex(start)


def _codes(labels: Sequence[Any], at: IntArray) -> pd.Categorical:
    """Labels of cells, which may be tuples."""
    distinct: dict[Any, int] = {}
    codes = np.array([distinct.setdefault(label, len(distinct)) for label in labels])
    return pd.Categorical.from_codes(codes[at], pd.Index(list(distinct), dtype=object, tupleize_cols=False))


def _distinct(parts: dict[str, Any], count: int) -> tuple[pd.DataFrame, FloatArray]:
    """Distinct combinations of labels in order of appearance, and that of every cell."""
    if not parts:
        return pd.DataFrame({"sum": ["all"]}), np.zeros(count, dtype=np.int64)
    frame = pd.DataFrame(parts)
    number = frame.groupby(list(parts), sort=False, observed=True, dropna=False).ngroup().to_numpy()
    first = np.unique(number, return_index=True)[1]
    labels = frame.iloc[first].reset_index(drop=True)
    return labels.apply(lambda c: c.astype(object) if isinstance(c.dtype, pd.CategoricalDtype) else c), number
