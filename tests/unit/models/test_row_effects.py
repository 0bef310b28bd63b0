"""Effects of single inputs on all outputs: found where they are, and part of predictions there."""

import numpy as np
import pytest
import torch

import manygp
from manygp.models.row_effects import _analyse, best_rank
from manygp.terms import Points, RowEffects

from ...laws import worlds
from ...tolerances import assert_close


def shared_noise(rng, n=150, p=8, share=0.8, missing=0.3):
    """Smooth functions, and noise that outputs share at every input; the table, and values of its gaps."""
    X = rng.uniform(0.0, 10.0, (n, 1))
    F = np.sin(X) @ rng.standard_normal((1, p))
    noise = np.sqrt(share) * rng.standard_normal((n, 1)) * np.sign(rng.standard_normal(p)) + np.sqrt(
        1.0 - share
    ) * rng.standard_normal((n, p))
    Y = F + 0.5 * noise
    gaps = rng.random(Y.shape) < missing
    return X, np.where(gaps, np.nan, Y), np.where(gaps, Y, np.nan)


def fit(X, Y, **settings):
    settings = {"latent_dim": 2, "num_inducing": 30, "epochs": 15, "progress": False} | settings
    return manygp.TLVMOGP(**({"num_neighbors": 0} | settings)).fit(X, Y)


def random_effects(rng, n=5, p=4, d=2, k=3):
    covariance = torch.stack([worlds.positive_definite(rng, k) for _ in range(n)])
    inputs, mean, loadings = worlds.normal(rng, n, d), worlds.normal(rng, n, k), worlds.normal(rng, p, k)
    return RowEffects.known(inputs, mean, covariance, loadings, torch.zeros(p))


def moments(effects, x, outputs):
    points = Points(x, outputs, outputs, torch.zeros(len(x), 0, dtype=torch.float64))
    return effects.mean(points), effects.variance(points)


def test_effects_of_known_and_of_other_inputs(rng):
    effects = random_effects(rng)
    x = torch.cat([effects.inputs[[3, 1, 3]], worlds.normal(rng, 1, 2)])
    outputs = torch.tensor([0, 2, 1, 3])
    mean, variance = moments(effects, x, outputs)
    for i, row in enumerate((3, 1, 3)):
        b = effects.loadings[outputs[i]]
        assert_close(mean[i], b @ effects.posterior_mean[row])
        assert_close(variance[i], b @ effects.posterior_covariance[row] @ b)
    assert float(mean[3]) == 0.0
    assert_close(variance[3], effects.loadings[3].square().sum())


def test_inputs_are_found_whatever_the_sign_of_a_zero(rng):
    effects = random_effects(rng)
    effects.inputs[2] = torch.tensor([0.0, 1.0])
    mean, _ = moments(effects, torch.tensor([[-0.0, 1.0]], dtype=torch.float64), torch.tensor([1]))
    assert_close(mean[0], effects.loadings[1] @ effects.posterior_mean[2])


@pytest.mark.parametrize("alone", [False, True])
def test_new_outputs_have_effects_that_nobody_knows(rng, alone):
    effects = random_effects(rng)
    new = effects.for_outputs(2) if alone else effects.joined(2)
    x = effects.inputs[:2]
    mean, variance = moments(new, x, torch.tensor([0, 1]) + (0 if alone else 4))
    assert_close(mean, torch.zeros(2, dtype=torch.float64))
    assert_close(variance, effects.loadings.square().sum(-1).mean().expand(2))
    if not alone:
        for one, other in zip(*(moments(each, x, torch.tensor([0, 3])) for each in (new, effects)), strict=True):
            assert_close(one, other)


def test_effects_of_which_nothing_is_known_may_be_left_out(rng):
    effects = random_effects(rng)
    x, outputs = torch.cat([effects.inputs[:1], worlds.normal(rng, 1, 2)]), torch.tensor([1, 1])
    (mean, variance), (same, quiet) = (moments(each, x, outputs) for each in (effects, effects.without_noise()))
    assert_close(mean, same)
    assert_close(quiet[0], variance[0])
    assert float(quiet[1]) == 0.0 < float(variance[1])
    new = effects.joined(1)
    assert float(moments(new, x[:1], torch.tensor([4]))[1]) > 0.0
    assert float(moments(new.without_noise(), x[:1], torch.tensor([4]))[1]) == 0.0


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ({1: 0.5, 2: 0.7, 3: 0.6, 4: 9.0}, 2),
        ({1: 0.5, 2: 0.7}, 2),
        ({1: 0.05, 2: 0.01}, None),
        ({1: -1.0, 2: 0.5, 3: 0.5}, 2),
    ],
    ids=str,
)
def test_ranks_are_tried_while_the_gain_grows(gains, expected):
    chance = torch.tensor([-0.1, 0.1], dtype=torch.float64).repeat(50)
    assert best_rank(list(gains), lambda rank: gains[rank] + chance, 0.1) == expected
    assert best_rank(list(gains), lambda rank: gains[rank] + 1e3 * chance, 0.1) is None


def test_noise_that_factors_leave_is_found(rng):
    n, p = 2000, 6
    B = worlds.normal(rng, p, 2)
    left = worlds.normal(rng, n, 2) @ B.T + np.sqrt(0.1) * worlds.normal(rng, n, p)
    left = torch.where(torch.as_tensor(rng.random((n, p)) < 0.3), torch.nan, left)
    factors, noise = _analyse(left, 2, np.random.default_rng(0))
    assert noise == pytest.approx(0.1, rel=0.15)
    np.testing.assert_allclose(factors.loadings @ factors.loadings.T, B @ B.T, rtol=0.1, atol=0.1)


