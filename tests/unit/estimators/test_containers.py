"""Predictions come back in the container that the fit was given."""

import numpy as np
import pandas as pd
import pytest

import manygp
from manygp import TLVMOGP, DataError

from .conftest import TINY

xarray = pytest.importorskip("xarray")

TIMES = pd.date_range("2020-01-01", periods=8, freq="MS", name="time")
PLACES = {"lat": np.array([52.1, 51.0], np.float32), "lon": [0, 10]}
VALUES = np.sin(np.arange(8.0)[:, None, None] + np.arange(4.0).reshape(2, 2))
FIELD = xarray.DataArray(VALUES, {"time": TIMES, **PLACES}, ("time", "lat", "lon"))


def tiny():
    return TLVMOGP(**TINY | {"num_inducing": 5, "epochs": 2})


@pytest.fixture(scope="module")
def model():
    return tiny().fit(None, FIELD)


def test_a_field_comes_back_on_its_own_grid(model):
    dist = model.predict_dist(FIELD["time"])
    back = dist.to_xarray(0.8)
    xarray.testing.assert_identical(
        back.drop_vars(["mean", "std", "lower", "upper"]).drop_attrs(), FIELD.coords.to_dataset()
    )
    lower, upper = dist.interval(0.8)
    for name, values in {"mean": dist.mean, "std": dist.std, "lower": lower, "upper": upper}.items():
        assert back[name].dims == ("time", "lat", "lon")
        assert np.array_equal(back[name].to_numpy().reshape(8, 4), values)
    assert back.attrs == {"level": 0.8}
    # The field and its prediction go together without more ado.
    assert (FIELD - back["mean"]).shape == FIELD.shape


def test_dimensions_survive_a_file(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model")
    ask = [estimator.predict_dist(FIELD["time"]).to_xarray() for estimator in (model, loaded)]
    xarray.testing.assert_identical(*ask)


def test_new_outputs_of_a_field_are_not_on_its_grid(model):
    names = pd.MultiIndex.from_tuples([(50.0, 3), (49.0, 4)])
    latents = pd.DataFrame(np.zeros((2, 2)), names)
    back = model.predict_new_outputs(FIELD["time"], latent_mean=latents).to_xarray()
    assert dict(back.sizes) == {"time": 8, "output": 2}
    assert back["lon"].to_numpy().tolist() == [3, 4]


def test_a_list_of_cells_comes_back_as_one(model):
    dist = model.predict_cells(TIMES[:3], [(51.0, 0), (51.0, 10), (51.0, 0)])
    back = dist.to_xarray()
    assert np.array_equal(back["mean"].to_numpy(), dist.mean)
    assert back["time"].dims == back["lat"].dims == ("cell",)
    assert dist.to_frame()["time"].tolist() == TIMES[:3].tolist()


def test_a_frame_has_the_inputs_of_the_user():
    frame = pd.DataFrame(VALUES.reshape(8, 4), TIMES.rename("date"), columns=list("abcd"))
    model = tiny().fit(None, frame)
    for X in (frame.index, frame.index.to_numpy()[:, None]):
        long = model.predict_dist(X, outputs=["a", "d"]).to_frame()
        assert list(long.columns) == ["date", "output", "mean", "std", "lower90", "upper90"]
        assert long["date"].tolist() == TIMES.repeat(2).tolist()
        assert isinstance(long.index, pd.RangeIndex)
    assert model.predict_dist(frame.index).to_xarray()["mean"].dims == ("date", "output")


def test_labels_of_rows_become_the_index():
    frame = pd.DataFrame(VALUES.reshape(8, 4), TIMES, columns=list("abcd"))
    X = pd.DataFrame({"output": np.arange(8), "depth": np.arange(8.0)}, TIMES)
    dist = tiny().fit(X, frame).predict_dist(X[:3])
    long = dist.to_frame()
    assert long.index.equals(TIMES[:3].repeat(4))
    assert long["input_output"].tolist() == np.arange(3).repeat(4).tolist()
    assert long["output"].tolist() == list("abcd") * 3
    assert np.array_equal(long["mean"].to_numpy().reshape(3, 4), dist.mean)
    assert dist.to_xarray()["depth"].dims == ("time",)


def test_levels_of_an_index_are_predicted_at_as_they_were_fitted():
    index = pd.MultiIndex.from_product([TIMES[:4], [10, 20]], names=["time", "depth"])
    model = tiny().fit(None, pd.DataFrame(VALUES.reshape(8, 4), index))
    long = model.predict_dist(index).to_frame()
    assert long["depth"].tolist() == np.tile([10, 20], 4).repeat(4).tolist()
    assert long["time"].dtype.kind == "M"
    # No level passes for another, and no number for a date.
    with pytest.raises(DataError, match="give them in that order"):
        model.predict(index.swaplevel())
    with pytest.raises(DataError, match="Column 'time' of X holds numbers, but the model was fitted with dates"):
        model.predict(np.ones((2, 2)))


def test_a_fit_is_the_same_for_a_shuffled_mask():
    frame = pd.DataFrame(VALUES.reshape(8, 4), TIMES, columns=list("abcd"))
    mask = pd.DataFrame(np.arange(32).reshape(8, 4) % 5 > 0, TIMES, columns=list("abcd"))
    expected = tiny().fit(None, frame, mask=mask).predict(TIMES)
    assert np.array_equal(tiny().fit(None, frame, mask=mask[list("cadb")]).predict(TIMES), expected)


def test_xarray_is_not_needed_for_a_frame(model, monkeypatch):
    dist = model.predict_dist(TIMES)
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    assert len(dist.to_frame()) == 32
    with pytest.raises(manygp.ManyGPError, match="to_xarray needs xarray"):
        dist.to_xarray()
