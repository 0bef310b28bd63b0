"""Linear trends beside the GP: found where they are of use, and part of all that a model does."""

import numpy as np
import pytest
import torch

import manygp
from manygp.data import Cells, Grid, Scaling
from manygp.data.factorisation import factorise
from manygp.initialise.trend import find_slopes, start_trend, without_slopes
from manygp.terms import Points, Trend

from ...laws import worlds
from ...tolerances import assert_close


def sloping(rng, d=5, n=200, p=6, rank=2, bend=0.3, missing=0.3):
    """Outputs that are mixtures of a few functions, each nearly linear in the inputs."""
    X = rng.normal(3.0, 2.0, (n, d))
    F = X @ rng.standard_normal((d, rank)) + bend * np.sin(X[:, :rank])
    Y = 10.0 + F @ rng.standard_normal((rank, p)) + 0.1 * rng.standard_normal((n, p))
    return Grid(X, np.where(rng.random(Y.shape) < missing, np.nan, Y))


def slopes_alone(table):
    """Slopes by a regression for every output."""
    rows = []
    for y in table.Y.T:
        seen = ~np.isnan(y)
        rows.append(np.linalg.lstsq(np.c_[table.X, np.ones(len(y))][seen], y[seen], rcond=None)[0][:-1])
    return np.array(rows)


def test_the_slopes_are_those_of_every_output(rng):
    table = sloping(rng)
    np.testing.assert_allclose(find_slopes(table), slopes_alone(table), rtol=5e-3, atol=5e-3)


def test_what_is_left_adds_up(rng):
    table = sloping(rng)
    slopes = find_slopes(table)
    left = without_slopes(table, slopes, rng)
    np.testing.assert_allclose(left.Y + (table.X - table.X.mean(0)) @ slopes.T, table.Y)
    assert (np.nanvar(left.Y, axis=0) < 0.1 * np.nanvar(table.Y, axis=0)).all()


def test_a_large_table_is_sampled(rng, monkeypatch):
    table = sloping(rng)
    monkeypatch.setattr("manygp.initialise.trend._MOST_CELLS", 300)
    assert without_slopes(table, find_slopes(table), rng).num_inputs == 50


def test_there_are_none_where_they_would_not_help(rng):
    assert find_slopes(sloping(rng, d=3)) is None
    assert find_slopes(sloping(rng, n=60)) is None
    flat = sloping(rng)
    flat.Y[:] = np.where(np.isnan(flat.Y), np.nan, rng.standard_normal(flat.Y.shape))
    assert find_slopes(flat) is None


def test_lists_of_cells_have_trends_too(rng):
    X = rng.standard_normal((400, 5))
    cells = Cells(X, np.zeros(400, dtype=int), X[:, 0])
    slopes = find_slopes(cells)
    np.testing.assert_allclose(slopes, [[1.0, 0.0, 0.0, 0.0, 0.0]], atol=1e-3)
    assert np.abs(without_slopes(cells, slopes, rng).y - cells.X[:, 0].mean()).max() < 0.01


def test_inputs_that_say_the_same_do_no_harm(rng):
    table = sloping(rng, n=400)
    twice = Grid(np.c_[table.X, table.X[:, :1], np.ones(len(table.X))], table.Y)
    slopes = find_slopes(twice)
    assert np.isfinite(slopes).all()
    left = without_slopes(twice, slopes, rng)
    assert (np.nanvar(left.Y, axis=0) < 0.1 * np.nanvar(table.Y, axis=0)).all()


def test_an_output_with_few_cells_does_no_harm(rng):
    table = sloping(rng, n=400)
    table.Y[3:, 0] = np.nan
    table.Y[:, 1] = np.nan
    slopes = find_slopes(table)
    assert np.isfinite(slopes).all()
    assert np.abs(slopes[1]).max() == 0.0


@pytest.mark.parametrize("rank", [2, 5])
def test_the_trend_starts_at_the_slopes(rng, rank):
    """As far as latent vectors tell them, and the rest as deviations but for what is chance."""
    table = sloping(rng, n=2000, rank=2)
    # One output does as it likes.
    table.Y[:, 0] += table.X @ rng.standard_normal(5)
    slopes = find_slopes(table)
    left = without_slopes(table, slopes, rng)
    scaling = Scaling.fit(left)
    factors = factorise(left, scaling, rank, rng=rng)
    model = worlds.random_model(rng, features=5, latent_dim=rank, num_outputs=6, trend=True)
    start_trend(model, left, scaling, factors, slopes)
    x, outputs = worlds.normal(rng, 50, 5), torch.as_tensor(rng.integers(6, size=50))
    h = torch.as_tensor(factors.loadings)[outputs]
    expected = (x.numpy() * (slopes * scaling.x_scale / scaling.y_scale[:, None])[outputs]).sum(1)
    found = model.terms.mean(Points(x, outputs, outputs, h)).detach()
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    is_exact = rank == 5
    assert (model.terms[0].own.abs().max() < 1e-6) == is_exact


