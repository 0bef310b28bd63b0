"""Effects of single inputs under likelihoods that are not Gaussian: found where they are, and part of predictions."""

import numpy as np
import pytest
import torch
from scipy import sparse

import manygp
from manygp.data import Grid, Scaling
from manygp.models.factor_analysis import Factors
from manygp.models.site_effects import _Cells, _left_out
from manygp.terms import RowEffects

from ...laws import worlds
from ...tolerances import assert_close


def shared_counts(rng, n=120, p=12, spread=0.7, missing=0.3, level=1.5):
    """Counts whose log means share a draw at every input; the table, and values of its gaps."""
    X = rng.uniform(0.0, 10.0, (n, 1))
    log_mean = level + 0.5 * np.sin(X) @ rng.standard_normal((1, p))
    log_mean = log_mean + spread * rng.standard_normal((n, 1)) * rng.uniform(0.5, 1.0, p)
    Y = rng.poisson(np.exp(log_mean)).astype(float)
    gaps = rng.random(Y.shape) < missing
    return X, np.where(gaps, np.nan, Y), np.where(gaps, Y, np.nan)


def fit(X, Y, **settings):
    settings = {"likelihood": "negative-binomial", "latent_dim": 2, "num_inducing": 20, "epochs": 15} | settings
    return manygp.TLVMOGP(progress=False, **settings).fit(X, Y)


def test_a_cell_left_out_is_as_if_it_had_never_been_observed(rng):
    X, Y, _ = shared_counts(rng, n=30, p=6)
    model = fit(X, Y, epochs=3, corrections=("noise",))
    table, scaling = Grid(X, Y), Scaling.fit(Grid(X, Y), outputs="none")
    cells = _Cells.of(model.model_, table, scaling, np.arange(30))
    pull, weight = cells.linearised(None)
    coefficients = 0.3 * worlds.normal(rng, 6, 3)
    factors = Factors.at(pull, weight, cells.row, coefficients, torch.zeros(6, 3, 3).double())
    mean, variance = _left_out(cells, factors, pull, weight, slice(0, 30))
    for row, column in np.argwhere(~np.isnan(Y))[[0, 7, 20]]:
        without = pull.clone(), weight.clone()
        for part in without:
            part[row, column] = 0.0
        others = Factors.at(*without, cells.row, coefficients, factors.covariance_of)
        g, open_ = others.effects(cells.row[row][None])
        assert_close(mean[row, column], cells.mean[row, column] + g[0, column])
        assert_close(variance[row, column], cells.variance[row, column] + open_[0, column])


@pytest.mark.parametrize("likelihood", ["negative-binomial", "poisson", "zinb"])
def test_counts_at_an_input_tell_about_those_that_are_missing(rng, likelihood, tmp_path):
    X, Y, held_out = shared_counts(rng)
    model, plain = fit(X, Y, likelihood=likelihood), fit(X, Y, likelihood=likelihood, corrections=("noise",))
    assert model.model_.terms.of(RowEffects)
    assert not plain.model_.terms.of(RowEffects)
    ours, theirs = model.evaluate(X, held_out), plain.evaluate(X, held_out)
    # Poisson noise is in both.
    noise = np.nanmean(held_out)
    assert ours["mse"] - noise < 0.5 * (theirs["mse"] - noise)
    assert ours["nll"] < theirs["nll"] - 0.1
    assert 0.8 < ours["coverage90"] < 0.98
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(manygp.load(tmp_path / "model").predict(X), model.predict(X))


def test_sparse_counts_and_exposures_have_effects_too(rng):
    X, Y, _ = shared_counts(rng, missing=0.0, level=0.0)
    exposure = rng.uniform(0.5, 2.0, len(X))
    dense = manygp.TLVMOGP(likelihood="poisson", latent_dim=2, num_inducing=20, epochs=8, progress=False)
    ours = dense.fit(X, sparse.csr_array(Y), exposure=exposure)
    assert ours.model_.terms.of(RowEffects)
    # Twice the exposure, twice the counts.
    ratio = ours.predict(X, exposure=2.0 * exposure) / ours.predict(X, exposure=exposure)
    np.testing.assert_allclose(ratio, 2.0, rtol=1e-6)


def test_outliers_are_no_obstacle(rng):
    """A few counts of a million among counts of five."""
    X, Y, _ = shared_counts(rng)
    Y[rng.integers(0, len(Y), 5), rng.integers(0, Y.shape[1], 5)] = 1e6
    mean = fit(X, Y).predict(X)
    assert np.isfinite(mean).all()
    assert np.median(mean) < 50.0


def test_new_inputs_keep_their_mean(rng):
    """Effects are part of the mean of counts that the model was trained on, and are not added to it elsewhere."""
    X, Y, _ = shared_counts(rng, n=300, missing=0.1)
    model, plain = fit(X, Y), fit(X, Y, corrections=("noise",))
    assert model.model_.terms.of(RowEffects)
    assert 0.8 < model.predict(X + 1e-4).mean() / plain.predict(X + 1e-4).mean() < 1.25


def test_counts_that_share_nothing_have_none(rng):
    X, Y, _ = shared_counts(rng, spread=0.0)
    assert not fit(X, Y).model_.terms.of(RowEffects)


def test_a_likelihood_that_is_fixed_stays_so(rng):
    X, Y, _ = shared_counts(rng)
    assert not fit(X, Y, freeze_likelihood=np.inf).model_.terms.of(RowEffects)


def test_heavy_tails_have_effects(rng):
    X = rng.uniform(0.0, 10.0, (400, 1))
    F = np.sin(X) @ rng.standard_normal((1, 8)) + rng.standard_normal((400, 1)) * np.sign(rng.standard_normal(8))
    Y = F + 0.3 * rng.standard_t(3, F.shape)
    gaps = rng.random(Y.shape) < 0.3
    train, held_out = np.where(gaps, np.nan, Y), np.where(gaps, Y, np.nan)
    model = fit(X, train, likelihood="student-t")
    plain = fit(X, train, likelihood="student-t", corrections=("noise",))
    assert model.model_.terms.of(RowEffects)
    assert model.evaluate(X, held_out)["nll"] < plain.evaluate(X, held_out)["nll"] - 0.2
