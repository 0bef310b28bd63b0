"""The Ind-GP estimator: exact or sparse, own kernels or a shared one, settings that make no sense."""

import gpytorch
import numpy as np
import pytest
import torch

import manygp
from manygp import IndGP, SettingError
from manygp.estimators import indgp
from manygp.initialise import Survey
from manygp.likelihoods import Gaussian
from manygp.models.exact import ExactBatch
from manygp.models.indgp import SparseIndependentModel

QUIET = {"device": "cpu", "progress": False}


def smooth_table(rng, num_inputs=30, num_outputs=4, missing=0.3):
    """Unrelated smooth functions with noise: training values with gaps, and the functions themselves."""
    X = np.sort(rng.uniform(size=(num_inputs, 1)), axis=0)
    f = np.sin(2 * np.pi * (X * rng.uniform(0.7, 1.5, num_outputs) + rng.uniform(size=num_outputs)))
    Y = f + 0.1 * rng.standard_normal(f.shape)
    return X, np.where(rng.uniform(size=f.shape) < missing, np.nan, Y), f


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"share_kernel": True},
        {"kernel": "matern32"},
        {"num_inducing": 15, "epochs": 60},
        {"num_inducing": 15, "epochs": 60, "share_kernel": True},
        {"preset": "paper", "epochs": 200, "learning_rate": 0.05},
    ],
    ids=str,
)
def test_it_finds_smooth_functions(rng, settings):
    X, Y, f = smooth_table(rng)
    model = IndGP(**settings, **QUIET).fit(X, Y)
    assert np.mean((model.predict(X) - f) ** 2) < 0.1 * f.var()
    assert model.evaluate(X, f + 0.1 * rng.standard_normal(f.shape))["coverage90"] > 0.75
    assert model.is_exact_ == ("num_inducing" not in settings)


def test_parameters_have_a_row_for_each_output_or_one_for_all(rng):
    X, Y, _ = smooth_table(rng)
    for settings in ({}, {"num_inducing": 8, "epochs": 2}):
        own, shared = (IndGP(share_kernel=share, **settings, **QUIET).fit(X, Y) for share in (False, True))
        assert own.lengthscale_.shape == (4, 1)
        assert own.outputscale_.shape == own.noise_.shape == (4,)
        assert shared.lengthscale_.shape == (1, 1)
        assert shared.outputscale_.shape == shared.noise_.shape == (1,)


def test_sparse_training_as_published_climbs(rng):
    X, Y, _ = smooth_table(rng)
    model = IndGP(preset="paper", num_inducing=15, epochs=30, freeze_likelihood=0, **QUIET).fit(X, Y)
    assert not model.is_exact_
    assert np.mean(model.history_["bound"][-5:]) > np.mean(model.history_["bound"][:5])


def test_large_tables_are_sparse(rng, monkeypatch):
    X, Y, _ = smooth_table(rng)
    monkeypatch.setattr(indgp, "_MAX_CELLS", 10)
    automatic = IndGP(epochs=2, **QUIET).fit(X, Y)
    assert isinstance(automatic.model_, SparseIndependentModel)
    assert isinstance(IndGP(num_inducing=None, **QUIET).fit(X, Y).model_, ExactBatch)
    monkeypatch.undo()
    monkeypatch.setattr(indgp, "_MAX_NUMBERS", 2 * len(X) ** 2)
    assert not IndGP(epochs=2, **QUIET).fit(X, Y).is_exact_
    # One factorisation serves all outputs of a complete table.
    assert IndGP(share_kernel=True, **QUIET).fit(X, np.nan_to_num(Y)).is_exact_