def test_gradients_of_the_bound(rng):
    """For slopes and latents, against differences."""
    model = worlds.random_model(rng, trend=True, posterior="cholesky", latent_posterior="point")
    batch = worlds.whole_batch(worlds.random_grid(rng))
    for parameter in (model.terms[0].slopes, model.latents.mean):
        (gradient,) = torch.autograd.grad(model.elbo(batch, worlds.generator()).bound, parameter)
        for place in [(0, 0), (1, 1)]:
            values = []
            for step in (1e-5, -2e-5, 1e-5):
                with torch.no_grad():
                    parameter[place] += step
                    values.append(float(model.elbo(batch, worlds.generator()).bound))
            assert (values[0] - values[1]) / 2e-5 == pytest.approx(float(gradient[place]), rel=1e-5)


def test_the_slope_of_the_mean_in_h(rng):
    (trend,) = worlds.random_model(rng, trend=True).terms
    x, h, outputs = worlds.normal(rng, 5, 2), worlds.normal(rng, 5, 2), torch.tensor([0, 1, 2, 3, 0])
    W, own = worlds.normal(rng, 2, 3), worlds.normal(rng, 4, 2)
    trend.set(W, own)
    points = Points(x, outputs, outputs, h)
    assert_close(trend.mean(points), (x * (h @ W[:, :2].T + W[:, 2] + own[outputs])).sum(-1))
    assert_close(trend.slope(points), x @ W[:, :2])


def test_a_fit_beyond_the_data_follows_the_trend(rng, tmp_path):
    """Far outside, a GP alone falls back to the mean; saved models know their slopes."""
    table = sloping(rng, n=300)
    far = table.X + 8.0
    settings = {"latent_dim": 2, "num_inducing": 40, "epochs": 20, "progress": False}
    model = manygp.TLVMOGP(**settings).fit(table.X, table.Y)
    plain = manygp.TLVMOGP(trend=False, **settings).fit(table.X, table.Y)
    assert model.model_.terms.of(Trend)
    assert not plain.model_.terms.of(Trend)
    assert not manygp.TLVMOGP(standardize=False, **settings).fit(table.X, table.Y).model_.terms.of(Trend)
    change = (far - table.X) @ slopes_alone(table).T
    np.testing.assert_allclose(model.predict(far) - model.predict(table.X), change, atol=0.2 * np.abs(change).max())
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(manygp.load(tmp_path / "model").predict(far), model.predict(far))


def test_new_outputs_have_trends_of_their_own(rng):
    """A few observations tell a latent vector, and that the slopes."""
    table = sloping(rng, n=300, p=9, missing=0.1)
    fit, new = Grid(table.X, table.Y[:, :8]), table.Y[:, 8]
    model = manygp.TLVMOGP(latent_dim=2, num_inducing=40, epochs=20, progress=False).fit(fit.X, fit.Y)
    assert model.model_.terms.of(Trend)
    seen = np.flatnonzero(~np.isnan(new))[:20]
    adapted = model.adapt(table.X[seen], new[seen, None])
    rest = np.setdiff1d(np.flatnonzero(~np.isnan(new)), seen)
    error = adapted.predict(table.X[rest])[:, 8] - new[rest]
    assert np.mean(error**2) < 0.1 * np.var(new[rest])


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_a_trend_may_be_asked_for(rng, preset):
    """Then it is learned from zero where nothing is known of it."""
    X, Y = rng.uniform(size=(30, 1)), rng.standard_normal((30, 3))
    model = manygp.TLVMOGP(trend=True, preset=preset, epochs=3, num_inducing=10, progress=False).fit(X, Y)
    (trend,) = model.model_.terms.of(Trend)
    assert trend.slopes.abs().sum() > 0.0


def test_a_single_output_has_slopes_too(rng):
    X = rng.standard_normal((400, 4))
    y = X @ np.arange(4.0) + 0.1 * rng.standard_normal(400)
    model = manygp.TLVMOGP(epochs=5, num_inducing=20, progress=False).fit(X, y)
    assert model.model_.terms.of(Trend)
    assert np.mean((model.predict(X) - y) ** 2) < 0.05
