"""One way in for each container, and the same container back: frames, long frames, polars, fields, lists of cells."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone

import manygp
from manygp import TLVMOGP, DataError, SettingError

from .conftest import TINY

DAYS = pd.date_range("2024-01-01", periods=12, name="day")
VALUES = np.sin(np.arange(12.0)[:, None] / 3 + np.arange(4.0))
VALUES[4:7, 2] = np.nan
FRAME = pd.DataFrame(VALUES, DAYS, list("abcd"))


def tiny():
    return TLVMOGP(**TINY | {"num_inducing": 5, "epochs": 2})


@pytest.fixture(scope="module")
def model():
    return tiny().fit(FRAME)


@pytest.fixture(scope="module")
def field():
    xarray = pytest.importorskip("xarray")
    values = np.sin(np.arange(12.0)[:, None] / 3 + np.arange(6.0)).reshape(12, 2, 3)
    # A corner and a whole meridian of land, and a gap at sea.
    values[:, 0, 0], values[:, :, 1], values[3:6, 1, 2] = np.nan, np.nan, np.nan
    coordinates = {"time": DAYS.rename("time"), "lat": ("lat", [50.0, 49.0], {"units": "degrees_north"})}
    return xarray.DataArray(
        values.astype(np.float32),
        coordinates | {"lon": [7, 8, 9]},
        ("time", "lat", "lon"),
        name="sst",
        attrs={"units": "K", "valid_range": np.array([270, 310])},
    )


def test_a_frame_alone_is_a_table_and_comes_back(model, tmp_path):
    assert np.array_equal(model.predict(), tiny().fit(None, FRAME).predict(DAYS))
    mean, std = model.predict(return_std=True)
    for frame in (mean, std):
        assert frame.index.equals(DAYS)
        assert list(frame.columns) == list("abcd")
    model.save(tmp_path / "model")
    pd.testing.assert_frame_equal(manygp.load(tmp_path / "model").predict(), mean)
    assert list(model.predict(DAYS[:2], outputs=["d", "a"]).columns) == ["d", "a"]
    series = tiny().set_params(latent_dim=1).fit(FRAME["a"]).predict()
    assert (series.name, len(series)) == ("a", 12)


def test_inputs_may_be_columns_of_the_frame(model):
    again = tiny().fit(FRAME.reset_index(), inputs=["day"])
    assert np.allclose(again.predict(), model.predict())
    # Whether an input is a column or the index, it is the same one.
    assert np.allclose(again.fill(FRAME), again.fill(FRAME.reset_index(), inputs=["day"])[list("abcd")])
    with pytest.raises(DataError, match="no columns of the frame, which has 'day', 'a'"):
        tiny().fit(FRAME.reset_index(), inputs=["hour"])
    with pytest.raises(DataError, match="give the frame alone"):
        tiny().fit(FRAME.reset_index(), FRAME, inputs=["day"])


def test_times_are_understood(model):
    expected = model.predict(DAYS[:2])
    for same in (
        ["2024-01-01", "2024-01-02"],
        list(DAYS[:2]),
        DAYS[:2].astype(str).to_numpy(),
        [["2024-01-01"], ["2024-01-02"]],
    ):
        assert np.array_equal(model.predict(same), expected)
    assert np.array_equal(model.predict("2024-01-02T00:00"), expected[1:])
    assert model.predict(pd.Timestamp("2024-01-02 12:00")).index[0] == pd.Timestamp("2024-01-02 12:00")
    with pytest.raises(DataError, match="X holds 'soon'"):
        model.predict("soon")


def test_gaps_are_filled_and_nothing_else_changes(model):
    gaps = FRAME.isna().to_numpy()
    filled = model.fill(FRAME)
    assert np.array_equal(filled.to_numpy()[~gaps], VALUES[~gaps])
    assert np.allclose(filled.to_numpy()[gaps], model.predict().to_numpy()[gaps], rtol=1e-10)
    dist = model.predict_dist()
    assert np.allclose(model.fill(FRAME, statistic="std").to_numpy(), np.where(gaps, dist.std, 0.0))
    assert np.allclose(model.fill(FRAME, statistic="upper", level=0.5).to_numpy()[gaps], dist.interval(0.5)[1][gaps])
    # In any order, at other inputs, as arrays, and with columns that are nobody's business.
    pd.testing.assert_frame_equal(model.fill(FRAME[["c", "a"]].iloc[3:6]), filled[["c", "a"]].iloc[3:6])
    with pytest.warns(UserWarning, match="Column 'note' is no output of the model and stays as it is"):
        assert model.fill(FRAME.assign(note="dry")).equals(filled.assign(note="dry"))
    assert np.allclose(model.fill(DAYS, VALUES), filled, equal_nan=True)
    with pytest.raises(DataError, match="has no output of the model"):
        model.fill(FRAME.rename(columns=str.upper))
    with pytest.raises(DataError, match="alone; give X too"):
        model.fill(VALUES)
    with pytest.raises(SettingError, match="statistic='median' is unknown"):
        model.fill(FRAME, statistic="median")


def test_the_user_says_what_comes_back(model):
    chosen = clone(model).set_output(transform="numpy")
    assert isinstance(clone(chosen).fit(FRAME).predict(), np.ndarray)
    with sklearn.config_context(transform_output="pandas"):
        plain = tiny().fit(np.arange(12.0)[:, None], VALUES)
        assert isinstance(plain.predict(), pd.DataFrame)
    assert isinstance(plain.predict(), np.ndarray)
    with pytest.raises(SettingError, match="is unknown: use one of default, numpy"):
        chosen.set_output(transform="excel")


def test_a_field_needs_no_stacking(field, tmp_path):
    xarray = pytest.importorskip("xarray")
    model = tiny().fit(field)
    assert model.output_names_ == ((50.0, 9), (49.0, 7), (49.0, 9))
    mean = model.predict()
    assert (mean.name, mean.dims, mean.attrs["units"]) == ("sst", field.dims, "K")
    assert mean["lat"].attrs == field["lat"].attrs
    for name in field.dims:
        assert np.array_equal(mean[name], field[name])
    land = field.isnull().all("time")
    assert mean.isnull().all("time").equals(land)
    filled = model.fill(field)
    assert filled.dtype == field.dtype
    assert filled.where(field.notnull()).equals(field)
    assert filled.isnull().any("time").equals(land)
    model.save(tmp_path / "model")
    xarray.testing.assert_identical(manygp.load(tmp_path / "model").predict(), mean)
    # A part of the outputs does not span all of the field.
    assert model.predict(field["time"], outputs=[(49.0, 9)]).shape == (12, 1, 1)


def test_what_comes_back_as_xarray_can_be_written(field, tmp_path):
    xarray, _ = pytest.importorskip("xarray"), pytest.importorskip("netCDF4")
    stacked = field.stack(cell=("lat", "lon")).dropna("cell", how="all")
    for name, fitted in {"field": field, "stacked": stacked}.items():
        dataset = tiny().fit(fitted).predict_dist().to_xarray()
        dataset.to_netcdf(tmp_path / f"{name}.nc")
        back = xarray.load_dataset(tmp_path / f"{name}.nc")
        assert np.array_equal(back["mean"], dataset["mean"], equal_nan=True)
        assert back["mean"].attrs["units"] == "K"
    assert back.set_index(cell=("lat", "lon")).unstack("cell")["mean"].dims == ("time", "lat", "lon")


def test_coordinates_of_a_field_place_its_outputs(field):
    model = tiny().fit(field, output_coordinates="coords")
    by_name = tiny().fit(field, output_coordinates=pd.DataFrame(list(model.output_names_), columns=["lat", "lon"]))
    assert np.array_equal(model.predict(), by_name.predict(), equal_nan=True)
    stations = field.stack(cell=("lat", "lon")).dropna("cell", how="all").reset_index("cell")
    along = tiny().fit(stations, output_coordinates="coords")
    assert along.n_outputs_ == 3
    for bad in (FRAME, stations.drop_vars(["lat", "lon"])):
        with pytest.raises(DataError, match='output_coordinates="coords"'):
            tiny().fit(bad, output_coordinates="coords")


def test_a_long_frame(model, tmp_path):
    long = FRAME.reset_index().melt("day", var_name="sensor", value_name="y")
    columns = {"inputs": ["day"], "output": "sensor", "value": "y"}
    fitted = tiny().fit_long(long, **columns)
    cells = fitted.predict()
    assert list(cells.columns) == ["day", "sensor", "y"]
    # As many rows as were observed, in their order.
    assert cells[["day", "sensor"]].equals(long.dropna()[["day", "sensor"]].reset_index(drop=True))
    assert fitted.predict(DAYS[:2]).columns.name == "sensor"
    filled = fitted.fill_long(long, **columns)
    assert not filled["y"].isna().any()
    assert filled["y"].where(long["y"].notna()).equals(long["y"])
    fitted.save(tmp_path / "model")
    pd.testing.assert_frame_equal(manygp.load(tmp_path / "model").predict(), cells)
    with pytest.raises(DataError, match="The frame has no column 'place'"):
        tiny().fit_long(long, inputs="day", output="place", value="y")


def test_polars_goes_in_and_comes_out(model):
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"day": DAYS.to_numpy(), **{name: FRAME[name].to_numpy() for name in FRAME}})
    table = table.with_columns(polars.col("c").fill_nan(None))
    fitted = tiny().fit(table, inputs=["day"])
    mean = fitted.predict()
    assert isinstance(mean, polars.DataFrame)
    assert mean.columns == ["day", *"abcd"]
    assert np.allclose(mean.select("a", "b", "c", "d").to_numpy(), model.predict())
    filled = fitted.fill(table, inputs=["day"])
    assert isinstance(filled, polars.DataFrame)
    assert sum(filled.null_count().row(0)) == 0
    with pytest.raises(DataError, match=r"have no index .* inputs=\['day'\]"):
        tiny().fit(table)


def test_wide_frames_of_predictions(model):
    wide = model.predict_dist().to_frame(wide=True)
    pd.testing.assert_frame_equal(wide["mean"], model.predict())
    assert list(dict.fromkeys(wide.columns.get_level_values(0))) == ["mean", "std", "lower90", "upper90"]
    with pytest.raises(SettingError, match="leave wide=True out"):
        model.predict_cells(DAYS[:1], ["a"]).to_frame(wide=True)


def test_counts_are_predicted_with_the_exposure_of_the_fit():
    counts, exposure = np.random.default_rng(0).poisson(5.0, (12, 4)).astype(float), np.linspace(0.5, 2.0, 12)
    model = tiny().set_params(likelihood="poisson").fit(np.arange(12.0)[:, None], counts, exposure=exposure)
    expected = model.predict(np.arange(12.0)[:, None], exposure=exposure)
    assert np.allclose(model.predict(), expected)
    counts[3, 1] = np.nan
    assert model.fill(np.arange(12.0)[:, None], counts)[3, 1] == pytest.approx(expected[3, 1])
