"""Gaussian noise that the user has fixed stays through start, training and all that follows, in the units of Y."""

import numpy as np
import pytest
import torch

import manygp
from manygp import GMOGP, GSLVMOGP, LVMOGP, OILMM, SGPRN, SVLMC, TLVMOGP, IndGP, SettingError
from manygp.likelihoods import Gaussian, PooledGaussian
from manygp.terms import RowEffects

from .conftest import X as TIMES

QUIET = {"device": "cpu", "progress": False}
FIXED = Gaussian(noise=0.5, learn_noise=False)
ESTIMATORS = {
    "tlvmogp": lambda **more: TLVMOGP(latent_dim=2, num_inducing=15, epochs=4, **QUIET, **more),
    "tlvmogp, paper preset": lambda **more: TLVMOGP(num_inducing=15, epochs=4, preset="paper", **QUIET, **more),
    "lvmogp": lambda **more: LVMOGP(2, 4, 8, epochs=4, **QUIET, **more),
    "gs-lvmogp": lambda **more: GSLVMOGP(2, 1, 3, 8, epochs=4, **QUIET, **more),
    "ind-gp": lambda **more: IndGP(**QUIET, **more),
    "ind-gp, shared kernel": lambda **more: IndGP(share_kernel=True, **QUIET, **more),
    "ind-gp, sparse": lambda **more: IndGP(num_inducing=8, epochs=4, **QUIET, **more),
    "ind-gp, paper preset": lambda **more: IndGP(preset="paper", epochs=5, **QUIET, **more),
    "sv-lmc": lambda **more: SVLMC(num_latents=2, num_inducing=8, epochs=4, **QUIET, **more),
    "oilmm": lambda **more: OILMM(num_latents=2, epochs=4, **QUIET, **more),
    "oilmm, fixed basis": lambda **more: OILMM(num_latents=2, epochs=4, learn_basis=False, **QUIET, **more),
    "oilmm, paper preset": lambda **more: OILMM(preset="paper", num_inducing=8, epochs=3, **QUIET, **more),
    "g-mogp": lambda **more: GMOGP(num_inducing=8, epochs=4, **QUIET, **more),
    "sgprn": lambda **more: SGPRN(num_latents=2, epochs=3, **QUIET, **more),
}


@pytest.fixture(scope="module")
def waves():
    """Four outputs of very different size, with gaps."""
    rng = np.random.default_rng(5)
    X = np.linspace(0.0, 1.0, 40)[:, None]
    Y = np.sin(6.0 * X + np.arange(4)) * (1.0, 3.0, 10.0, 30.0) + 0.7 * rng.standard_normal((40, 4))
    return X, np.where(rng.random(Y.shape) < 0.2, np.nan, Y)


def noise_of(model, X):
    """What observations have beyond the function, in the user's units."""
    return model.predict_dist(X).variance - model.predict_dist(X, observation_noise=False).variance


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fixed_noise_is_that_of_predictions(waves, name, tmp_path):
    X, Y = waves
    model = ESTIMATORS[name](likelihood=FIXED).fit(X, Y)
    np.testing.assert_allclose(noise_of(model, X), 0.5, rtol=1e-6)
    assert float(FIXED.noise) == pytest.approx(0.5)
    model.save(tmp_path / "model")
    loaded = manygp.load(tmp_path / "model", likelihood=FIXED)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize("standardize", ["output", "global", False])
def test_it_is_in_the_units_of_the_observations_whatever_the_scaling(waves, standardize):
    X, Y = waves
    model = ESTIMATORS["tlvmogp"](likelihood=FIXED, standardize=standardize).fit(X, Y)
    np.testing.assert_allclose(noise_of(model, X), 0.5, rtol=1e-6)


def test_every_output_may_have_its_own(waves):
    X, Y = waves
    own = np.array([0.1, 0.2, 3.0, 9.0])
    likelihood = Gaussian(4, noise=own, per_output=True, learn_noise=False)
    for name in ("tlvmogp", "ind-gp"):
        model = ESTIMATORS[name](likelihood=likelihood).fit(X, Y)
        np.testing.assert_allclose(noise_of(model, X), np.tile(own, (40, 1)), rtol=1e-6)


@pytest.mark.parametrize("kind", [Gaussian, PooledGaussian])
def test_a_likelihood_without_gradients_is_fixed_too(waves, kind):
    X, Y = waves
    model = ESTIMATORS["tlvmogp"](likelihood=kind(noise=0.5).requires_grad_(False)).fit(X, Y)
    np.testing.assert_allclose(noise_of(model, X), 0.5, rtol=1e-6)


def test_a_noise_to_be_learned_is_learned(waves):
    X, Y = waves
    model = ESTIMATORS["tlvmogp"](likelihood=Gaussian(noise=0.5), standardize="global").fit(X, Y)
    assert np.abs(noise_of(model, X) - 0.5).min() > 1e-3


