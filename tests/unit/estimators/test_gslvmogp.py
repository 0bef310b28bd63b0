"""The estimators of separable kernels: what they learn, their settings and attributes."""

import numpy as np
import pytest

import manygp
from manygp import GSLVMOGP, LVMOGP, SettingError

QUIET = {"device": "cpu", "progress": False}
TINY = QUIET | {"latent_dim": 2, "num_inducing_latents": 6, "num_inducing_inputs": 12, "standardize": "output"}


def mixtures(rng, n=50, p=10):
    """Mixtures of two curves with noise of 0.1, and which cells are held out."""
    x = np.sort(rng.uniform(size=(n, 1)), axis=0)
    F = np.column_stack([np.sin(7 * x[:, 0]), np.cos(11 * x[:, 0])])
    Y = F @ rng.standard_normal((2, p)) + 0.1 * rng.standard_normal((n, p))
    held = rng.uniform(size=Y.shape) < 0.3
    return x, np.where(held, np.nan, Y), np.where(held, Y, np.nan)


@pytest.mark.parametrize("model", [LVMOGP(**TINY, epochs=60), GSLVMOGP(2, **TINY, epochs=60)], ids=["lv", "gs"])
def test_it_predicts_held_out_cells_to_the_noise(rng, model):
    X, Y, held = mixtures(rng)
    scores = model.fit(X, Y).evaluate(X, held)
    assert scores["mse"] < 0.02 < 0.1 * np.nanvar(held)
    assert scores["nll"] < -0.5
    assert 0.8 < scores["coverage90"] <= 1.0


def test_the_bound_rises_in_both_presets(rng):
    X, Y, _ = mixtures(rng)
    for preset in ("fast", "paper"):
        bound = GSLVMOGP(2, **TINY, preset=preset, epochs=15).fit(X, Y).history_["bound"]
        assert np.mean(bound[-3:]) > bound[0]


def test_one_component_is_the_other_class(rng):
    X, Y, _ = mixtures(rng)
    one, other = LVMOGP(**TINY, epochs=3).fit(X, Y), GSLVMOGP(1, **TINY, epochs=3).fit(X, Y)
    assert np.array_equal(one.predict(X), other.predict(X))


def test_attributes(rng):
    X, Y, _ = mixtures(rng)
    model = GSLVMOGP(2, **TINY, epochs=2).fit(X, Y)
    assert model.latent_mean_.shape == (10, 2, 2)
    assert model.latent_covariance_.shape == (10, 2, 2, 2)
    assert model.inducing_latents_.shape == (2, 6, 2)
    assert model.inducing_inputs_.shape == (12, 1)
    assert (model.inducing_inputs_ > -0.5).all()
    assert (model.inducing_inputs_ < 1.5).all()
    assert LVMOGP(**TINY, epochs=2).fit(X, Y).latent_mean_.shape == (10, 2)


def test_latents_with_a_prior_of_their_own(rng):
    """An output without observations is predicted from the prior of its latent vector, here beside a neighbour's."""
    X, Y, _ = mixtures(rng)
    where = np.repeat(rng.standard_normal((5, 2)), 2, axis=0)
    Y[:, 1::2] = Y[:, ::2]
    Y[:, 1] = np.nan
    prior = {"latent_prior_mean": where, "latent_prior_variance": 1e-4}
    model = LVMOGP(**(TINY | prior | {"standardize": "global"}), epochs=40)
    with pytest.warns(UserWarning, match="1 of 10 outputs have no observed cell"):
        model.fit(X, Y)
    assert np.abs(model.predict(X, outputs=[1]) - model.predict(X, outputs=[0])).max() < 0.2


@pytest.mark.parametrize("cls", [LVMOGP, GSLVMOGP])
def test_counts(rng, cls):
    """Counts are never standardised, and their rates are found."""
    x = np.linspace(0, 1, 60)[:, None]
    rate = np.exp(1.5 + np.sin(6 * x) * np.linspace(-1, 1, 8))
    Y = rng.poisson(rate).astype(float)
    settings = TINY | {"standardize": True, "latent_dim": 1}
    model = cls(**settings, likelihood="poisson", epochs=40).fit(x, Y)
    assert np.array_equal(model.scaling_.y_scale, np.ones(8))
    error = np.mean((model.predict(x) - rate) ** 2)
    assert error < 0.2 * np.mean((Y.mean(0) - rate) ** 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_components": 0}, "num_components=0 is no valid size"),
        ({"num_inducing_latents": "many"}, "num_inducing_latents='many' is no valid size"),
        ({"num_inducing_inputs": 0}, "num_inducing_inputs=0 is no valid size"),
        ({"latent_kernel": "linear"}, "latent_kernel='linear' is unknown"),
        ({"kernel": "linear"}, "kernel='linear' is unknown"),
        ({"likelihood": "cauchy"}, "likelihood='cauchy' is unknown"),
        ({"latent_posterior": "none"}, "latent_posterior='none' is unknown"),
        ({"latent_prior_variance": 0.0}, "latent_prior_variance=0.0 is out of range"),
        ({"latent_prior_mean": np.zeros((3, 2))}, "latent_prior_mean has 3 rows, but there are 10 outputs"),
        ({"latent_prior_mean": "here"}, "latent_prior_mean='here' is unknown"),
        ({"latent_prior_mean": np.zeros((10, 1))}, "latent_prior_mean has 1 columns but latent_dim is 2"),
        ({"preset": "paper", "standardize": "completed"}, "standardize='completed' goes with preset='fast' only"),
    ],
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = mixtures(rng)
    with pytest.raises(SettingError, match=message):
        GSLVMOGP(**(TINY | {"epochs": 1} | settings)).fit(X, Y)


def test_published_sizes_and_automatic_ones(rng):
    X, Y, _ = mixtures(rng)
    paper = GSLVMOGP(preset="paper", epochs=1, **QUIET).fit(X, Y)._sizes()
    assert (paper["num_components"], paper["latent_dim"]) == (3, 3)
    assert (paper["num_inducing_latents"], paper["num_inducing_inputs"]) == (20, 10)
    fast = LVMOGP(epochs=1, **QUIET).fit(X, Y)._sizes()
    assert 1 <= fast["latent_dim"] <= 4
    assert fast["num_inducing_inputs"] >= 10


def test_names():
    assert manygp.estimators.ESTIMATORS["lvmogp"] is LVMOGP
    assert manygp.estimators.ESTIMATORS["gs-lvmogp"] is GSLVMOGP
