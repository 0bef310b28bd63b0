"""The SGPRN estimator: what it finds, with which likelihoods, and settings that make no sense."""

import numpy as np
import pytest

from manygp import SGPRN, IndGP, SettingError
from manygp.errors import DataError

from .test_svlmc import held_out

QUIET = {"device": "cpu", "progress": False}


def test_it_fills_gaps_from_other_outputs(rng):
    X, Y, rest = held_out(rng)
    model = SGPRN(num_latents=3, epochs=25, **QUIET).fit(X, Y)
    score = model.evaluate(X, rest)
    alone = IndGP(**QUIET).fit(X, Y).evaluate(X, rest)
    assert score["mse"] < 0.05 * np.nanvar(rest)
    assert score["mse"] < 0.3 * alone["mse"]
    assert score["coverage90"] > 0.7
    assert model.process_mean_.shape == (len(X), 3)


def test_weights_that_change_over_the_inputs(rng):
    """Output 0 follows one process first and another later: no fixed mixture does that."""
    x = np.linspace(0.0, 1.0, 40)
    share = 1.0 / (1.0 + np.exp(-30.0 * (x - 0.5)))
    a, b = np.sin(20.0 * x), np.cos(27.0 * x)
    Y = np.column_stack([(1 - share) * a + share * b, a, b, a + b, a - b]) + 0.05 * rng.standard_normal((40, 5))
    model = SGPRN(num_latents=2, epochs=40, standardize="global", **QUIET).fit(x[:, None], Y)
    best_fixed = np.linalg.lstsq(np.column_stack([a, b]), Y[:, 0])[1][0] / 40
    assert np.mean((model.predict(x[:, None])[:, 0] - Y[:, 0]) ** 2) < 0.25 * best_fixed


@pytest.mark.parametrize(("shape", "found"), [("auto", (12,)), ((3, 4), (3, 4)), ([2, 2, 3], (2, 2, 3))])
def test_outputs_form_a_tensor(rng, shape, found):
    X, Y, _ = held_out(rng, num_outputs=12)
    model = SGPRN(num_latents=2, output_shape=shape, epochs=2, **QUIET).fit(X, Y)
    assert model.output_shape_ == found
    assert model.predict(X).shape == (len(X), 12)


def test_training_as_published_climbs(rng):
    X, Y, _ = held_out(rng)
    model = SGPRN(preset="paper", epochs=30, max_grad_norm=10.0, **QUIET).fit(X, Y)
    assert model.model_.bias is None
    assert model.model_.latents.shape[1] == 3
    assert np.mean(model.history_["bound"][-5:]) > np.mean(model.history_["bound"][:5])


@pytest.mark.parametrize("likelihood", ["poisson", "bernoulli", "student-t"])
def test_other_likelihoods(rng, likelihood):
    X, Y, _ = held_out(rng, num_inputs=40, num_outputs=15)
    rate = np.exp(0.5 * Y)
    values = {"poisson": rng.poisson(np.nan_to_num(rate, nan=1.0)), "bernoulli": Y > 0, "student-t": Y}[likelihood]
    values = np.where(np.isnan(Y), np.nan, values.astype(float))
    model = SGPRN(num_latents=3, likelihood=likelihood, epochs=8, **QUIET).fit(X, values)
    score = model.evaluate(X, values)
    assert score["mse"] < 0.9 * np.nanvar(values)
    assert np.isfinite(score["nll"])


def test_units_that_cannot_be_squared(rng):
    X, Y, _ = held_out(rng, num_inputs=20, num_outputs=4)
    with pytest.warns(UserWarning, match="varies by"):
        model = SGPRN(num_latents=2, epochs=1, **QUIET).fit(X, 1e-300 * Y)
    assert np.isfinite(model.predict(X)).all()


def test_counts_that_are_too_large_to_follow(rng):
    X, Y, _ = held_out(rng, num_inputs=20, num_outputs=4)
    values = rng.poisson(1e9 * np.exp(0.1 * np.nan_to_num(Y)))
    with pytest.warns(UserWarning, match="Counts around 1e[+]09 .* use likelihood='gaussian'"):
        SGPRN(num_latents=2, epochs=1, likelihood="poisson", **QUIET).fit(X, values)


def test_cells_are_put_in_a_grid(rng):
    x, outputs = rng.uniform(size=(30, 1)), rng.integers(4, size=30)
    y = np.sin(6.0 * x[:, 0]) * (1.0 + outputs)
    model = SGPRN(num_latents=2, epochs=3, **QUIET).fit_cells(x, outputs, y)
    assert len(model.model_.inputs) == 30
    assert model.predict_cells(x, outputs).mean.shape == (30,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_latents": 0}, "num_latents=0 is no valid size"),
        ({"output_shape": (5, 4)}, r"output_shape=\(5, 4\) does not fit"),
        ({"output_shape": "square"}, "output_shape='square' is unknown"),
        ({"output_shape": 10}, "output_shape=10 does not fit"),
        ({"num_latents": 2_000_000}, "needs about .* of memory"),
        ({"kernel": "cosine"}, "kernel='cosine' is unknown"),
        ({"weight_kernel": "cosine"}, "weight_kernel='cosine' is unknown"),
        ({"likelihood": "poison"}, "likelihood='poison' is unknown"),
        ({"standardize": "rows"}, "standardize='rows' is unknown"),
        ({"standardize": "completed", "preset": "paper"}, "goes with preset='fast'"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = held_out(rng)
    with pytest.raises(SettingError, match=message.replace("+", r"\+")):
        SGPRN(**(QUIET | settings)).fit(X, Y)


def test_values_that_a_likelihood_cannot_have(rng):
    X, Y, _ = held_out(rng)
    with pytest.raises(DataError, match="Poisson observations are"):
        SGPRN(likelihood="poisson", **QUIET).fit(X, Y)
    with pytest.raises(SettingError, match="standardize='output' would scale the outputs"):
        SGPRN(likelihood="poisson", standardize="output", **QUIET).fit(X, np.abs(np.round(Y)))