def test_units_may_be_small_and_a_noise_next_to_nothing(waves):
    X, Y = waves
    tiny = Gaussian(noise=0.5e-12, learn_noise=False)
    model = ESTIMATORS["ind-gp"](likelihood=tiny).fit(X, 1e-6 * Y)
    np.testing.assert_allclose(noise_of(model, X), 0.5e-12, rtol=1e-6)
    model = ESTIMATORS["ind-gp"](likelihood=tiny).fit(X, Y)
    np.testing.assert_allclose(model.noise_, 1e-6, rtol=1e-6)


def test_effects_of_single_inputs_leave_it_alone():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (150, 1))
    shared = rng.standard_normal((150, 1)) * np.sign(rng.standard_normal(8))
    Y = np.sin(X) @ rng.standard_normal((1, 8)) + shared + 0.3 * rng.standard_normal((150, 8))
    fixed = Gaussian(noise=0.09, learn_noise=False)
    model = TLVMOGP(latent_dim=2, num_inducing=30, num_neighbors=0, epochs=15, likelihood=fixed, **QUIET).fit(X, Y)
    assert model.model_.terms.of(RowEffects)
    np.testing.assert_allclose(noise_of(model, X), 0.09, rtol=1e-6)


def test_new_outputs_have_it_too(waves):
    X, Y = waves
    model = ESTIMATORS["tlvmogp"](likelihood=FIXED, standardize="output").fit(X, Y[:, :3])
    adapted = model.adapt(X, Y[:, 3:])
    new = model.predict_new_outputs(X, latent_mean=np.zeros((2, 2)))
    np.testing.assert_allclose(noise_of(adapted, X), 0.5, rtol=1e-6)
    f = model.predict_new_outputs(X, latent_mean=np.zeros((2, 2)), observation_noise=False)
    np.testing.assert_allclose(new.variance - f.variance, 0.5, rtol=1e-6)


def test_exact_gps_with_a_fixed_noise_find_the_rest(waves):
    model = ESTIMATORS["ind-gp"](likelihood=FIXED, standardize="output").fit(*waves)
    assert model.is_exact_
    rows, which = model.model_.parameter_rows(), torch.arange(4)
    assert rows.shape == (4, 2)
    found = float(model.model_.log_evidence(rows, which).detach().sum())
    assert model.history_["bound"][-1] == pytest.approx(found)
    for move in torch.eye(2, dtype=torch.float64):
        for other in (rows + move, rows - move):
            assert float(model.model_.log_evidence(other, which).detach().sum()) < found


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (OILMM(likelihood=FIXED, standardize="output"), "standardize='output' scales outputs each by itself"),
        (IndGP(likelihood=FIXED, standardize="output", share_kernel=True), "standardize='output' scales outputs"),
        (
            IndGP(likelihood=Gaussian(4, 0.1, per_output=True, learn_noise=False), share_kernel=True),
            "fixes a noise for each output",
        ),
        (OILMM(likelihood=Gaussian(4, 0.1, per_output=True)), "not for OILMM.*Gaussian noise with one variance"),
    ],
)
def test_one_noise_for_all_needs_one_scale(waves, model, message):
    with pytest.raises(SettingError, match=message):
        model.set_params(**QUIET).fit(*waves)


@pytest.mark.parametrize(("frozen", "is_calibrated"), [(3, False), (4, False), (2, True)])
def test_a_noise_that_was_frozen_in_all_epochs_stays_at_its_start(waves, monkeypatch, frozen, is_calibrated):
    calls = []
    monkeypatch.setattr("manygp.estimators.corrections.calibrate_noise", lambda *given: calls.append(given) or 1.0)
    settings = {"latent_dim": 1, "num_inducing": 8, "epochs": 3, "freeze_likelihood": frozen}
    TLVMOGP(**settings, **QUIET).fit(*waves)
    assert bool(calls) == is_calibrated


def test_a_frozen_likelihood_stays_in_a_climb_as_well(waves, monkeypatch):
    starts = []
    climb = manygp.estimators.oilmm.climb_likelihood
    monkeypatch.setattr(
        "manygp.estimators.oilmm.climb_likelihood",
        lambda model, *rest: starts.append(float(model.likelihood.noise.detach())) or climb(model, *rest),
    )
    for frozen in (0, 6):
        model = OILMM(num_latents=2, epochs=6, freeze_likelihood=frozen, **QUIET).fit(*waves)
        assert (float(model.model_.likelihood.noise.detach()) == starts[-1]) == (frozen == 6)


def test_new_places_have_it_too(field):
    S, Y = field
    fixed = Gaussian(noise=0.01, learn_noise=False)
    Y = np.where(np.arange(40) == 5, np.nan, Y)
    settings = {"latent_dim": 2, "num_inducing": 20, "epochs": 4, "likelihood": fixed, **QUIET}
    with pytest.warns(UserWarning, match="no observed cell"):
        model = TLVMOGP(**settings).fit(TIMES, Y[:, :30], output_coordinates=S[:30])
    np.testing.assert_allclose(noise_of(model, TIMES), 0.01, rtol=1e-6)
    with_noise, without = (
        model.predict_new_outputs(TIMES, output_coordinates=S[30:], observation_noise=noise).variance
        for noise in (True, False)
    )
    np.testing.assert_allclose(with_noise - without, 0.01, rtol=1e-6)
