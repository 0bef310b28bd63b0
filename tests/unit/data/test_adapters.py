import datetime
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manygp.data import as_inputs, as_table, cells_table
from manygp.data.numbers import as_numbers
from manygp.errors import DataError

from .tables import grids, numbers

X = np.arange(4.0)[:, None]


@given(grids())
def test_every_container_gives_the_same_table(table):
    names = [f"out{p}" for p in range(table.num_outputs)]
    frame = pd.DataFrame(table.Y, columns=names)
    for values in (table.Y, table.Y.tolist(), frame, frame.convert_dtypes(), np.ma.masked_invalid(table.Y)):
        same = as_table(table.X, values, table.mask)
        assert np.array_equal(same.Y, table.Y, equal_nan=True)
        assert same.num_observed == table.num_observed
    assert as_table(table.X, frame, table.mask).output_names == tuple(names)


@given(st.lists(st.tuples(numbers, st.sampled_from("dbca"), numbers), min_size=1, max_size=20))
def test_cells_keep_input_output_and_value_together(cells):
    x, outputs, y = zip(*cells, strict=True)
    table = cells_table(np.array(x)[:, None], outputs, y)
    assert table.output_names == tuple(sorted(set(outputs)))
    found = [
        (float(a), table.output_names[p], float(b))
        for a, p, b in zip(table.X[:, 0], table.output, table.y, strict=True)
    ]
    assert found == [(a, name, b) for a, name, b in cells]


def test_float64_values_are_not_copied():
    Y = np.ones((4, 3))
    assert as_table(X, Y).Y is Y
    assert np.shares_memory(as_table(X, Y[:, 0]).Y, Y)
    assert np.shares_memory(as_table(X, pd.DataFrame(Y)).Y, Y)


def test_one_dimensional_values_become_one_column():
    assert as_table(X, [1.0, 2.0, None, 4.0]).Y.shape == (4, 1)
    assert as_table(X, pd.Series([1, 2, 3, 4], name="z")).output_names == ("z",)
    assert as_table(X, np.ones(4), mask=[True, False, True, True]).num_observed == 3


def test_frames_name_features_and_outputs():
    frame = pd.DataFrame({"time": pd.date_range("1970-01-02", periods=4), "height": [1, 2, 2, 4]})
    table = as_table(frame, pd.DataFrame({"a": [1, 2, 3, None], "b": pd.array([1, None, 3, 4], dtype="Int64")}))
    assert table.feature_names == ("time", "height")
    assert table.output_names == ("a", "b")
    assert table.X.tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 2.0], [4.0, 4.0]]
    assert table.count_per_output().tolist() == [3, 3]


def test_a_frame_without_inputs_gives_its_index():
    table = as_table(None, pd.DataFrame({"a": [1.0, 2.0]}, index=pd.DatetimeIndex(["1970-01-01", "1970-01-01T12:00"])))
    assert table.X.tolist() == [[0.0], [0.5]]


@pytest.mark.parametrize(
    "times",
    [
        pd.date_range("1970-01-03", periods=2, tz="UTC"),
        pd.period_range("1970-01-03", periods=2, freq="D"),
        pd.Series(pd.timedelta_range("2 days", periods=2)),
        np.array([["1970-01-03"], ["1970-01-04"]], dtype="datetime64[s]"),
    ],
)
def test_times_become_days_in_every_container(times):
    assert as_inputs(times).tolist() == [[2.0], [3.0]]


@pytest.mark.parametrize("year", ["1500", "3000"])
def test_dates_beyond_the_range_of_nanoseconds(year):
    days = (datetime.date(int(year), 3, 1) - datetime.date(1970, 1, 1)).days
    for unit in ("D", "s", "us"):
        assert as_inputs(np.array([[f"{year}-03-01"]], dtype=f"datetime64[{unit}]")).tolist() == [[days]]


def test_missing_values_of_pandas_in_a_column_of_objects():
    frame = pd.DataFrame({"a": [1.5, pd.NA, None, 2], "b": [1, 2, 3, pd.NA]}, dtype=object)
    expected = [[1.5, 1.0], [np.nan, 2.0], [np.nan, 3.0], [2.0, np.nan]]
    assert np.array_equal(as_table(X, frame).Y, expected, equal_nan=True)


def test_names_given_win_over_names_found():
    table = as_table(X, pd.DataFrame(np.ones((4, 2)), columns=["a", "b"]), output_names=["c", "d"])
    assert table.output_names == ("c", "d")


