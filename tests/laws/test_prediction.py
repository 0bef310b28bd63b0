"""A prediction is one distribution: quantiles, samples, densities and scores agree, in whatever chunks."""

import numpy as np
import pytest
import torch

from manygp.estimators import estimator as estimator_module

from ..tolerances import PREDICTION, assert_close, assert_monte_carlo, assert_share
from .conftest import NAMES, fitted, observations

X_NEW = np.linspace(-0.2, 1.2, 7)[:, None]
DRAWS = 6_000


@pytest.fixture(params=[True, False], ids=["observations", "function"])
def dist(request, model):
    return model.predict_dist(X_NEW, observation_noise=request.param)


def typical(dist, rng):
    """Values of about the size of what is predicted."""
    return dist.mean + dist.std * rng.standard_normal(dist.shape)


def test_quantiles_invert_the_distribution_function(dist):
    levels = [0.01, 0.25, 0.5, 0.9, 0.999]
    for level, quantile in zip(levels, dist.quantile(levels), strict=True):
        np.testing.assert_allclose(dist.cdf(quantile), level, atol=1e-9)
        assert np.array_equal(dist.quantile(level), quantile)


def test_intervals_are_quantiles_and_hold_their_share_of_samples(dist):
    draws = dist.sample(DRAWS, independent=True)
    for level in (0.5, 0.9):
        lower, upper = dist.interval(level)
        assert np.array_equal(lower, dist.quantile(0.5 - level / 2))
        assert np.array_equal(upper, dist.quantile(0.5 + level / 2))
        assert_share((draws >= lower) & (draws <= upper), np.full(dist.shape, level))


def test_samples_match_moments_and_distribution_function(dist, rng):
    draws, y = dist.sample(DRAWS, independent=True), typical(dist, rng)
    assert draws.shape == (DRAWS, *dist.shape)
    assert_monte_carlo(draws, dist.mean)
    assert_monte_carlo((draws - dist.mean) ** 2, dist.variance)
    assert_share(draws <= y, dist.cdf(y))
    assert_close(dist.std**2, dist.variance)


def test_crps_equals_monte_carlo(dist, rng):
    y = typical(dist, rng)
    first, second = (dist.sample(DRAWS, random_state=seed, independent=True) for seed in (1, 2))
    assert_monte_carlo(np.abs(first - y) - 0.5 * np.abs(first - second), dist.crps(y))


def test_densities_are_in_the_units_of_the_user(dist):
    """They integrate to one over y as the user measures it, outputs shifted and scaled as they are."""
    grid = dist.mean + dist.std * np.linspace(-12, 12, 601)[:, None, None]
    density = np.exp(np.stack([dist.log_prob(values) for values in grid]))
    np.testing.assert_allclose(np.trapezoid(density, grid, axis=0), 1.0, rtol=1e-4)
    slope = (dist.cdf(dist.mean + 1e-4 * dist.std) - dist.cdf(dist.mean - 1e-4 * dist.std)) / (2e-4 * dist.std)
    np.testing.assert_allclose(np.exp(dist.log_prob(dist.mean)), slope, rtol=1e-5)


def test_shifted_and_scaled_outputs_shift_and_scale_predictions():
    """With a standardisation of each output, a change of units changes nothing else."""
    X, Y = observations()
    center, scale = np.array([5.0, -2.0, 0.0, 1.0, 100.0]), np.array([0.01, 2.0, 1.0, 30.0, 0.5])
    model = fitted("tlvmogp")
    other = type(model)(**model.get_params()).fit(X, Y * scale + center, output_names=NAMES)
    dist, moved = model.predict_dist(X_NEW), other.predict_dist(X_NEW)
    np.testing.assert_allclose(moved.mean, dist.mean * scale + center, rtol=1e-6)
    np.testing.assert_allclose(moved.std, dist.std * scale, rtol=1e-6)
    y = dist.mean + dist.std
    np.testing.assert_allclose(moved.log_prob(y * scale + center), dist.log_prob(y) - np.log(scale), rtol=1e-5)
    np.testing.assert_allclose(moved.crps(y * scale + center), dist.crps(y) * scale, rtol=1e-5)


def test_noise_is_what_observations_have_and_the_function_has_not(model):
    observed, function = (model.predict_dist(X_NEW, observation_noise=noise) for noise in (True, False))
    assert np.array_equal(observed.mean, function.mean)
    _, noise = model.model_.likelihood.conditional_moments(torch.zeros(5, dtype=torch.float64), torch.arange(5))
    noise = noise.detach().numpy() * model.scaling_.y_scale**2
    np.testing.assert_allclose(observed.variance - function.variance, np.broadcast_to(noise, (7, 5)), rtol=1e-9)
    np.testing.assert_allclose(model.noise_std_**2, np.broadcast_to(noise, 5), rtol=1e-9)


