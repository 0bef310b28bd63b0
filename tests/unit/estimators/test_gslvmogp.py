"""The estimators of separable kernels: what they learn, their settings and attributes."""

import numpy as np
import pytest
import scipy.sparse

import manygp
from manygp import GSLVMOGP, LVMOGP, DataError, SettingError

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


# -- new outputs -------------------------------------------------------------------------------------------------------


def field(rng, num_outputs):
    """Functions of time that depend on two coordinates of very different size, and the coordinates."""
    S = rng.uniform(-1.0, 1.0, (num_outputs, 2)) * (100.0, 1.0) + (1000.0, 0.0)
    x = np.linspace(0.0, 1.0, 12)[:, None]
    return x, np.sin(4.0 * x) * (S[:, 0] - 1000.0) / 100.0 + np.cos(3.0 * x) * S[:, 1], S


NEAR = QUIET | {"latent_prior_variance": 0.01, "num_inducing_latents": 10, "num_inducing_inputs": 6}


@pytest.mark.parametrize("q", [1, 2])
def test_new_places_are_predicted_from_their_coordinates(rng, q):
    X, Y, S = field(rng, 50)
    noisy = Y[:, :40] + 0.05 * rng.standard_normal((12, 40))
    model = GSLVMOGP(q, **NEAR, latent_prior_mean=S[:40], epochs=15).fit(X, noisy)
    dist = model.predict_new_outputs(X, latent_mean=S[40:], latent_variance=0.01)
    assert dist.shape == (12, 10)
    assert np.mean((dist.mean - Y[:, 40:]) ** 2) < 0.05 * Y.var()
    assert dist.score(Y[:, 40:])["coverage90"] > 0.8
    vague = model.predict_new_outputs(X, latent_mean=S[40:], latent_variance=np.full(10, 0.5))
    assert (vague.variance > dist.variance).mean() > 0.9


@pytest.mark.parametrize("q", [1, 2])
def test_a_new_output_with_the_latents_of_another_is_that_output(rng, q, tmp_path):
    X, Y, S = field(rng, 12)
    settings = NEAR | {"latent_prior_mean": S, "latent_posterior": "diagonal"}
    model = GSLVMOGP(q, **settings, epochs=3).fit(X, Y)
    model.save(tmp_path / "model")
    model = manygp.load(tmp_path / "model")
    latents = model.model_.latents
    raw = model.latent_mean_[:4] * latents.prior_scale.numpy() + latents.prior_center.numpy()
    variance = model.latent_covariance_[:4].diagonal(axis1=-2, axis2=-1)
    again = model.predict_new_outputs(X, latent_mean=raw, latent_variance=variance, output_names=list("abcd"))
    trained = model.predict_dist(X, outputs=[0, 1, 2, 3])
    np.testing.assert_allclose(again.mean, trained.mean, atol=1e-9)
    np.testing.assert_allclose(again.variance, trained.variance, atol=1e-9)
    assert again.output_names == tuple("abcd")


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_latents_start_at_their_prior_means(rng, preset):
    X, Y, S = field(rng, 20)
    for given in (S, "pca"):
        model = GSLVMOGP(2, **NEAR, latent_dim=2, latent_prior_mean=given, preset=preset, learning_rate=1e-12, epochs=1)
        model.fit(X, Y)
        prior = model.model_.latents.prior_mean.numpy().reshape(20, 2, 2)
        np.testing.assert_allclose(model.latent_mean_, prior, atol=1e-6)
        np.testing.assert_allclose(prior[:, 0], prior[:, 1])
        np.testing.assert_allclose(prior.std(0), 1.0)


def test_what_predict_new_outputs_refuses(rng):
    X, Y, S = field(rng, 8)
    model = GSLVMOGP(2, **NEAR, latent_prior_mean=S, epochs=1).fit(X, Y)
    with pytest.raises(DataError, match="latent_mean has 3 columns, but latent vectors have 2"):
        model.predict_new_outputs(X, latent_mean=np.zeros((4, 3)))
    with pytest.raises(DataError, match=r"latent_mean has shape \(4, 3, 2\), but an output has 2 latent vectors"):
        model.predict_new_outputs(X, latent_mean=np.zeros((4, 3, 2)))
    with pytest.raises(DataError, match=r"latent_variance has shape \(3,\), but latent_mean has \(4, 2, 2\)"):
        model.predict_new_outputs(X, latent_mean=np.zeros((4, 2)), latent_variance=np.ones(3))
    with pytest.raises(SettingError, match="GSLVMOGP takes no output_coordinates"):
        model.fit(X, Y, output_coordinates=S)


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cls", "likelihood"), [(LVMOGP, "negative-binomial"), (GSLVMOGP, "zinb")])
def test_sparse_counts_with_exposure(rng, cls, likelihood):
    """Exposures that differ tenfold are told apart from rates; new outputs are known too."""
    x = np.linspace(0, 1, 60)[:, None]
    exposure = 10.0 ** rng.uniform(-0.5, 0.5, 60)
    rate = np.exp(1.0 + np.sin(6 * x) * np.linspace(-1, 1, 12))
    Y = rng.poisson(rate * exposure[:, None])
    settings = QUIET | {"latent_dim": 1, "num_inducing_latents": 6, "num_inducing_inputs": 12}
    model = cls(**settings, likelihood=likelihood, epochs=20)
    model.fit(x, scipy.sparse.csr_matrix(Y), exposure=exposure)
    error = np.mean((model.predict(x) - rate) ** 2)
    assert error < 0.3 * np.mean((rate.mean(0) - rate) ** 2)
    assert model.evaluate(x, Y, exposure=exposure)["nll"] < model.evaluate(x, Y)["nll"] - 0.1
    latents = model.latent_mean_[[0, 11]]
    new = model.predict_new_outputs(x, latent_mean=latents, latent_variance=0.01, exposure=exposure)
    assert np.isfinite(new.log_prob(Y[:, [0, 11]])).all()


def test_large_counts_do_not_run_away(rng):
    """Where exp(f) spans orders of magnitude, steps stay where derivatives mean something."""
    x = np.linspace(0, 1, 40)[:, None]
    rate = np.exp(4.0 + 4.0 * np.sin(6 * x) * np.linspace(-1, 1, 10))
    Y = rng.poisson(rate).astype(float)
    model = GSLVMOGP(2, **TINY | {"standardize": True}, likelihood="poisson", epochs=40).fit(x, Y)
    bound = model.history_["bound"]
    assert np.isfinite(bound).all()
    assert np.mean(bound[-5:]) > max(np.mean(bound[:5]) + 200.0, -1800.0)
    assert np.abs(np.log(model.predict(x) / rate)).max() < 0.5


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