def test_a_dataarray_is_stacked_into_outputs():
    xarray = pytest.importorskip("xarray")
    values = np.arange(24.0).reshape(4, 2, 3)
    field = xarray.DataArray(
        values,
        dims=("time", "lat", "lon"),
        coords={"time": pd.date_range("1970-01-01", periods=4), "lat": [50.0, 51.0], "lon": [0, 1, 2]},
    )
    table = as_table(None, field)
    assert table.X.ravel().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert np.shares_memory(table.Y, values)
    assert table.output_names[:4] == ((50.0, 0), (50.0, 1), (50.0, 2), (51.0, 0))
    for name, column in zip(table.output_names, table.Y.T, strict=True):
        assert np.array_equal(column, field.sel(lat=name[0], lon=name[1]).values)
    assert as_table(None, field, mask=field > 3).num_observed == 20
    assert as_inputs(field["time"]).ravel().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_dataarray_with_one_other_dimension_has_scalar_names():
    xarray = pytest.importorskip("xarray")
    named = xarray.DataArray(np.ones((4, 2)), dims=("t", "site"), coords={"site": ["a", "b"]})
    assert as_table(None, named).output_names == ("a", "b")
    assert as_table(None, named).X.ravel().tolist() == [0.0, 1.0, 2.0, 3.0]
    dated = xarray.DataArray(np.ones((4, 1)), dims=("x", "t"), coords={"t": pd.to_datetime(["2020-01-01"])})
    assert as_table(X, dated).output_names == ("2020-01-01 00:00:00",)
    assert as_table(None, named[:, 0]).output_names == (0,)


def test_xarray_is_not_imported_for_those_who_do_not_use_it():
    code = "import sys, manygp.data as d; d.as_table([[1.0]], [[2.0]]); sys.exit('xarray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_categories_order_the_outputs_of_cells():
    outputs = pd.Categorical(["u", "v", "u", "u"], categories=["z", "v", "u"])
    table = cells_table(X, outputs, [1.0, 2.0, 3.0, np.nan])
    assert table.output_names == ("z", "v", "u")
    assert table.output.tolist() == [2, 1, 2]
    assert table.num_observed == 3