@pytest.mark.parametrize("share_kernel", [True, False])
@pytest.mark.parametrize("likelihood", ["poisson", "bernoulli", "student-t", manygp.likelihoods.NegativeBinomial(3)])
def test_other_likelihoods_are_sparse(rng, likelihood, share_kernel):
    X = np.linspace(0, 1, 40)[:, None]
    rate = np.exp(1.0 + np.sin(6 * X + np.arange(3)))
    Y = rng.poisson(rate).astype(float)
    if likelihood == "bernoulli":
        Y = (Y > 2).astype(float)
    model = IndGP(likelihood=likelihood, num_inducing=10, share_kernel=share_kernel, epochs=20, **QUIET).fit(X, Y)
    assert not model.is_exact_
    assert np.mean((model.predict(X) - Y) ** 2) < np.mean((Y.mean(0) - Y) ** 2)
    with pytest.raises(SettingError, match="has no noise variance"):
        _ = model.noise_


@pytest.mark.parametrize("likelihood", ["gaussian", "pooled-gaussian"])
def test_noise_is_what_observations_have_beyond_the_function(rng, likelihood):
    X, Y, _ = smooth_table(rng)
    model = IndGP(likelihood=likelihood, num_inducing=4, epochs=1, **QUIET).fit(X, Y)
    if likelihood == "pooled-gaussian":
        model.model_.likelihood.set_deviation(torch.as_tensor(rng.standard_normal(Y.shape[1])), 1.0)
    assert model.noise_.shape == (Y.shape[1],)
    beyond = model.predict_dist(X).variance - model.predict_dist(X, observation_noise=False).variance
    np.testing.assert_allclose(beyond, np.tile(model.noise_ * model.scaling_.y_scale**2, (len(X), 1)), rtol=1e-6)


def test_a_kernel_of_the_user(rng):
    X, Y, f = smooth_table(rng)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())
    for settings in ({}, {"num_inducing": 12, "epochs": 40}):
        model = IndGP(kernel=kernel, **settings, **QUIET).fit(X, Y)
        assert np.mean((model.predict(X) - f) ** 2) < 0.3 * f.var()
        with pytest.raises(SettingError, match=r"look at model_\.kernels\.kernel"):
            _ = model.lengthscale_


def test_an_output_without_cells_is_predicted_from_the_prior(rng):
    X, Y, _ = smooth_table(rng)
    Y[:, 2] = np.nan
    with pytest.warns(UserWarning, match="no observed cell"):
        model = IndGP(standardize="output", **QUIET).fit(X, Y)
    mean, std = model.predict(X, return_std=True)
    prior = np.sqrt((model.outputscale_[2] + model.noise_[2]) * model.scaling_.y_scale[2] ** 2)
    np.testing.assert_allclose(mean[:, 2], model.scaling_.y_center[2])
    np.testing.assert_allclose(std[:, 2], prior)


def test_a_lost_stretch_is_not_filled_with_the_centre_of_the_rest(rng):
    """Outputs that rise together and lose their end: the centre of all cells is nearer than that of their own."""
    X = np.linspace(0, 1, 60)[:, None]
    Y = 5.0 * X + 0.1 * rng.standard_normal((60, 8))
    scattered = np.where(rng.uniform(size=Y.shape) < 0.3, np.nan, Y) + 3.0 * np.arange(8)
    Y[40:, :4] = np.nan
    for values, centers in ((Y, 1), (scattered, 8)):
        scaling = Survey(manygp.data.Grid(X, values), Gaussian(), rng).own_scaling
        assert len(set(scaling.y_center)) == centers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_inducing": 0}, "num_inducing=0 is no valid size"),
        ({"num_inducing": 31}, "num_inducing=31 exceeds the 30 inputs"),
        ({"num_inducing": None, "likelihood": "poisson"}, "num_inducing=None asks for exact GPs, which need"),
        ({"kernel": "cosine"}, "kernel='cosine' is unknown"),
        ({"share_kernel": "yes"}, "share_kernel='yes' is unknown"),
        ({"likelihood": "poison"}, "likelihood='poison' is unknown"),
        ({"standardize": "completed"}, "standardize='completed' is unknown"),
        ({"dtype": "float16"}, "dtype='float16' is unknown"),
        ({"epochs": 0}, "epochs=0 is no valid size"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = smooth_table(rng)
    with pytest.raises(SettingError, match=message):
        IndGP(**(QUIET | settings)).fit(X, Y)