def test_chunks_do_not_matter(model, rng, monkeypatch):
    whole = model.predict_dist(X_NEW)
    y = typical(whole, rng)
    y[2, 1] = np.nan
    width = model.num_samples * model.model_.predictor(model.num_samples, 0).width
    monkeypatch.setattr(estimator_module, "_CHUNK_NUMBERS", 3 * width)
    pieces = model.predict_dist(X_NEW)
    for name in ("mean", "variance", "std"):
        assert_close(getattr(pieces, name), getattr(whole, name), PREDICTION)
    for name in ("log_prob", "cdf", "crps"):
        assert_close(getattr(pieces, name)(y), getattr(whole, name)(y), PREDICTION)
    assert_close(pieces.quantile(0.3), whole.quantile(0.3), PREDICTION)
    assert pieces.score(y) == pytest.approx(whole.score(y))


def test_an_output_does_not_depend_on_which_others_are_asked_for(model, rng):
    every = model.predict_dist(X_NEW)
    y = typical(every, rng)
    for outputs in ([3], ["e", "a"], [("c", 1)], ["b", "b"]):
        some, columns = model.predict_dist(X_NEW, outputs), [NAMES.index(name) for name in outputs]
        assert some.shape == (7, len(columns))
        assert some.output_names == tuple(outputs)
        assert_close(some.mean, every.mean[:, columns], PREDICTION)
        assert_close(some.std, every.std[:, columns], PREDICTION)
        assert_close(some.log_prob(y[:, columns]), every.log_prob(y)[:, columns], PREDICTION)
        mean, std = model.predict(X_NEW, return_std=True, outputs=outputs)
        assert_close(mean, every.mean[:, columns], PREDICTION)
        assert_close(std, every.std[:, columns], PREDICTION)


def test_an_input_does_not_depend_on_which_others_are_asked_for(model):
    every = model.predict(X_NEW)
    for i in range(len(X_NEW)):
        assert_close(model.predict(X_NEW[i : i + 1])[0], every[i], PREDICTION)


def test_cells_are_the_same_cells(model, rng):
    every = model.predict_dist(X_NEW)
    row, column = rng.integers(7, size=12), rng.integers(5, size=12)
    cells = model.predict_cells(X_NEW[row], [NAMES[c] for c in column])
    assert cells.shape == (12,)
    y = typical(every, rng)
    assert_close(cells.mean, every.mean[row, column], PREDICTION)
    assert_close(cells.interval(0.8), np.stack(every.interval(0.8))[:, row, column], PREDICTION)
    assert_close(cells.log_prob(y[row, column]), every.log_prob(y)[row, column], PREDICTION)
    assert_close(cells.crps(y[row, column]), every.crps(y)[row, column], PREDICTION)


def test_positions_and_names_are_the_same_outputs(model):
    assert np.array_equal(model.predict(X_NEW, outputs=[0, 2]), model.predict(X_NEW, outputs=["a", ("c", 1)]))
    # 3 is a name here and 4 a position; a single one keeps its column.
    assert_close(model.predict(X_NEW, outputs=3), model.predict(X_NEW)[:, [3]], PREDICTION)
    assert np.array_equal(model.predict(X_NEW, outputs=4), model.predict(X_NEW, outputs="e"))
    assert model.predict(X_NEW, outputs=4).shape == (7, 1)


def test_missing_values_have_no_score(model):
    dist, y = model.predict_dist(X_NEW), np.full((7, 5), np.nan)
    y[1, 2], y[3, 4] = -1.0, 5.0
    for values in (dist.log_prob(y), dist.cdf(y), dist.crps(y)):
        assert np.array_equal(np.isnan(values), np.isnan(y))
    seen = ~np.isnan(y)
    score = dist.score(y)
    assert score["num_cells"] == 2
    assert score["nll"] == pytest.approx(-dist.log_prob(y)[seen].mean())
    assert score["crps"] == pytest.approx(dist.crps(y)[seen].mean())
    assert score["mse"] == pytest.approx(((dist.mean - y)[seen] ** 2).mean())
    for level in (50, 90):
        lower, upper = dist.interval(level / 100)
        inside = ((y >= lower) & (y <= upper))[seen].mean()
        assert score[f"coverage{level}"] == pytest.approx(inside)


def test_evaluate_is_the_score_of_the_prediction(model):
    X, Y = observations()
    assert model.evaluate(X, Y) == model.predict_dist(X).score(Y)
    assert model.evaluate(X, Y[:, [4, 0]], outputs=["e", "a"]) == model.predict_dist(X, ["e", "a"]).score(Y[:, [4, 0]])


def test_samples_repeat_with_their_seed(model):
    dist = model.predict_dist(X_NEW)
    assert np.array_equal(dist.sample(3, random_state=4), dist.sample(3, random_state=4))
    assert not np.array_equal(dist.sample(3, random_state=4), dist.sample(3, random_state=5))