def test_cells_of_any_kind_of_name():
    assert cells_table(X, [(1, 2), (0, 3), (1, 2), (0, 1)], np.ones(4)).output_names == ((0, 1), (0, 3), (1, 2))
    assert cells_table(X, ["b", 1, "b", 1], np.ones(4)).output_names == ("b", 1)
    table = cells_table(X, np.array([7, 3, 7, 3]), np.ones(4), output_names=[7, 5, 3])
    assert table.output.tolist() == [0, 2, 0, 2]
    assert table.output_names == (7, 5, 3)
    assert all(type(name) is int for name in cells_table(X, np.array([7, 3, 7, 3]), np.ones(4)).output_names)
    ranges = pd.IntervalIndex.from_breaks([0, 1, 2])[[1, 0, 1, 0]]
    assert cells_table(X, ranges, np.ones(4)).output_names == ("(0, 1]", "(1, 2]")
    turned = cells_table(X, pd.Categorical(ranges), np.ones(4), output_names=["(1, 2]", "(0, 1]"])
    assert turned.output.tolist() == [0, 1, 0, 1]
    days = pd.to_datetime(["2020-01-02", "2020-01-01"] * 2)
    dated = cells_table(X, days, np.ones(4))
    assert dated.output_names == ("2020-01-01 00:00:00", "2020-01-02 00:00:00")
    assert cells_table(X, days, np.ones(4), output_names=days[:2]).output.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("X", "Y", "says"),
    [
        (X, None, "target y is None"),
        (None, np.ones((4, 2)), "X is None"),
        (X, np.ones(3), "4 rows and Y has 3"),
        (X, np.ones((4, 2, 2)), r"Y has shape \(4, 2, 2\)"),
        (X, np.ones((4, 0)), "no output"),
        (X, np.full((4, 2), np.nan), "no observed cell"),
        (X, [1.0, 2.0, np.inf, 4.0], r"infinity \(row 2, output 0\)"),
        (X, [["a"], ["b"], ["c"], ["d"]], "text"),
        (X, np.array([[1.0], ["b"], [2.0], [3.0]], dtype=object), "not numbers"),
        (X, [[{}], [1], [2], [3]], "not numbers"),
        (X, np.ones(4) + 1j, "Complex data not supported"),
        (X, [[1.0, 2.0], [3.0], [4.0], [5.0]], "cannot be read as an array"),
        (X, pd.DataFrame({"a": list("wxyz")}), "column 'a'"),
        (X, pd.DataFrame({"a": pd.Categorical(list("wxyz"))}), "column 'a'"),
        (X, pd.DataFrame(np.ones((4, 2)), columns=["a", "a"]), "'a' occurs more than once"),
        (np.ones(4), np.ones(4), "Reshape your data"),
        (np.ones((4, 0)), np.ones(4), r"0 feature\(s\) \(shape=\(4, 0\)\) while a minimum of 1 is required"),
        (np.ones((0, 2)), np.ones((0, 1)), "0 rows"),
        (np.array([[1.0], [np.nan], [2.0], [3.0]]), np.ones(4), "NaN or infinity"),
        (np.array([[1.0], [np.inf], [2.0], [3.0]]), np.ones(4), "NaN or infinity"),
        (np.array([[1.0], [1e200], [2.0], [3.0]]), np.ones(4), r"1e\+200, which is too large"),
        (np.arange(4).astype("timedelta64[M]")[:, None], np.ones(4), "months or years"),
        (np.arange(4).astype("timedelta64")[:, None], np.ones(4), "time spans without a unit"),
        (X, np.ma.masked_array(np.ones(4) + 1j, mask=[1, 0, 0, 0]), "Complex data not supported"),
        (X, [[10**400]] * 4, "beyond double precision"),
        (X, pd.DataFrame({"a": [10**400] * 4}, dtype=object), "Y column 'a' holds a whole number beyond"),
        (X, pd.date_range("2020", periods=4), "Y holds dates and outputs are numbers"),
        (X, pd.DataFrame({"a": pd.date_range("2020", periods=4, tz="UTC"), "b": 1.0}), "Y column 'a' holds dates"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(X, Y, says):
    with pytest.raises(DataError, match=says):
        as_table(X, Y)


def test_masked_dates_are_days():
    days = np.ma.masked_array(np.array(["1970-01-02", "1970-01-03"], "datetime64[D]"), mask=[False, True])
    assert np.array_equal(as_numbers(days, "X"), [1.0, np.nan], equal_nan=True)


def test_frames_of_other_libraries_keep_their_names():
    arrow = pytest.importorskip("pyarrow")
    values = pd.DataFrame({"b": [1.0, 2.0, 3.0, 4.0], "a": [0.0, 1.0, 0.0, 1.0]})
    inputs = arrow.table({"day": [0.0, 1.0, 2.0, 3.0]})
    table = as_table(inputs, arrow.Table.from_pandas(values))
    assert (table.feature_names, table.output_names) == (("day",), ("b", "a"))
    assert np.array_equal(table.Y, values)
    cells = cells_table(inputs, arrow.chunked_array([list("xyxy")]), arrow.array([1.0, 2.0, 3.0, 4.0]))
    assert (cells.feature_names, cells.output_names) == (("day",), ("x", "y"))


def test_an_input_left_among_the_outputs_is_pointed_at():
    frame = pd.DataFrame({"a": [1.0, 0.0, 2.0]}, index=pd.Index([3.0, 4.0, 9.0], name="day"))
    as_table(None, frame)
    as_table(None, frame.reset_index()[["a", "day"]])
    with pytest.warns(UserWarning, match=r"rising column 'day' is taken for an output.*set_index\('day'\)"):
        assert as_table(None, frame.reset_index()).output_names == ("day", "a")
    dated = frame.set_axis(pd.date_range("2020", periods=3, name="day")).reset_index()
    with pytest.raises(DataError, match="Y column 'day' holds dates"):
        as_table(None, dated)


def test_sparse_inputs_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(DataError, match="toarray"):
        as_table(sparse.csr_matrix(np.ones((4, 2))), np.ones((4, 2)))


def test_infinity_under_the_mask_is_no_harm():
    assert as_table(X, [1.0, np.inf, 2.0, 3.0], mask=[1, 0, 1, 1]).num_observed == 3


@pytest.mark.parametrize("mask", [np.ones((4, 3), dtype=bool), np.full((4, 2), 0.5), [True, False]])
def test_bad_masks_are_refused(mask):
    with pytest.raises(DataError, match="mask"):
        as_table(X, np.ones((4, 2)), mask=mask)


@pytest.mark.parametrize(
    ("outputs", "y", "names", "says"),
    [
        (["a"] * 4, np.ones(3), None, "x has 4 rows"),
        (["a"] * 3, np.ones(4), None, "4 cells and 3 outputs"),
        (["a"] * 4, np.full(4, np.nan), None, "no observed cell"),
        (["a"] * 4, [1.0, 2.0, 3.0, np.inf], None, "infinity"),
        (["a", None, "a", "a"], np.ones(4), None, "missing"),
        (["a", "b", "a", "a"], np.ones(4), ["a"], "'b'"),
        (["a"] * 4, np.ones(4), ["a", "a"], "more than once"),
        (np.zeros((4, 1)), np.ones(4), None, r"shape \(4, 1\)"),
        (5, np.ones(4), None, "outputs=5 is no list of names"),
        (None, np.ones(4), None, "outputs=None is no list of names"),
        ("abcd", np.ones(4), None, "outputs='abcd' is no list of names"),
        ([["a"], ["b"]] * 2, np.ones(4), None, "cannot be looked up"),
        ([{}] * 4, np.ones(4), None, "cannot be looked up"),
        (["a"] * 4, np.ones(4), 7, "output_names=7 is no list of names"),
    ],
)
def test_bad_cells_are_refused_in_one_sentence(outputs, y, names, says):
    with pytest.raises(DataError, match=says):
        cells_table(X, outputs, y, names)


def test_inputs_for_prediction_must_match_the_fit():
    with pytest.raises(DataError, match="X has 1 features, but Net is expecting 4 features as input"):
        as_inputs(X, 4, model="Net")
    assert as_inputs([[1, 2]], 2).dtype == np.float64
