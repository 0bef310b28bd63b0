"""Labels of containers: rows, columns and dimensions say what belongs together, and come back with predictions."""

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manygp.data import as_inputs, as_table, cells_table, random_split
from manygp.data.axes import Axes
from manygp.data.fields import as_dataset, input_names
from manygp.data.labels import check_labels, labelled_inputs
from manygp.errors import DataError, ManyGPError

from .tables import grids

DAYS = pd.date_range("1970-01-01", periods=4, name="day")
X = np.arange(4.0)[:, None]


@pytest.fixture
def field():
    xarray = pytest.importorskip("xarray")
    coordinates = {"time": DAYS.rename("time"), "lat": np.array([50.1, 49.5], np.float32), "lon": [2, 0, 1]}
    return xarray.DataArray(np.arange(24.0).reshape(4, 2, 3), coordinates, ("time", "lat", "lon"))


# -- alignment ---------------------------------------------------------------------------------------------------


@given(grids(), st.randoms(use_true_random=False))
def test_a_mask_follows_the_labels_of_its_frame(table, random):
    names, labels = [f"out{p}" for p in range(table.num_outputs)], [f"row{n}" for n in range(table.num_inputs)]
    frame = pd.DataFrame(table.Y, labels, names)
    observed = ~np.isnan(table.Y) if table.mask is None else table.mask
    mask = pd.DataFrame(observed, labels, names)
    columns, rows = random.sample(names, len(names)), random.sample(labels, len(labels))
    shuffled = as_table(table.X, frame, mask.loc[rows, columns])
    assert np.array_equal(shuffled.mask, observed)
    # One that only counts its rows and columns is taken in order.
    assert np.array_equal(as_table(table.X, frame, pd.DataFrame(observed)).mask, observed)


def test_a_mask_with_other_labels_is_refused():
    frame = pd.DataFrame(np.ones((4, 2)), DAYS, columns=["a", "b"])
    with pytest.raises(DataError, match="other columns than Y, without 'b'"):
        as_table(X, frame, pd.DataFrame(True, DAYS, columns=["a", "c"]))
    with pytest.raises(DataError, match="other row labels than Y"):
        as_table(X, frame, pd.DataFrame(True, DAYS + pd.Timedelta("1D"), columns=["a", "b"]))
    with pytest.raises(DataError, match=r"mask has shape \(4, 1\)"):
        as_table(X, frame, pd.DataFrame(True, DAYS, columns=["a"]))


def test_numbered_columns_in_another_order_are_labels_too():
    mask = pd.DataFrame([[True, False, True]] * 4)
    assert as_table(X, pd.DataFrame(np.ones((4, 3))), mask[[1, 2, 0]]).count_per_output().tolist() == [4, 0, 4]


def test_the_mask_of_a_field_follows_its_dimensions(field):
    mask = field > 3
    turned = mask.transpose("lon", "time", "lat").isel(lon=[2, 0, 1], time=slice(None, None, -1))
    assert np.array_equal(as_table(None, field, turned).mask, mask.to_numpy().reshape(4, 6))
    with pytest.raises(DataError, match="give the mask those of Y"):
        as_table(None, field, mask.rename(lat="y"))
    with pytest.raises(DataError, match="other coordinates 'lon' than Y"):
        as_table(None, field, mask.assign_coords(lon=[0, 1, 7]))


@given(st.permutations(range(4)))
def test_rows_of_inputs_and_values_have_the_same_labels(order):
    inputs = pd.DataFrame({"x": range(4)}, list("wxyz"))
    values = pd.DataFrame({"a": range(4)}, list("wxyz")).iloc[list(order)]
    if list(order) == [0, 1, 2, 3]:
        assert as_table(inputs, values).num_observed == 4
        return
    with pytest.raises(DataError, match=r"of X is labelled \w and that of Y \w; bring both into one order"):
        as_table(inputs, values)
    # Labels on one side alone say nothing, nor do rows that are counted.
    assert as_table(inputs, values.to_numpy()).num_observed == 4
    assert as_table(inputs, values.reset_index(drop=True)).num_observed == 4


