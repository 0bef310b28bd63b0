"""The gaps of a table, filled by a fitted model in the container that the table came in."""

import warnings
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from manygp.data.adapters import own_inputs, own_names
from manygp.data.containers import OTHER_FRAMES, container_of
from manygp.data.frames import as_list, chosen_inputs, long_parts
from manygp.data.labels import check_rows
from manygp.data.names import given_names, match_names
from manygp.data.numbers import as_numbers, as_pandas, is_dataarray, like_native
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError

if TYPE_CHECKING:
    from manygp.prediction import Prediction

STATISTICS = ("mean", "std", "lower", "upper")


def fill_table(
    estimator: Any,
    X: Any,
    y: Any,
    statistics: Sequence[str],
    level: float,
    inputs: Sequence[Hashable] | None = None,
    exposure: Any = None,
    num_draws: int = 0,
    random_state: int = 0,
) -> dict[str, Any]:
    """Return a table with its gaps filled, once for each statistic, or for each joint draw."""
    _check_statistics(statistics)
    given, X = (X, None) if y is None else (y, X)
    container, held = container_of(given), as_pandas(given)
    if container == "numpy" and X is None:
        kind = type(given).__name__
        raise DataError(f"fill takes a frame, a DataArray, or X and y, and got a {kind} alone; give X too.")
    chosen = None if inputs is None else as_list(inputs)
    where = _inputs(X, held, chosen, container)
    columns, outputs = _known_columns(estimator, held, chosen or [])
    values = as_numbers(held.iloc[:, columns] if isinstance(held, pd.DataFrame) else held, "y", allow_dates=False)
    cells = values.reshape(len(values), -1)
    numbers, _ = estimator._asked(where)
    if cells.shape != (len(numbers), len(outputs)):
        raise DataError(
            f"y has shape {values.shape}, for {len(numbers)} inputs and {len(outputs)} outputs; give a row for each "
            "input and a column for each output."
        )
    row, column = np.nonzero(np.isnan(cells) & (outputs >= 0))
    if exposure is None and estimator._row_outputs_ is None and np.array_equal(estimator._inputs_, numbers):
        exposure = getattr(estimator, "exposure_", None)
    draws = num_draws, random_state
    found = _gaps(estimator, numbers, row, outputs[column], exposure, statistics, level, draws)
    filled = {}
    for name, numbers_found in found.items():
        result = np.where(np.isnan(cells), np.nan, 0.0) if name == "std" else cells.copy()
        result[row, column] = numbers_found
        filled[name] = _put_back(held, columns, result.reshape(values.shape), container)
    return filled


def fill_long(
    estimator: Any,
    frame: Any,
    inputs: Sequence[Hashable] | Hashable,
    output: Hashable,
    value: Hashable,
    statistics: Sequence[str],
    level: float,
) -> dict[str, Any]:
    """Return a long frame with its missing values filled, once for each statistic, see `fill_table`."""
    _check_statistics(statistics)
    container, held = container_of(frame), as_pandas(frame)
    x, labels, y, _ = long_parts(held, inputs, output, value)
    values = as_numbers(y, "y", allow_dates=False)
    positions = {name: i for i, name in enumerate(estimator.output_names_)}
    outputs = np.array([positions.get(name, -1) for name in match_names(given_names(labels), estimator.output_names_)])
    _check_some(outputs, given_names(labels), estimator)
    numbers, _ = estimator._asked(x)
    row = np.flatnonzero(np.isnan(values) & (outputs >= 0))
    found = _gaps(estimator, numbers, row, outputs[row], None, statistics, level)
    filled = {}
    for name, numbers_found in found.items():
        result = np.where(np.isnan(values), np.nan, 0.0) if name == "std" else values.copy()
        result[row] = numbers_found
        back = held.copy()
        back[value] = result
        filled[name] = back if container == "pandas" else _native(back, container)
    return filled


