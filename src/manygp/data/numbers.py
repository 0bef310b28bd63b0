"""From anything array-like to float64 numbers, or one sentence on why that cannot be."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.table import FloatArray
from manygp.errors import DataError

__all__ = ["DataTypeError", "as_numbers", "frame_numbers", "is_dataarray", "is_dataset"]

EPOCH = np.datetime64("1970-01-01", "D")


class DataTypeError(DataError, TypeError):
    """The data hold objects that are not numbers at all."""


def is_dataarray(value: object) -> bool:
    """Return whether a value is an xarray DataArray, without importing xarray for those who have none."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(value, xarray.DataArray)


def is_dataset(value: object) -> bool:
    """Return whether a value is an xarray Dataset, without importing xarray either."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(value, xarray.Dataset)


def as_numbers(value: Any, name: str) -> FloatArray:
    """Return any array-like as float64, by reference when it is float64 already.

    Datetimes become days since 1970 and time spans become days, so that a time axis is the same number
    whichever container it comes from. Dates of other calendars count the days of their own.

    Parameters
    ----------
    value
        A list, array, tensor, Series, Index, DataFrame or DataArray.
    name
        What to call it in an error.
    """
    if isinstance(value, pd.DataFrame):
        return frame_numbers(value, name)
    if isinstance(value, pd.Series | pd.Index):
        return _series_numbers(pd.Series(value), name)
    if hasattr(value, "tocsr"):
        raise DataTypeError(f"{name} is a sparse matrix, which is not supported here; give {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), np.nan)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be read as an array ({error}); give rows of equal length.") from error
    return _array_numbers(array, name)


def frame_numbers(frame: pd.DataFrame, name: str) -> FloatArray:
    """Return the columns of a frame as float64, missing values as NaN."""
    if all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in frame.dtypes):
        # One block of one dtype comes out without a copy.
        return np.asarray(frame.to_numpy(), dtype=np.float64)
    # By position: two columns may share a name, which is for others to object to.
    columns = [_series_numbers(frame.iloc[:, i], f"{name} column {frame.columns[i]!r}") for i in range(frame.shape[1])]
    return np.stack(columns, axis=1) if columns else np.empty(frame.shape)


def _series_numbers(series: pd.Series, name: str) -> FloatArray:
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert(None)
    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    if series.dtype == object:
        # pandas' own mark of a missing value is no number to numpy.
        series = series.where(series.notna(), np.nan)
    if isinstance(series.dtype, np.dtype):
        return _array_numbers(series.to_numpy(), name)
    if not pd.api.types.is_numeric_dtype(series.dtype):
        raise DataError(f"{name} holds {series.dtype} values and numbers were expected; encode or drop it.")
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))


def _array_numbers(array: np.ndarray[Any, Any], name: str) -> FloatArray:
    kind = array.dtype.kind
    if kind in "mM":
        return _days(array, name)
    if kind == "c":
        raise DataError(f"Complex data not supported: {name} has dtype {array.dtype}; give real numbers.")
    if kind in "USV":
        raise DataError(f"{name} holds text or records and numbers were expected; convert it to float first.")
    if kind == "O" and array.size and type(array.flat[0]).__module__.startswith("cftime"):
        return _calendar_days(array, name)
    try:
        return np.asarray(array, dtype=np.float64)
    except TypeError as error:
        raise DataTypeError(f"{name} holds objects that are not numbers ({error}); give numbers or NaN.") from error
    except ValueError as error:
        raise DataError(f"{name} holds values that are not numbers ({error}); give numbers or NaN.") from error


def _days(array: np.ndarray[Any, Any], name: str) -> FloatArray:
    # In the unit that dates come in: nanoseconds would overflow outside of 1678 to 2262.
    span = array - EPOCH if array.dtype.kind == "M" else array
    try:
        return np.asarray(span / np.timedelta64(1, "D"), dtype=np.float64)
    except TypeError as error:
        raise DataError(f"{name} holds spans of months or years, whose length varies; give them in days.") from error


def _calendar_days(array: np.ndarray[Any, Any], name: str) -> FloatArray:
    epoch = array.flat[0].replace(year=1970, month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    try:
        return _days((array - epoch).astype("timedelta64[us]"), name)
    except TypeError as error:
        raise DataError(f"{name} holds dates that do not go together ({error}); give them in one calendar.") from error