def test_rows_of_cells_have_the_same_labels():
    x = pd.Series([0.0, 1.0], ["p", "q"])
    assert cells_table(x, pd.Series(["a", "b"], ["p", "q"]), x).num_observed == 2
    with pytest.raises(DataError, match="Row 0 of x is labelled p and that of y q"):
        cells_table(x, ["a", "b"], x[::-1])
    with pytest.raises(DataError, match="Row 0 of x is labelled p and that of outputs q"):
        cells_table(x, pd.Series(["a", "b"], ["q", "p"]), [1.0, 2.0])


# -- what goes in ------------------------------------------------------------------------------------------------


def test_levels_of_an_index_are_inputs():
    index = pd.MultiIndex.from_product([DAYS[:2], [10, 20]], names=["day", "depth"])
    table = as_table(None, pd.DataFrame({"a": np.arange(4.0)}, index))
    assert table.X.tolist() == [[0.0, 10.0], [0.0, 20.0], [1.0, 10.0], [1.0, 20.0]]
    assert table.axes.inputs == ("day", "depth")
    assert as_inputs(index).tolist() == table.X.tolist()
    named = index.set_levels(["shallow", "deep"], level="depth")
    with pytest.raises(DataError, match=r"Level 'depth' of the index holds 'shallow'.*unstack\('depth'\)"):
        as_table(None, pd.DataFrame({"a": np.arange(4.0)}, named))


def test_a_stacked_coordinate_is_inputs(field):
    stacked = field.stack(place=("lat", "lon")).transpose("place", ...).drop_vars("time")
    table = as_table(None, stacked)
    assert table.X.shape == (6, 2)
    assert np.array_equal(as_inputs(stacked["place"]), table.X)


def test_time_comes_first(field):
    turned = field.transpose("lat", "lon", "time")
    with pytest.raises(DataError, match=r"first dimension of Y, 'lat'.*Y.transpose\('time', ...\), or X=Y\['lat'\]"):
        as_table(None, turned)
    assert as_table(turned["lat"], turned).output_names[0] == (2, "1970-01-01 00:00:00")
    with pytest.raises(DataError, match=r"rows of X are along 'time'.*Y.transpose\('time', ...\)"):
        as_table(field["time"], turned.isel(lat=[0, 1, 0, 1]))
    # Without any time the first dimension is the input, as ever.
    assert as_table(None, field.drop_vars("time").transpose("lat", ...)).X.ravel().tolist() == pytest.approx(
        [50.1, 49.5]
    )


def test_dates_of_another_calendar_are_days_of_their_own(field):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("cftime")
    times = xarray.date_range("1971-02-28", periods=4, calendar="360_day", use_cftime=True)
    other = field.assign_coords(time=times)
    assert as_table(None, other).X.ravel().tolist() == [417.0, 418.0, 419.0, 420.0]
    assert as_inputs(other["time"]).shape == (4, 1)
    with pytest.raises(DataError, match="'time' holds times"):
        as_table(None, other.transpose("lat", ...))


def test_a_dataset_is_told_what_to_do(field):
    dataset = field.to_dataset(name="sst")
    for inputs in (None, X):
        with pytest.raises(DataError, match=r"Y\['sst'\], or .*Y.to_dataarray\('variable'\).transpose\('time', ...\)"):
            as_table(inputs, dataset)
    assert as_table(None, dataset.to_dataarray("variable").transpose("time", ...)).output_names[0][0] == "sst"
    with pytest.raises(DataError, match=r"such as X\['time'\]"):
        as_inputs(dataset)
    with pytest.raises(DataError, match=r"Y\['sst'\], or .*Y.to_dataarray"):
        as_table(dataset, None)
    assert as_table(field).output_names == as_table(None, field).output_names
    with pytest.raises(DataError, match=r"dimensions time, lat, lon; .* such as X\['time'\]"):
        as_inputs(field)