def _inputs(X: Any, held: Any, chosen: list[Hashable] | None, container: str) -> Any:
    """Inputs of a table in any container."""
    if X is not None:
        check_rows(as_pandas(X), held)
        return X
    if chosen is None and container not in OTHER_FRAMES:
        return own_inputs(held)
    if not isinstance(held, pd.DataFrame):
        raise DataError("inputs= names columns of a frame of values; give a frame, or X without inputs=.")
    return chosen_inputs(held, chosen)[0]


def _known_columns(estimator: Any, held: Any, inputs: list[Hashable]) -> tuple[IntArray, IntArray]:
    """Columns of a frame that are outputs of the model, and which; of a field all, −1 for unknown places."""
    names = own_names(held)
    if names is None or (isinstance(held, pd.Series) and estimator.n_outputs_ == 1):
        every = np.arange(estimator.n_outputs_)
        return every, every
    positions = {name: i for i, name in enumerate(estimator.output_names_)}
    asked = match_names(given_names(names), estimator.output_names_)
    outputs = np.array([positions.get(name, -1) for name in asked], dtype=np.int64)
    _check_some(outputs, asked, estimator)
    if not isinstance(held, pd.DataFrame):
        return np.arange(len(outputs)), outputs
    known = np.flatnonzero(outputs >= 0)
    others = [name for i, name in enumerate(names) if outputs[i] < 0 and name not in inputs]
    if others:
        more = f", and so do {len(others) - 1} more" if len(others) > 1 else ""
        message = f"Column {others[0]!r} is no output of the model and stays as it is{more}."
        warnings.warn(message, UserWarning, stacklevel=5)
    return known, outputs[known]


def _check_some(outputs: IntArray, asked: Sequence[Hashable], estimator: Any) -> None:
    if not (outputs >= 0).any():
        raise DataError(
            f"The table has no output of the model: it has {asked[0]!r}, and the model has "
            f"{estimator.output_names_[0]!r}; rename its columns or fit a model to it."
        )


def _gaps(
    estimator: Any,
    inputs: FloatArray,
    row: IntArray,
    outputs: IntArray,
    exposure: Any,
    statistics: Sequence[str],
    level: float,
    draws: tuple[int, int] = (0, 0),
) -> dict[str, FloatArray]:
    """Statistics of the cells at some rows and outputs, and joint draws by a number and a seed, each of shape (c,)."""
    if not len(row):
        return {name: np.empty(0) for name in (*statistics, *map(str, range(draws[0])))}
    told = None if exposure is None else np.asarray(exposure)[row]
    dist: Prediction = estimator._listed(inputs[row], outputs, True, told)
    lower, upper = dist.interval(level) if {"lower", "upper"} & set(statistics) else (None, None)
    known = {"mean": lambda: dist.mean, "std": lambda: dist.std, "lower": lambda: lower, "upper": lambda: upper}
    found = {name: np.asarray(known[name]()) for name in statistics}
    return found | ({str(i): values for i, values in enumerate(dist.sample(*draws))} if draws[0] else {})


def _put_back(held: Any, columns: IntArray, values: FloatArray, container: str) -> Any:
    """Values in place of those of a table, in its container."""
    if container == "numpy":
        return values
    if is_dataarray(held):
        return held.copy(data=values.astype(held.dtype if held.dtype.kind == "f" else np.float64))
    if isinstance(held, pd.Series):
        return pd.Series(values, held.index, name=held.name)
    back = held.copy()
    for i, column in enumerate(columns):
        # Whole numbers without a gap stay whole numbers.
        if not np.array_equal(values[:, i], as_numbers(held.iloc[:, column], "y")):
            back.isetitem(column, values[:, i])
    return back if container == "pandas" else _native(back, container)


def _native(frame: pd.DataFrame, container: str) -> Any:
    return like_native({str(name): frame[name].to_numpy() for name in frame.columns}, container)


def _check_statistics(statistics: Sequence[str]) -> None:
    for name in statistics:
        if name not in STATISTICS:
            raise SettingError(f"statistic={name!r} is unknown: use one of {', '.join(STATISTICS)}.")