def test_what_outputs_share_at_an_input_tells_about_those_that_are_missing(rng, tmp_path):
    X, Y, held_out = shared_noise(rng)
    model, plain = fit(X, Y), fit(X, Y, corrections=("noise",))
    assert model.model_.terms.of(RowEffects)
    assert not plain.model_.terms.of(RowEffects)
    ours, theirs = model.evaluate(X, held_out), plain.evaluate(X, held_out)
    # The noise has variance 0.25, of which a fifth is an output's own.
    assert ours["mse"] < 0.5 * theirs["mse"]
    assert ours["nll"] < theirs["nll"] - 0.3
    assert 0.8 < ours["coverage90"] < 0.98
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(manygp.load(tmp_path / "model").predict(X), model.predict(X))
    # Inputs are the same after a trip through single precision or a file.
    for rounded in (X.astype(np.float32), np.round(X, 6)):
        np.testing.assert_allclose(model.predict(rounded), model.predict(X), atol=1e-3)
    assert np.abs(model.predict(X + 1e-3) - model.predict(X)).mean() > 0.1


def test_what_is_rough_is_left_to_effects(rng):
    """A smooth function and weather that all outputs share: a few inducing points, and effects for the weather."""
    X, Y, held_out = shared_noise(rng, n=200, share=0.9)
    model = manygp.TLVMOGP(epochs=15, num_neighbors=0, progress=False).fit(X, Y)
    rough = manygp.TLVMOGP(epochs=15, num_neighbors=0, progress=False, corrections=("noise",)).fit(X, Y)
    assert model.model_.terms.of(RowEffects)
    assert model.model_.units[0] > 10.0 * rough.model_.units[0]
    assert len(model.inducing_points_) < 0.5 * len(rough.inducing_points_)
    assert model.evaluate(X, held_out)["nll"] < rough.evaluate(X, held_out)["nll"] - 0.1


def test_functions_of_each_outputs_own_keep_their_lengthscales(rng):
    """Here a factorisation explains nothing, and so there is nothing for effects to explain."""
    X = np.sort(rng.uniform(0.0, 10.0, (60, 1)), 0)
    Y = np.sin(X * rng.uniform(1.0, 3.0, 6) + rng.uniform(0.0, 6.0, 6)) + 0.3 * rng.standard_normal((60, 6))
    ways = ("auto", ("noise",))
    units = [
        manygp.TLVMOGP(epochs=1, num_neighbors=0, progress=False, corrections=way).fit(X, Y).model_.units[0]
        for way in ways
    ]
    assert float(units[0]) == pytest.approx(float(units[1]), rel=0.5)


def test_elsewhere_effects_are_noise(rng):
    """Between the inputs of the table, means are those of f alone, and effects are part of the spread."""
    X, Y, _ = shared_noise(rng, n=300, missing=0.0)
    model = fit(X[:200], Y[:200])
    assert model.model_.terms.of(RowEffects)
    scores, mean = model.evaluate(X[200:], Y[200:]), model.predict(X[200:])
    assert 0.8 < scores["coverage90"] < 0.97
    functions = model.predict_dist(X[200:], observation_noise=False).variance
    known = model.predict_dist(X[:200], observation_noise=False).variance
    del model.model_.terms[-1]
    np.testing.assert_array_equal(model.predict_dist(X[200:], observation_noise=False).variance, functions)
    assert (model.predict_dist(X[:200], observation_noise=False).variance < known).all()
    np.testing.assert_array_equal(model.predict(X[200:]), mean)
    assert model.evaluate(X[200:], Y[200:])["coverage90"] < scores["coverage90"] - 0.1


def test_noise_of_each_outputs_own_is_left_alone(rng):
    X, Y, _ = shared_noise(rng, share=0.0)
    assert not fit(X, Y).model_.terms.of(RowEffects)


def test_few_outputs_few_inputs_and_repeated_inputs_have_none(rng):
    # The last has too few cells for a loading of every output.
    for n, p, missing in ((150, 2, 0.3), (15, 8, 0.0), (25, 40, 0.5)):
        X, Y, _ = shared_noise(rng, n=n, p=p, missing=missing)
        assert not fit(X, Y, num_inducing=10).model_.terms.of(RowEffects)
    X, Y, _ = shared_noise(rng)
    X[75:] = X[:75]
    assert not fit(X, Y).model_.terms.of(RowEffects)


def test_adapted_outputs_are_as_unsure_as_others_without_the_effects(rng):
    X, Y, _ = shared_noise(rng, p=9)
    model = fit(X, Y[:, :8], standardize="global")
    assert model.model_.terms.of(RowEffects)
    adapted = model.adapt(X[:40], Y[:40, 8:])
    old = model.predict_dist(X + 1e-3).variance.mean()
    new = adapted.predict_dist(X + 1e-3, outputs=[8]).variance.mean()
    assert 0.5 < new / old < 2.0
    assert np.isfinite(model.predict_new_outputs(X, latent_mean=np.zeros((2, 2))).variance).all()


def test_a_table_without_any_variation_has_no_effects():
    X = np.arange(40.0)[:, None]
    model = fit(X, np.full((40, 8), 3.0), epochs=2)
    assert not model.model_.terms.of(RowEffects)
    assert_close(model.predict(X), np.full((40, 8), 3.0))
