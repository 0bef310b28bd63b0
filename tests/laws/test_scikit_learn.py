"""Estimators keep scikit-learn's contract: its own checks, clones, pipelines, searches and cross-validation."""

import inspect

import numpy as np
import pandas as pd
import pytest
from jaxtyping import config
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from manygp import GMOGP, GSLVMOGP, LVMOGP, OILMM, SGPRN, SVLMC, TLVMOGP, DataError, IndGP

from .conftest import fitted, fresh, observations
from .registry import ESTIMATORS

# Every check applies: missing targets are allowed but not asked for, and all the rest is as scikit-learn expects.
# Only the number of inducing points must be left to the model, because a fixed one is refused on a single sample.
CHECKED = [
    TLVMOGP(latent_dim=2, epochs=1, standardize="output", device="cpu", progress=False),
    LVMOGP(2, 2, 10, epochs=1, standardize="output", device="cpu", progress=False),
    GSLVMOGP(2, 1, 3, 10, epochs=1, standardize="output", device="cpu", progress=False),
    IndGP(device="cpu", progress=False),
    GMOGP(epochs=3, standardize="output", device="cpu", progress=False),
    OILMM(num_latents=1, epochs=3, device="cpu", progress=False),
    SVLMC(num_latents=2, epochs=3, standardize="output", device="cpu", progress=False),
    SGPRN(num_latents=2, epochs=3, standardize="output", device="cpu", progress=False),
]


@pytest.fixture
def _shapes_are_left_alone(_shapes_are_checked):
    """Four hundred fits of models that all other laws have looked at."""
    config.update("jaxtyping_disable", True)


# Some checks fit whole numbers, or noise, and are told so.
@pytest.mark.usefixtures("_shapes_are_left_alone")
@pytest.mark.filterwarnings("ignore:The observations look like", "ignore:The fit explains next to nothing")
@parametrize_with_checks(CHECKED)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_every_estimator_is_checked():
    assert {type(estimator) for estimator in CHECKED} == {estimator for estimator, _ in ESTIMATORS.values()}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_init_only_stores(name):
    estimator, settings = ESTIMATORS[name]
    parameters = inspect.signature(estimator).parameters
    values = {key: object() for key in parameters}
    stored = estimator(**values).get_params(deep=False)
    assert all(stored[key] is value for key, value in values.items())
    assert set(settings) <= set(parameters)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_clone_fits_to_the_same_numbers(name):
    X, Y = observations()
    first = fresh(name)
    second = clone(first).fit(X, Y)
    assert first.get_params() == second.get_params()
    with pytest.raises(NotFittedError):
        first.predict(X)
    assert np.array_equal(fitted(name).predict(X), second.predict(X))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_second_fit_forgets_the_first(name):
    X, Y = observations()
    twice = fresh(name).fit(pd.DataFrame(X, columns=["t"]), Y[:, :2]).fit(X, Y)
    assert not hasattr(twice, "feature_names_in_")
    assert twice.n_outputs_ == 5
    assert np.array_equal(twice.predict(X), fitted(name).predict(X))


def test_targets_go_by_the_same_name_everywhere():
    X, Y = observations()
    model = fresh("tlvmogp").fit(X, y=Y)
    assert np.array_equal(model.predict(X), fitted("tlvmogp").predict(X))
    assert model.score(X, y=Y) == model.score(X, Y)
    assert model.evaluate(X, y=Y) == model.evaluate(X, Y)


def test_pipelines(rng):
    X, Y = observations()
    pipeline = make_pipeline(StandardScaler(), fresh("tlvmogp")).fit(1000.0 * X, Y)
    assert pipeline.predict(1000.0 * X).shape == Y.shape
    assert pipeline.score(1000.0 * X, Y) > 0.5


def test_grid_search_and_cross_validation_with_gaps():
    X, Y = observations()
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(fresh("tlvmogp"), {"kernel": ["rbf", "matern32"], "latent_dim": [1]}, cv=folds).fit(X, Y)
    assert search.best_params_["latent_dim"] == 1
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    scores = cross_val_score(fresh("tlvmogp"), X, Y, cv=folds)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_one_dimensional_targets_come_back_one_dimensional(name):
    X, Y = observations()
    y = np.nan_to_num(Y[:, 0])
    flat, column = fresh(name).fit(X, y), fresh(name).fit(X, y[:, None])
    mean, std = flat.predict(X, return_std=True)
    assert mean.shape == std.shape == (24,)
    assert column.predict(X).shape == (24, 1)
    assert np.array_equal(mean, column.predict(X)[:, 0])
    assert flat.predict_dist(X).mean.shape == (24, 1)
    assert flat.score(X, y) == column.score(X, y[:, None])
    assert flat.evaluate(X, y) == column.evaluate(X, y[:, None])
    assert np.array_equal(flat.predict_dist(X).log_prob(y), column.predict_dist(X).log_prob(y[:, None]))


def test_cross_validation_of_one_dimensional_targets():
    X, Y = observations()
    scores = cross_val_score(fresh("tlvmogp"), X, np.nan_to_num(Y[:, 0]), cv=3, scoring="neg_mean_squared_error")
    assert np.isfinite(scores).all()


def test_score_is_r_squared_over_observed_cells(rng):
    from sklearn.metrics import r2_score

    X, Y = observations()
    model = fresh("tlvmogp").fit(X, Y)
    full = rng.standard_normal(Y.shape)
    weight = rng.uniform(size=len(X))
    assert model.score(X, full) == pytest.approx(r2_score(full, model.predict(X)))
    assert model.score(X, full, weight) == pytest.approx(r2_score(full, model.predict(X), sample_weight=weight))
    # Constant outputs count, and those without observations do not.
    full[:, 0] = 0.5
    assert model.score(X, full) == pytest.approx(r2_score(full, model.predict(X)))
    full[1:, 1], full[:, 2:] = np.nan, np.nan
    # The mean of equal numbers has a rounding error here, by which scikit-learn would divide.
    full[:, 0], full[0, 1] = 0.1, model.predict(X)[0, 1]
    assert model.score(X, full) == 0.5
    with pytest.raises(DataError, match="sample_weight is 0 wherever Y is observed"):
        model.score(X, full, np.zeros(len(X)))
    by_hand = [r2_score(y[~np.isnan(y)], m[~np.isnan(y)]) for y, m in zip(Y.T, model.predict(X).T, strict=True)]
    assert model.score(X, Y) == pytest.approx(np.mean(by_hand))