# -- what comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        (DAYS, ["day"]),
        (pd.Series(range(4), name="day"), ["day"]),
        (pd.DataFrame({"u": range(4), "v": DAYS}), ["u", "v"]),
        (pd.MultiIndex.from_arrays([range(4), DAYS], names=["u", "v"]), ["u", "v"]),
        (DAYS.to_numpy()[:, None], [0]),
        (X, [0]),
    ],
)
def test_inputs_keep_their_names_and_dates(inputs, names):
    frame = labelled_inputs(inputs, as_inputs(inputs), Axes())
    assert list(frame.columns) == names
    assert as_inputs(frame).tolist() == as_inputs(inputs).tolist()
    is_dated = any(dtype.kind == "M" for dtype in frame.dtypes)
    assert is_dated == (not (inputs is X or isinstance(inputs, pd.Series)))


def test_inputs_without_names_have_those_of_the_fit():
    inputs = np.ones((2, 2))
    assert list(labelled_inputs(inputs, inputs, Axes(("u", "v"))).columns) == ["u", "v"]
    levels = pd.MultiIndex.from_arrays([[1, 2], [3, 4]], names=["v", "u"])
    with pytest.raises(DataError, match=r"\['v', 'u'\], but the model was fitted with \['u', 'v'\]"):
        check_labels(levels, Axes(("u", "v")))


ZONED, UTC = DAYS.tz_localize("Asia/Tokyo"), DAYS.tz_localize("UTC")
KINDS = {
    "numbers": np.arange(4.0)[:, None],
    "dates": DAYS,
    "dates of a time zone": ZONED,
    "time spans": (DAYS - DAYS[0]).to_frame(),
}


@pytest.mark.parametrize("then", KINDS)
@pytest.mark.parametrize("now", KINDS)
def test_inputs_are_of_the_kind_of_the_fit(then, now):
    axes = as_table(KINDS[then], np.ones(4)).axes
    assert axes.kinds == (then,)
    if then == now:
        check_labels(KINDS[now], axes)
        return
    with pytest.raises(DataError, match=f"X holds {now}, but the model was fitted with {then}; give {then}"):
        check_labels(KINDS[now], axes)


def test_dates_in_utc_are_those_of_any_time_zone():
    for known in (DAYS, ZONED, UTC):
        check_labels(UTC, as_table(known, np.ones(4)).axes)
        check_labels(known, as_table(UTC, np.ones(4)).axes)


def test_dates_of_other_calendars_are_of_a_kind_of_their_own():
    cftime = pytest.importorskip("cftime")
    leapless = np.array([cftime.DatetimeNoLeap(2000, 1, day) for day in range(1, 5)])[:, None]
    with pytest.raises(DataError, match="X holds dates, but the model was fitted with dates of the calendar noleap"):
        check_labels(DAYS, as_table(leapless, np.ones(4)).axes)


def test_a_table_knows_the_kinds_of_its_inputs():
    table = as_table(DAYS, np.ones(4))
    check_labels(table, table.axes)
    with pytest.raises(DataError, match="X holds dates, but the model was fitted with numbers"):
        check_labels(table, as_table(np.arange(4.0)[:, None], np.ones(4)).axes)


def test_names_that_are_taken_get_a_word_in_front():
    rows = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["mean", "input_mean", 2])
    assert input_names(rows, {"output"}) == ["mean", "input_mean", "x2"]
    assert input_names(rows, {"mean"}) == ["input_input_mean", "input_mean", "x2"]


def dataset_of(table):
    """A table's own values, as predictions of it would come back."""
    rows = labelled_inputs(table.X, table.X, table.axes)
    return as_dataset({"mean": np.asarray(table.Y)}, rows, table.output_names, table.axes)


