"""Frames, series and times at the public edge: names say which column is which."""

import numpy as np
import pandas as pd
import pytest

from manygp import TLVMOGP, DataError, load
from manygp.data import as_table

from .conftest import TINY

X = np.linspace(0.0, 1.0, 8)[:, None]
Y = np.column_stack([np.sin(5 * X[:, 0]), np.cos(5 * X[:, 0]), X[:, 0]])


def tiny():
    return TLVMOGP(**TINY | {"num_inducing": 5, "epochs": 2})


def test_duplicate_columns_of_a_frame():
    with pytest.raises(DataError, match="'a' occurs more than once"):
        tiny().fit(X, pd.DataFrame(Y, columns=["a", "b", "a"]))


def test_columns_of_a_frame_are_scored_by_name():
    frame = pd.DataFrame(Y, columns=["a", "b", "c"])
    model = tiny().fit(X, frame)
    expected = model.evaluate(X, Y)
    assert model.evaluate(X, frame[["c", "a", "b"]]) == pytest.approx(expected)
    assert model.evaluate(X, frame[["c"]]) == pytest.approx(model.evaluate(X, Y[:, 2], outputs=["c"]))
    # Columns without names come in order.
    assert model.evaluate(X, pd.DataFrame(Y)) == pytest.approx(expected)
    assert model.evaluate(X, frame["b"]) == pytest.approx(model.evaluate(X, Y[:, 1], outputs=["b"]))
    assert model.score(X, frame[["c", "a", "b"]]) == pytest.approx(model.score(X, Y))
    for ask in (model.evaluate, model.score):
        with pytest.raises(DataError, match="Y has a column 'z', which is no output of the model"):
            ask(X, frame.rename(columns={"b": "z"}))


def test_columns_that_the_model_does_not_know_are_refused():
    frame = pd.DataFrame(Y, columns=["a", "b", "c"])
    model, other = tiny().fit(X, frame), frame.rename(columns=str.upper)
    for ask in (model.evaluate, model.score):
        with pytest.raises(DataError, match=r"Y has a column 'A'.*no output of the model, which has 'a'.*outputs="):
            ask(X, other)
    assert model.evaluate(X, other, outputs=["a", "b", "c"]) == pytest.approx(model.evaluate(X, frame))
    # Outputs without names are matched in order, and so is a series, which may be called anything.
    assert tiny().fit(X, Y).evaluate(X, other) == pytest.approx(model.evaluate(X, frame))
    single = tiny().fit(X, frame["a"])
    assert single.evaluate(X, other["A"]) == pytest.approx(single.evaluate(X, Y[:, 0]))


def test_a_frame_with_other_features_is_refused():
    model = tiny().fit(pd.DataFrame(X, columns=["day"]), Y)
    with pytest.raises(DataError, match="feature names"):
        model.predict(pd.DataFrame(X, columns=["night"]))
    with pytest.raises(DataError, match="feature names") as caught:
        model.evaluate(pd.DataFrame(X, columns=["night"]), Y)
    assert "\n" not in str(caught.value)
    # Without a warning, which would be an error here.
    model.evaluate(pd.DataFrame(X, columns=["day"]), Y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(X)


def test_columns_of_mixed_names_are_no_features():
    frame = pd.DataFrame(np.hstack([X, X**2]), columns=["day", 1])
    model = tiny().fit(frame, Y)
    assert np.array_equal(model.predict(frame), model.predict(frame.to_numpy()))


def test_times_are_predicted_at_as_they_were_fitted():
    times = pd.date_range("2020-01-01", periods=8, freq="MS")
    model = tiny().fit(None, pd.DataFrame(Y, index=times, columns=["a", "b", "c"]))
    expected = model.predict(times.to_numpy()[:, None])
    for same in (times, pd.Series(times), times.to_frame(), times.tz_localize("UTC"), times.to_period("M")):
        assert np.array_equal(model.predict(same), expected)
    xarray = pytest.importorskip("xarray")
    assert np.array_equal(model.predict(xarray.DataArray(times, dims="time")), expected)


def test_inputs_of_another_kind_are_refused(tmp_path):
    times = pd.date_range("2020-01-01", periods=8, tz="Asia/Tokyo")
    frame = pd.DataFrame(Y, index=times, columns=["a", "b", "c"])
    model = tiny().fit(None, frame)
    model.save(tmp_path / "model")
    for same in (model, load(tmp_path / "model")):
        with pytest.raises(DataError, match="X holds dates, but the model was fitted with dates of a time zone"):
            same.predict(times.tz_localize(None))
        with pytest.raises(DataError, match="X holds numbers, but the model was fitted with dates"):
            same.evaluate(np.arange(8.0)[:, None], Y)
        assert same.evaluate(None, frame) == same.evaluate(as_table(None, frame)) == model.evaluate(times, Y)
    with pytest.raises(DataError, match="X holds dates, but the model was fitted with numbers"):
        tiny().fit(X, Y).predict(times.tz_localize(None))
