"""Scores at the public edge: columns by name, weights that are weights, and gaps left out."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from manygp import TLVMOGP, DataError, SettingError, scorer

from .conftest import TINY

X = np.linspace(0.0, 1.0, 12)[:, None]
Y = np.sin(5 * X + np.arange(3)) + 0.1 * np.random.default_rng(0).normal(size=(12, 3))


def tiny():
    return TLVMOGP(**TINY | {"num_inducing": 5, "epochs": 2})


@pytest.fixture(scope="module")
def model():
    return tiny().fit(X, Y)


def test_columns_in_text_are_outputs_that_are_numbers(model):
    expected, turned = model.evaluate(X, Y), pd.DataFrame(Y[:, ::-1], columns=["2", "1", "0"])
    assert model.evaluate(X, turned) == pytest.approx(expected)
    assert model.score(X, turned) == pytest.approx(model.score(X, Y))
    # Numbers from 0 on are what columns without names are called.
    named = tiny().fit(X, pd.DataFrame(Y[:, ::-1], columns=["2", "1", "0"]))
    assert named.evaluate(X, pd.DataFrame(Y[:, ::-1])) == named.evaluate(X, Y[:, ::-1])


@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_weights_that_are_none(model, weight):
    weights = np.ones(12)
    weights[3] = weight
    with pytest.raises(DataError, match=f"sample_weight holds {weight:g}; give finite numbers of at least 0"):
        model.score(X, Y, weights)


def test_inputs_and_values_read_backwards(model):
    assert model.evaluate(X[::-1], Y[::-1]) == pytest.approx(model.evaluate(X, Y))
    assert np.array_equal(
        tiny().fit(X[::-1], Y[::-1]).predict(X), tiny().fit(X[::-1].copy(), Y[::-1].copy()).predict(X)
    )


@pytest.mark.parametrize("name", ["mse", "nll", "crps"])
def test_scorers_leave_gaps_out(model, name):
    gappy = np.where(np.arange(36).reshape(12, 3) % 5 == 0, np.nan, Y)
    score = pickle.loads(pickle.dumps(scorer(name)))
    assert score(model, X, gappy) == -model.evaluate(X, gappy)[name]
    pipeline = make_pipeline(StandardScaler(), tiny()).fit(X, gappy)
    scaled = (X - X.mean()) / X.std()
    assert score(pipeline, X, gappy) == pytest.approx(-pipeline[-1].evaluate(scaled, gappy)[name])


def test_cross_validation_with_gaps():
    gappy = np.where(np.arange(36).reshape(12, 3) % 5 == 0, np.nan, Y)
    assert np.isfinite(cross_val_score(tiny(), X, gappy, scoring=scorer("mse"), cv=2)).all()


def test_scores_that_are_none():
    with pytest.raises(SettingError, match=r"scorer\('rmse'\) is unknown: use one of 'mse', 'nll', 'crps'"):
        scorer("rmse")