def test_a_field_comes_back_as_it_was(field, rng):
    xarray = pytest.importorskip("xarray")
    lead = field.rename(lat="lead").assign_coords(lead=pd.timedelta_range("1D", periods=2))
    row, series = field[:, 0].drop_vars("lat"), field[:, 0, 0].drop_vars(["lat", "lon"])
    for fitted in (field, lead, row, series, field.stack(cell=("lat", "lon"))):
        table = as_table(None, fitted)
        for part in (table, random_split(table, 0.2, rng)[0]):
            rows = labelled_inputs(fitted["time"], table.X, part.axes)
            back = as_dataset({"mean": table.Y}, rows, table.output_names, part.axes)
            xarray.testing.assert_identical(back["mean"].rename(None), fitted)


def test_a_part_of_a_field_has_gaps(field):
    table = as_table(None, field)
    back = as_dataset(
        {"mean": table.Y[:, [0, 5]]},
        pd.DataFrame(X),
        [table.output_names[i] for i in (0, 5)],
        replace(table.axes, grid=()),
    )
    assert back["mean"].dims == ("input", "lat", "lon")
    assert back["mean"].isnull().sum("input").to_numpy().tolist() == [[0, 4], [4, 0]]
    assert np.array_equal(back["mean"].sel(lon=1).to_numpy()[:, 1], table.Y[:, 5])


def test_a_frame_comes_back_with_its_labels():
    pytest.importorskip("xarray")
    frame = pd.DataFrame(np.arange(8.0).reshape(4, 2), DAYS, pd.Index(["a", "b"], name="station"))
    back = dataset_of(as_table(None, frame))["mean"]
    assert back.dims == ("day", "station")
    assert back["station"].to_numpy().tolist() == ["a", "b"]
    assert dataset_of(as_table(X, frame.to_numpy()))["mean"].dims == ("input", "output")
    levels = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["site", "depth"])
    assert dataset_of(as_table(X, frame.set_axis(levels, axis=1))).unstack("output").sizes["depth"] == 2


def test_rows_with_labels_of_their_own_are_a_coordinate():
    pytest.importorskip("xarray")
    rows = pd.DataFrame({"u": [1, 2], "mean": [3.0, 4.0]}, pd.Index(["p", "q"], name="site"))
    back = as_dataset({"mean": np.ones((2, 1))}, rows, ["a"], Axes())
    assert back["site"].to_numpy().tolist() == ["p", "q"]
    assert {name: back[name].dims for name in ("u", "input_mean")} == {"u": ("site",), "input_mean": ("site",)}


def test_dates_that_numpy_does_not_know_come_back_in_utc():
    pytest.importorskip("xarray")
    for dates in (DAYS.tz_localize("UTC"), DAYS.to_period("D")):
        back = as_dataset({"mean": np.ones((4, 1))}, dates.to_frame(index=False), ["a"], Axes())
        assert np.array_equal(back["day"].to_numpy(), DAYS.to_numpy())


def test_outputs_that_joined_later_may_be_called_anything(field):
    table = as_table(None, field[:, :, :1])
    back = as_dataset({"mean": np.ones((4, 2))}, pd.DataFrame(X), [table.output_names[0], "new"], table.axes)
    assert back["output"].to_numpy().tolist() == [table.output_names[0], "new"]


def test_cells_come_back_as_a_list(field):
    table = as_table(None, field)
    back = as_dataset({"mean": np.ones(2)}, DAYS[:2].to_frame(index=False), table.output_names[:2], table.axes)
    assert dict(back.sizes) == {"cell": 2}
    assert back["lon"].to_numpy().tolist() == [2, 0]
    assert back["day"].dtype.kind == "M"


def test_without_xarray_there_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ManyGPError, match=r"to_xarray needs xarray.*pip install 'manygp\[xarray\]'"):
        as_dataset({"mean": np.ones((1, 1))}, pd.DataFrame([[1.0]]), ["a"], Axes())
