"""Inputs that repeat themselves, as points on circles beside the inputs themselves."""

from collections.abc import Sequence

import numpy as np

from manygp.data.axes import Axes
from manygp.data.table import FloatArray, Table
from manygp.errors import SettingError

#: Periods of dates by name, in days.
PERIODS = {"hour": 1.0 / 24.0, "day": 1.0, "week": 7.0, "year": 365.2425}


def find_seasons(seasons: Sequence[tuple[float | str, int | str | None]], table: Table) -> FloatArray:
    """Return column and period of seasons in the units of a table, dates in days, shape (k, 2).

    A season is given by its period, a number or a name, and its column, by number, name or None.
    """
    found = np.empty((len(seasons), 2))
    for i, (period, column) in enumerate(seasons):
        at = _column(column, period, table)
        if isinstance(period, str):
            if period not in PERIODS:
                raise SettingError(f"periodic({period!r}) is no period: use a number, or one of {', '.join(PERIODS)}.")
            if not _dated(table.axes)[at : at + 1] == [True]:
                raise SettingError(
                    f"periodic({period!r}) is for dates, and column {at} of X holds none: give the period as a number "
                    "in units of that column."
                )
            period = PERIODS[period]
        found[i] = at, period
    return found


def with_circles(X: FloatArray, seasons: FloatArray) -> FloatArray:
    """Return inputs (n, d) with sine and cosine of every season behind them, shape (n, d + 2 k)."""
    # 2π x / T
    angle = 2.0 * np.pi * X[..., seasons[:, 0].astype(np.int64)] / seasons[:, 1]
    circles = np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return np.concatenate([X, circles.reshape(*X.shape[:-1], -1)], axis=-1)


def _dated(axes: Axes) -> list[bool]:
    return [kind.startswith("dates") for kind in axes.kinds]


def _column(column: int | str | None, period: float | str, table: Table) -> int:
    names, d = list(table.feature_names or table.axes.inputs), table.num_features
    if column is None:
        dated = [i for i, is_date in enumerate(_dated(table.axes)) if is_date]
        if d == 1 or len(dated) == 1:
            return 0 if d == 1 else dated[0]
        raise SettingError(f"periodic({period!r}) could be of any of {d} inputs: say which, periodic({period!r}, 0).")
    at = names.index(column) if isinstance(column, str) and column in names else column
    if isinstance(at, str | bool) or not 0 <= at < d:
        known = ", ".join(map(repr, names)) or f"numbers from 0 to {d - 1}"
        raise SettingError(f"periodic({period!r}, {column!r}) names no input: use {known}.")
    return at
