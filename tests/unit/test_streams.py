"""Predictions written part by part are those that are made at once."""

import numpy as np
import pandas as pd
import pytest
import xarray
from benchmarks.kills import kill_records, kill_writes

import manygp
from manygp import prediction
from manygp.errors import DataError

DAYS = pd.date_range("2024-01-01", periods=30, freq="6h", name="time")
RNG = np.random.default_rng(0)
FIELD = xarray.DataArray(
    np.sin(np.arange(30.0)[:, None, None] / 5.0 + np.arange(4.0)[:, None] + np.arange(3.0))
    + 0.1 * RNG.normal(size=(30, 4, 3)),
    coords={"time": DAYS, "lat": [10.0, 20.0, 30.0, 40.0], "lon": [1.0, 2.0, 3.0]},
    dims=("time", "lat", "lon"),
    name="temperature",
    attrs={"units": "K"},
).copy()
FIELD[:, 2, 1] = np.nan


@pytest.fixture(scope="module")
def model():
    settings = {"num_neighbors": 0, "num_inducing": 10, "latent_dim": 2, "epochs": 2, "num_samples": 3}
    return manygp.TLVMOGP(**settings, progress=False).fit(FIELD)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(prediction, "_PART_CELLS", 80)


def opened(path):
    return xarray.open_zarr(path, consolidated=False) if path.suffix == ".zarr" else xarray.open_dataset(path)


@pytest.mark.parametrize("name", ["field.zarr", "field.nc"])
def test_a_field_is_what_to_xarray_tells(model, tmp_path, name):
    whole = model.predict_dist().to_xarray(0.8)
    model.predict_to(tmp_path / name, level=0.8)
    with opened(tmp_path / name) as found:
        xarray.testing.assert_allclose(found.load(), whole, rtol=1e-12)
        assert found["mean"].attrs == whole["mean"].attrs == {"units": "K"}
        assert found.attrs == {"level": 0.8}
        assert bool(np.isnan(found["mean"][:, 2, 1]).all())
    if name.endswith("zarr"):
        assert found["mean"].encoding["chunks"][0] == 7
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["cells.zarr", "cells.nc"])
def test_a_list_of_cells_is_a_field_too(model, tmp_path, name):
    cells = model.predict_cells(DAYS[[3, 7, 7]], [(10.0, 1.0), (20.0, 2.0), (40.0, 3.0)])
    cells.write(tmp_path / name)
    with opened(tmp_path / name) as found:
        xarray.testing.assert_allclose(found.load(), cells.to_xarray(), rtol=1e-12)


@pytest.mark.parametrize("name", ["long.parquet", "long.csv"])
def test_a_frame_is_what_to_frame_tells(model, tmp_path, name):
    some = [(10.0, 1.0), (40.0, 3.0)]
    whole = model.predict_dist(outputs=some).to_frame()
    whole["output"] = whole["output"].astype(str)
    model.predict_to(tmp_path / name, outputs=some)
    found = pd.read_csv(tmp_path / name) if name.endswith("csv") else pd.read_parquet(tmp_path / name)
    found["time"] = pd.to_datetime(found["time"], format="ISO8601").astype(whole["time"].dtype)
    found["output"] = [o if isinstance(o, str) else str(tuple(map(float, o))) for o in found["output"]]
    pd.testing.assert_frame_equal(found, whole, rtol=1e-12)


def test_no_more_than_a_part_is_computed_at_once(model, tmp_path, monkeypatch):
    seen, whole = [], prediction.Prediction._map
    monkeypatch.setattr(
        prediction.Prediction, "_map", lambda self, *given: (seen.append(self.shape), whole(self, *given))[1]
    )
    model.predict_to(tmp_path / "field.zarr")
    assert max(rows * outputs for rows, outputs in seen) <= 80
    # Every part once for its moments and once for its interval, beside the row that tells the shape.
    assert sum(rows for rows, _ in seen) == 2 * (30 + 1)


@pytest.mark.parametrize("name", ["field.zarr", "field.nc", "field.parquet", "field.csv"])
def test_a_failure_leaves_what_was_there(model, tmp_path, name, monkeypatch):
    model.predict_to(tmp_path / name, DAYS[:10])
    before = sorted((path, path.stat().st_size) for path in tmp_path.rglob("*"))
    part, calls = prediction.Prediction._part, []

    def fails(self, rows):
        calls.append(rows)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return part(self, rows)

    monkeypatch.setattr(prediction.Prediction, "_part", fails)
    with pytest.raises(DataError, match="No space left on device"):
        model.predict_to(tmp_path / name)
    assert sorted((path, path.stat().st_size) for path in tmp_path.rglob("*")) == before


def test_other_formats_are_refused(model, tmp_path):
    with pytest.raises(DataError, match=r"part by part.*\.zarr"):
        model.predict_to(tmp_path / "field.xlsx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_kills_leave_the_old_file_or_the_new_one(kind):
    found = kill_writes(kind, 4, np.random.default_rng(0))
    assert found["old_or_new"] == 4
    assert found["litter"] == []


def test_kills_of_a_table_run_lose_no_record():
    found = kill_records(4, np.random.default_rng(0))
    assert found["old_or_new"] == 4
    assert found["litter"] == []
