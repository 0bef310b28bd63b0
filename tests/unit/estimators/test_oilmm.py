"""The OILMM estimator: what it finds, how it trains, and settings that make no sense."""

import gpytorch
import numpy as np
import pytest

from manygp import OILMM, DataError, IndGP, SettingError
from manygp.likelihoods import Poisson

from .test_svlmc import QUIET, held_out


@pytest.mark.parametrize("settings", [{}, {"num_inducing": 12}, {"learn_basis": False}, {"num_latents": 8}])
def test_it_fills_gaps_better_than_outputs_alone(rng, settings):
    X, Y, rest = held_out(rng)
    score = OILMM(**({"num_latents": 3, "epochs": 40} | settings), **QUIET).fit(X, Y).evaluate(X, rest)
    alone = IndGP(**QUIET).fit(X, Y).evaluate(X, rest)
    assert score["mse"] < 0.5 * alone["mse"]
    assert score["nll"] < alone["nll"]


def test_shared_shocks_are_known_where_something_was_observed(rng):
    """Noise that all outputs share at an input is predicted there, and only there."""
    X = np.linspace(0, 1, 40)[:, None]
    Y = rng.standard_normal((40, 1)) * np.linspace(1, 2, 6) + 0.05 * rng.standard_normal((40, 6))
    gaps = rng.uniform(size=Y.shape) < 0.2
    model = OILMM(num_latents=1, epochs=40, **QUIET).fit(X, np.where(gaps, np.nan, Y))
    assert np.mean((model.predict(X) - Y)[gaps] ** 2) < 0.05
    _, there = model.predict(X, return_std=True)
    _, between = model.predict(X[:-1] + 0.5 / 39, return_std=True)
    assert between.min() > 3 * there.max()
    np.testing.assert_allclose(model.predict(X.astype(np.float32)), model.predict(X), atol=1e-3)


def test_sizes_are_chosen(rng):
    X, Y, _ = held_out(rng, num_inputs=40, num_outputs=20)
    model = OILMM(epochs=2, **QUIET).fit(X, Y)
    assert model.mixing_.shape[0] == 20
    assert 3 <= model.mixing_.shape[1] <= 5
    assert model.is_exact_
    assert model.history_.stop_reason == "epochs"
    gram = model.mixing_.T @ model.mixing_
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0.0, atol=1e-8 * gram.max())


def test_processes_do_not_claim_the_same_cells(rng):
    """Rows with fewer cells than processes, of smooth functions: each process by itself would explain all of a row."""
    X = np.sort(rng.uniform(0, 10, (300, 1)), axis=0)
    waves = np.column_stack([np.sin(X + 1.0), np.cos(1.7 * X), np.sin(0.6 * X)])
    Y = waves @ rng.standard_normal((3, 6)) + 0.1 * rng.standard_normal((300, 6))
    gaps = rng.uniform(size=Y.shape) < 0.6
    model = OILMM(num_latents=3, epochs=40, **QUIET).fit(X, np.where(gaps, np.nan, Y))
    assert model.model_.is_coupled
    assert not model.is_exact_
    score = model.evaluate(X, np.where(gaps, Y, np.nan))
    assert score["mse"] < 0.03
    assert score["nll"] < -0.3
    assert 0.8 < score["coverage90"] < 0.97


def test_no_more_processes_than_outputs(rng):
    X, Y, _ = held_out(rng)
    assert OILMM(num_latents=5, epochs=1, **QUIET).fit(X, Y[:, :2]).mixing_.shape == (2, 2)


def test_training_as_published_climbs(rng):
    X, Y, _ = held_out(rng)
    model = OILMM(preset="paper", num_latents=2, num_inducing=8, epochs=40, **QUIET).fit(X, Y)
    assert model.model_.projection == "pseudo-inverse"
    assert not model.is_exact_
    assert np.mean(model.history_["bound"][-5:]) > np.mean(model.history_["bound"][:5])


def test_minibatches_come_near_the_direct_way(rng, monkeypatch):
    X, Y, rest = held_out(rng, num_inputs=60)
    settings = {"num_latents": 3, "num_inducing": 15, **QUIET}
    direct = OILMM(epochs=40, **settings).fit(X, Y).evaluate(X, rest)
    monkeypatch.setattr("manygp.estimators.oilmm._MAX_DIRECT_NUMBERS", 0)
    batched = OILMM(batch_inputs=20, epochs=30, **settings).fit(X, Y)
    assert batched.history_["kl_u"][-1] > 0.0
    assert batched.evaluate(X, rest)["nll"] < direct["nll"] + 0.2


def test_an_output_without_observations_is_as_uncertain_as_any(rng):
    X, Y, _ = held_out(rng)
    Y[:, 3] = np.nan
    with pytest.warns(UserWarning, match="no observed cell"):
        model = OILMM(num_latents=3, epochs=10, standardize="global", **QUIET).fit(X, Y)
    _, std = model.predict(X, return_std=True)
    assert std[:, 3].min() > 0.5 * np.nanstd(Y)


def test_lists_of_cells_and_kernels_of_the_user(rng):
    x = rng.uniform(size=(60, 1))
    outputs = rng.integers(3, size=60)
    y = np.sin(6 * x[:, 0]) * (1.0 + outputs)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())
    for settings in ({}, {"kernel": kernel}):
        model = OILMM(num_latents=2, epochs=20, **settings, **QUIET).fit_cells(x, outputs, y)
        assert np.mean((model.predict_cells(x, outputs).mean - y) ** 2) < 0.2 * y.var()


def test_lists_that_share_no_inputs_are_refused_where_the_grid_is_huge(rng, monkeypatch):
    monkeypatch.setattr("manygp.estimators.oilmm._MAX_GRID_CELLS", 100)
    with pytest.raises(DataError, match=r"a grid of 120 cells.*SVLMC or TLVMOGP"):
        OILMM(**QUIET).fit_cells(rng.uniform(size=(40, 1)), rng.permutation(40) % 3, rng.uniform(size=40))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"likelihood": "poisson"}, "not for OILMM.*Gaussian noise"),
        ({"likelihood": Poisson()}, "not for OILMM.*Gaussian noise"),
        ({"num_inducing": 99}, "exceeds the 25 inputs"),
        ({"num_latents": 0}, "num_latents=0"),
        ({"projection": "best"}, "projection='best'"),
        ({"learn_basis": "yes"}, "learn_basis='yes'"),
        ({"regularization": 0.0}, "regularization=0.0"),
        ({"standardize": "each"}, "standardize='each'"),
        ({"preset": "paper", "num_inducing": None}, "num_inducing=None"),
        ({"preset": "paper", "standardize": "completed"}, "standardize='completed'"),
    ],
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = held_out(rng)
    with pytest.raises(SettingError, match=message):
        OILMM(**(QUIET | settings)).fit(X, Y)
