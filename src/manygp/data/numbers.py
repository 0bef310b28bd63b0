"""From anything array-like to float64 numbers, or one sentence on why that cannot be."""

import importlib
import sys
from typing import Any

import numpy as np
import pandas as pd

from manygp.data.table import FloatArray
from manygp.errors import DataError

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


def as_pandas(value: Any) -> Any:
    """Return frames and series of other libraries, such as polars, as those of pandas; anything else as it is.

    By way of narwhals where that is installed, which needs nothing else; otherwise as the library does it itself.
    """
    is_known = isinstance(value, pd.DataFrame | pd.Series | pd.Index) or is_dataarray(value) or is_dataset(value)
    if is_known or not hasattr(value, "to_pandas"):
        return value
    try:
        frame = _narwhals().from_native(value, eager_only=True, allow_series=True)
    except (ImportError, TypeError):
        try:
            return value.to_pandas()
        except ImportError as error:
            raise DataError(f"A {type(value).__name__} cannot be read ({error}); give numpy or pandas.") from error
    if hasattr(frame, "columns"):
        return pd.DataFrame({name: _column(frame[name]) for name in frame.columns}, columns=list(frame.columns))
    return pd.Series(_column(frame), name=frame.name or None)


def _narwhals() -> Any:
    return importlib.import_module("narwhals.stable.v2")


def _column(series: Any) -> Any:
    """A column of a frame of another library, as pandas has it; what is missing becomes NaN."""
    values = series.to_numpy()
    return pd.Series(values).where(~pd.isna(values)) if values.dtype == object else values


def like_native(columns: dict[str, Any], library: str) -> Any:
    """Return columns by name as a frame of another library, such as polars."""
    return _narwhals().from_dict(columns, backend=library).to_native()


def kind_of(values: Any) -> str:
    """Return what a column or an array that `as_numbers` can read holds, in words."""
    kind = values.dtype.kind
    if isinstance(values.dtype, pd.DatetimeTZDtype):
        return "dates in UTC" if str(values.dtype.tz) == "UTC" else "dates of a time zone"
    if kind == "M" or isinstance(values.dtype, pd.PeriodDtype):
        return "dates"
    if kind == "O" and values.size and _is_calendar_date(first := np.asarray(values).flat[0]):
        return f"dates of the calendar {first.calendar}"
    return "time spans" if kind == "m" else "numbers"


def as_numbers(value: Any, name: str, *, allow_dates: bool = True) -> FloatArray:
    """Return any array-like as float64, by reference when it is float64 already; `name` is for errors.

    Datetimes become days since 1970 and time spans become days, so that a time axis is the same number whichever
    container it comes from. Dates of other calendars count the days of their own. Among outputs, which are numbers,
    dates are not allowed.
    """
    value = as_pandas(value)
    if isinstance(value, pd.DataFrame):
        return _frame_numbers(value, name, allow_dates)
    if isinstance(value, pd.Series | pd.Index):
        return _series_numbers(pd.Series(value), name, allow_dates)
    if hasattr(value, "tocsr"):
        raise DataTypeError(f"{name} is a sparse matrix, which is not supported here; give {name}.toarray().")
    if isinstance(value, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(value), np.nan, _array_numbers(np.asarray(value.data), name, allow_dates))
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be read as an array ({error}); give rows of equal length.") from error
    return _array_numbers(array, name, allow_dates)


def _frame_numbers(frame: pd.DataFrame, name: str, allow_dates: bool) -> FloatArray:
    """The columns of a frame as float64, missing values as NaN."""
    if all(isinstance(dtype, np.dtype) and dtype.kind in "fiub" for dtype in frame.dtypes):
        # One block of one dtype comes out without a copy.
        return np.asarray(frame.to_numpy(), dtype=np.float64)
    # By position: two columns may share a name, which is for others to object to.
    columns = [
        _series_numbers(frame.iloc[:, i], f"{name} column {frame.columns[i]!r}", allow_dates)
        for i in range(frame.shape[1])
    ]
    return np.stack(columns, axis=1) if columns else np.empty(frame.shape)


def _series_numbers(series: pd.Series, name: str, allow_dates: bool) -> FloatArray:
    if isinstance(series.dtype, pd.DatetimeTZDtype):
        series = series.dt.tz_convert(None)
    if isinstance(series.dtype, pd.PeriodDtype):
        series = series.dt.to_timestamp()
    if series.dtype == object:
        # pandas' own mark of a missing value is no number to numpy.
        return _array_numbers(np.where(series.isna(), np.nan, series.to_numpy()), name, allow_dates)
    if isinstance(series.dtype, np.dtype):
        return _array_numbers(series.to_numpy(), name, allow_dates)
    if not pd.api.types.is_numeric_dtype(series.dtype):
        raise DataError(f"{name} holds {series.dtype} values and numbers were expected; encode or drop it.")
    return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))


def _array_numbers(array: np.ndarray[Any, Any], name: str, allow_dates: bool) -> FloatArray:
    kind = array.dtype.kind
    is_calendar = kind == "O" and array.size and _is_calendar_date(array.flat[0])
    if not allow_dates and (kind == "M" or is_calendar):
        raise DataError(f"{name} holds dates and outputs are numbers; give dates as inputs, X, or leave them out.")
    if kind in "mM":
        return _days(array, name)
    if kind == "c":
        raise DataError(f"Complex data not supported: {name} has dtype {array.dtype}; give real numbers.")
    if kind in "USV":
        raise DataError(f"{name} holds text or records and numbers were expected; convert it to float first.")
    if is_calendar:
        return _calendar_days(array, name)
    try:
        return np.asarray(array, dtype=np.float64)
    except TypeError as error:
        raise DataTypeError(f"{name} holds objects that are not numbers ({error}); give numbers or NaN.") from error
    except ValueError as error:
        raise DataError(f"{name} holds values that are not numbers ({error}); give numbers or NaN.") from error
    except OverflowError as error:
        raise DataError(f"{name} holds a whole number beyond double precision; divide by a large number.") from error


def _is_calendar_date(value: object) -> bool:
    return type(value).__module__.startswith("cftime")


def _days(array: np.ndarray[Any, Any], name: str) -> FloatArray:
    if np.datetime_data(array.dtype)[0] == "generic" and not np.isnat(array).all():
        raise DataError(f"{name} holds time spans without a unit; say which with astype('timedelta64[D]') or the like.")
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
