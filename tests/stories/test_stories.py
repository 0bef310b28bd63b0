"""What users do, as they would write it: from the container they have to the answer they want."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import manygp
from manygp.cli.commands import app

# A story should take a moment; real fits choose their sizes themselves.
QUICK = {"epochs": 3, "latent_dim": 2, "num_inducing": 8, "progress": False}
SET = [word for key in ("epochs=3", "latent_dim=2", "num_inducing=8") for word in ("--set", key)]


@pytest.fixture(scope="module")
def sensors() -> pd.DataFrame:
    """Two days of five sensors, one of which was out for a while."""
    hours = pd.date_range("2024-05-01", periods=48, freq="h", name="time")
    wave = np.sin(np.arange(48)[:, None] / 6 + np.arange(5) / 3) + 0.05 * np.random.default_rng(0).normal(size=(48, 5))
    frame = pd.DataFrame(wave, hours, [f"sensor {i}" for i in range(5)])
    frame.iloc[10:20, 2] = np.nan
    return frame


def test_an_engineer_fills_a_wide_frame(sensors):
    model = manygp.TLVMOGP(**QUICK).fit(sensors)
    filled = model.fill(sensors)
    sure = model.fill(sensors, statistic="std")
    assert not filled.isna().any(axis=None)
    assert filled["sensor 0"].equals(sensors["sensor 0"])
    assert (sure["sensor 2"].iloc[10:20] > 0).all()
    tomorrow = model.predict("2024-05-03T06:00")
    assert list(tomorrow.columns) == list(sensors.columns)
    mean, std = model.predict(return_std=True)
    assert mean.index.equals(sensors.index)
    assert (std > 0).all(axis=None)


def test_an_engineer_has_a_long_frame(sensors):
    readings = sensors.reset_index().melt("time", var_name="sensor", value_name="volts")
    columns = {"inputs": ["time"], "output": "sensor", "value": "volts"}
    model = manygp.TLVMOGP(**QUICK).fit_long(readings.dropna(), **columns)
    filled = model.fill_long(readings, **columns)
    assert filled["volts"].notna().all()
    assert list(model.predict().columns) == ["time", "sensor", "volts"]


def test_a_user_of_polars(sensors):
    polars = pytest.importorskip("polars")
    table = polars.from_dict({name: column.to_numpy() for name, column in sensors.reset_index().items()})
    model = manygp.TLVMOGP(**QUICK).fit(table, inputs=["time"])
    filled = model.fill(table, inputs=["time"])
    assert isinstance(filled, polars.DataFrame)
    assert not np.isnan(filled["sensor 2"].to_numpy()).any()
    assert isinstance(model.predict(), polars.DataFrame)


def test_a_climate_scientist_has_a_field_with_land(tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    months = pd.date_range("2015-01-01", periods=24, freq="MS")
    season = 15 + 8 * np.sin(np.arange(24) / 12 * 2 * np.pi)[:, None, None] + np.arange(12.0).reshape(3, 4)
    sst = xarray.DataArray(
        season,
        {"time": months, "lat": [52.0, 51.0, 50.0], "lon": [1.0, 2.0, 3.0, 4.0]},
        ("time", "lat", "lon"),
        name="sst",
        attrs={"units": "degC"},
    )
    sst[:, 0, :2] = np.nan  # land
    sst[5:9, 1, 1] = np.nan  # clouds
    model = manygp.TLVMOGP(**QUICK).fit(sst, output_coordinates="coords")
    filled = model.fill(sst)
    assert filled.attrs["units"] == "degC"
    assert int(filled.isnull().sum()) == 2 * 24
    everything = model.predict_dist().to_xarray()
    everything.to_netcdf(tmp_path / "everything.nc")
    assert set(everything.data_vars) == {"mean", "std", "lower", "upper"}


def test_a_biologist_has_an_anndata():
    anndata = pytest.importorskip("anndata")
    rng = np.random.default_rng(0)
    spots = anndata.AnnData(rng.poisson(3.0, (30, 6)).astype(np.float32))
    spots.var_names = [f"gene{i}" for i in range(6)]
    spots.obsm["spatial"] = rng.uniform(size=(30, 2))
    model = manygp.TLVMOGP(**QUICK, likelihood="poisson").fit(spots, exposure="auto")
    model.annotate(spots)
    assert spots.layers["manygp_mean"].shape == (30, 6)
    assert model.predict().shape == (30, 6)


@pytest.mark.parametrize("kind", ["csv", "nc"])
def test_somebody_has_a_file_and_a_terminal(sensors, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if kind == "nc":
        pytest.importorskip("netCDF4")
        field = sensors.set_axis(pd.MultiIndex.from_product([[1.0], range(5)], names=["lat", "lon"]), axis=1)
        field.stack(["lat", "lon"], future_stack=True).to_xarray().rename("volts").to_netcdf("data.nc")
    else:
        sensors.to_csv("data.csv")
    result = CliRunner().invoke(app, ["fill", f"data.{kind}", "--out", f"filled.{kind}", "-q", *SET])
    assert result.exit_code == 0, result.output
    assert "Filled 10 gaps" in result.output
    assert Path(f"filled.{kind}").exists()


def test_somebody_asks_whether_interpolation_would_do(sensors):
    found = manygp.compare(sensors, models=["interpolation", "low-rank", manygp.TLVMOGP(**QUICK)], refit=True)
    assert set(found.scores.columns) >= {"rmse", "nll", "crps", "coverage90", "seconds"}
    assert found.recommended in found.scores.index
    assert found.recommended in found.reason or "Interpolation is enough" in found.reason
    assert found.fitted is not None


def test_somebody_sends_a_report(sensors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sensors.to_csv("data.csv")
    run = CliRunner().invoke
    assert run(app, ["fit", "data.csv", "--out", "model", "--report", "report.html", "-q", *SET]).exit_code == 0
    assert run(app, ["report", "model", "--data", "data.csv", "--out", "report.md"]).exit_code == 0
    assert "sensor 2" in Path("report.html").read_text(encoding="utf-8")
    assert "## Calibration" in Path("report.md").read_text(encoding="utf-8")


def test_somebody_works_in_a_notebook(sensors):
    model = manygp.TLVMOGP(**QUICK).fit(sensors)
    assert "±" in model.predict_dist()._repr_html_()
    assert "<svg" in model.history_._repr_html_()
    assert "TLVMOGP" in model.summary()
    assert model.lengthscales_.shape == (1,)


def test_somebody_uses_scikit_learn(sensors):
    X, Y = np.arange(48.0)[:, None], sensors.to_numpy()
    pipeline = make_pipeline(StandardScaler(), manygp.TLVMOGP(**QUICK)).fit(X, Y)
    assert pipeline.predict(X).shape == (48, 5)
    model = pipeline[-1]
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(), model.predict())
    assert clone(model).get_params() == model.get_params()


def test_somebody_saves_and_loads(sensors, tmp_path):
    model = manygp.TLVMOGP(**QUICK).fit(sensors)
    model.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    pd.testing.assert_frame_equal(loaded.predict(), model.predict())
    pd.testing.assert_frame_equal(loaded.fill(sensors), model.fill(sensors))
