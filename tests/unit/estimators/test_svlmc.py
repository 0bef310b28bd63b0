"""The SV-LMC estimator: what it finds, with which likelihoods, and settings that make no sense."""

import gpytorch
import numpy as np
import pytest

from manygp import SVLMC, IndGP, SettingError
from manygp.errors import DataError

from ..models.test_svlmc import low_rank_table

QUIET = {"device": "cpu", "progress": False}


def held_out(rng, **sizes):
    """A table, and a copy with a stretch of some outputs missing."""
    table = low_rank_table(rng, missing=0.0, **sizes)
    Y = table.Y.copy()
    Y[8:16, :3] = np.nan
    return table.X, Y, np.where(np.isnan(Y), table.Y, np.nan)


def test_it_fills_gaps_from_other_outputs(rng):
    X, Y, rest = held_out(rng)
    score = SVLMC(num_latents=3, epochs=60, **QUIET).fit(X, Y).evaluate(X, rest)
    alone = IndGP(**QUIET).fit(X, Y).evaluate(X, rest)
    assert score["mse"] < 0.03 * np.nanvar(rest)
    assert score["mse"] < 0.3 * alone["mse"]
    assert score["coverage90"] > 0.7


def test_weights_with_variances_know_what_they_do_not_know(rng):
    """With few cells for each output, points are too sure of themselves."""
    X, Y, rest = held_out(rng, num_inputs=20)
    scores = {
        posterior: SVLMC(num_latents=6, mixing_posterior=posterior, epochs=60, **QUIET).fit(X, Y).evaluate(X, rest)
        for posterior in ("diagonal", "point")
    }
    assert scores["diagonal"]["nll"] < scores["point"]["nll"]


def test_the_number_of_processes_is_chosen(rng):
    X, Y, _ = held_out(rng, num_inputs=40, num_outputs=20)
    model = SVLMC(epochs=2, **QUIET).fit(X, Y)
    assert model.mixing_.shape[0] == 20
    assert 3 <= model.mixing_.shape[1] <= 5
    assert model.bias_.shape == (20,)


def test_training_as_published_climbs(rng):
    X, Y, _ = held_out(rng)
    model = SVLMC(preset="paper", num_latents=2, num_inducing=8, epochs=40, **QUIET).fit(X, Y)
    assert model.model_.mixing.posterior == "point"
    assert model.model_.bias is None
    assert not model.bias_.any()
    assert model.history_["kl_h"] == [0.0] * 40
    assert np.mean(model.history_["bound"][-5:]) > np.mean(model.history_["bound"][:5])


@pytest.mark.parametrize("likelihood", ["poisson", "negative-binomial", "bernoulli", "student-t"])
def test_any_likelihood(rng, likelihood):
    X = np.linspace(0, 1, 60)[:, None]
    rate = np.exp(1.0 + 2.0 * np.sin(6 * X) @ rng.standard_normal((1, 6)))
    Y = rng.poisson(rate).astype(float)
    if likelihood == "bernoulli":
        Y = (Y > 2).astype(float)
    Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    model = SVLMC(num_latents=2, num_inducing=10, likelihood=likelihood, epochs=40, **QUIET).fit(X, Y)
    error = np.nanmean((model.predict(X) - Y) ** 2)
    assert error < 0.9 * np.nanmean((np.nanmean(Y, 0) - Y) ** 2)


def test_lists_of_cells_and_kernels_of_the_user(rng):
    x = rng.uniform(size=(120, 1))
    outputs = rng.integers(3, size=120)
    y = np.sin(6 * x[:, 0]) * (1.0 + outputs)
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel())
    for settings in ({}, {"kernel": kernel}):
        model = SVLMC(num_latents=2, num_inducing=15, epochs=80, **settings, **QUIET).fit_cells(x, outputs, y)
        assert np.mean((model.predict_cells(x, outputs).mean - y) ** 2) < 0.2 * y.var()


def test_an_output_without_cells_is_not_taken_for_known(rng):
    X, Y, _ = held_out(rng)
    Y[:, 5] = np.nan
    with pytest.warns(UserWarning, match="no observed cell"):
        model = SVLMC(num_latents=3, epochs=10, **QUIET).fit(X, Y)
    _, std = model.predict(X, return_std=True)
    assert std[:, 5].mean() > 3.0 * np.delete(std, 5, 1).mean()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_latents": 0}, "num_latents=0 is no valid size"),
        ({"num_inducing": None}, "num_inducing=None is no valid size"),
        ({"num_inducing": 26}, "num_inducing=26 exceeds the 25 inputs"),
        ({"kernel": "cosine"}, "kernel='cosine' is unknown"),
        ({"likelihood": "poison"}, "likelihood='poison' is unknown"),
        ({"mixing_posterior": "full"}, "mixing_posterior='full' is unknown"),
        ({"standardize": "rows"}, "standardize='rows' is unknown"),
        ({"standardize": "completed", "preset": "paper"}, "goes with preset='fast'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = held_out(rng)
    with pytest.raises(SettingError, match=message):
        SVLMC(**(QUIET | settings)).fit(X, Y)


def test_values_that_a_likelihood_cannot_have(rng):
    X, Y, _ = held_out(rng)
    with pytest.raises(DataError, match="Poisson observations are"):
        SVLMC(likelihood="poisson", **QUIET).fit(X, Y)
    with pytest.raises(SettingError, match="standardize='output' would scale the outputs"):
        SVLMC(likelihood="poisson", standardize="output", **QUIET).fit(X, np.abs(np.round(Y)))
