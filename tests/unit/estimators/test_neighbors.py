import numpy as np
import pytest

import manygp
from manygp.baselines import Interpolation
from manygp.models import adapt


def series(rng, n=300, p=5):
    """Rough series that share two walks, a fifth of the cells held out."""
    X = np.arange(float(n))[:, None]
    walks = np.cumsum(rng.standard_normal((n, 2)), axis=0)
    Y = walks @ rng.standard_normal((2, p)) + 0.5 * rng.standard_normal((n, p))
    held = rng.uniform(size=Y.shape) < 0.2
    return X, np.where(held, np.nan, Y), np.where(held, Y, np.nan)


@pytest.fixture(scope="module")
def fitted():
    X, Y, held = series(np.random.default_rng(0))
    model = manygp.TLVMOGP(num_neighbors=48, epochs=50, progress=False).fit(X, Y)
    return model, X, Y, held


def test_detail_below_inducing_points_is_not_lost(fitted):
    model, X, Y, held = fitted
    scores = model.evaluate(X, held)
    plain = manygp.TLVMOGP(num_inducing=100, num_neighbors=0, epochs=50, progress=False).fit(X, Y)
    assert scores["mse"] < plain.evaluate(X, held)["mse"]
    left = Interpolation().fill(X, Y) - held
    assert scores["mse"] < 0.6 * np.nanmean(np.square(left))
    assert 0.8 < scores["coverage90"] < 0.97


def test_predictions_survive_a_file(fitted, tmp_path):
    model, X, _, _ = fitted
    model.save(tmp_path / "model")
    for ours, theirs in zip(manygp.load(tmp_path / "model").predict(X, True), model.predict(X, True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_cell_is_predicted_alike_whatever_else_is_asked(fitted):
    model, X, _, _ = fitted
    whole = model.predict_dist(X)
    some = model.predict_dist(X[40:60:3], outputs=[3, 1])
    np.testing.assert_allclose(some.mean, whole.mean[40:60:3][:, [3, 1]], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(some.std, whole.std[40:60:3][:, [3, 1]], rtol=1e-6)


def test_far_from_the_table_predictions_return_to_the_prior(fitted):
    model, X, Y, _ = fitted
    dist = model.predict_dist(X[-1:] + 1e4)
    spread = np.nanstd(Y, axis=0)
    assert (np.abs(dist.mean[0] - np.nanmean(Y, axis=0)) < 3.0 * spread).all()
    assert (dist.std[0] > 0.5 * spread).all()


def test_adapting_changes_no_output_of_the_fit(fitted):
    model, X, Y, _ = fitted
    copy = np.where(np.arange(len(X)) % 3 == 0, Y[:, 1], np.nan)[:, None]
    new = model.adapt(X, copy, output_names=["copy"])
    np.testing.assert_allclose(new.predict(X)[:, :5], model.predict(X), rtol=1e-6, atol=1e-6)
    error = new.predict(X)[:, 5] - Y[:, 1]
    assert np.nanmean(np.square(error)) < 0.3 * np.nanvar(Y[:, 1])


def test_a_new_output_that_is_like_no_other_is_not_taken_for_one(fitted, monkeypatch):
    """Half of the cells of a random walk of its own beside those that outputs of the fit share."""
    model, X, _, _ = fitted
    walks, rng = np.cumsum(np.random.default_rng(0).standard_normal((300, 2)), axis=0), np.random.default_rng(6)
    values = walks @ [[0.7], [-0.5]] + 0.5 * rng.standard_normal((300, 1))
    values += np.cumsum(rng.standard_normal((300, 1)), axis=0)
    half, scores = np.arange(300)[:, None] % 2 == 0, []
    for tried in (adapt._DEVIATIONS, (0.0,)):
        monkeypatch.setattr(adapt, "_DEVIATIONS", tried)
        new = model.adapt(X, np.where(half, values, np.nan), output_names=["new"])
        scores.append(new.evaluate(X, np.where(half, np.nan, values), outputs=["new"]))
    assert 0.8 < scores[0]["coverage90"] < 0.98
    assert scores[0]["mse"] < 0.9 * scores[1]["mse"]
    assert scores[0]["nll"] < scores[1]["nll"] - 0.1


def test_new_outputs_are_as_uncertain_as_others_differ(fitted):
    model, X, Y, _ = fitted
    dist = model.predict_new_outputs(X, latent_mean=np.zeros((1, model.latent_mean_.shape[1])))
    assert dist.shape == (300, 1)
    assert dist.std.mean() > 0.3 * np.nanstd(Y)


def test_lists_of_cells_have_neighbours_too(rng):
    x, output = rng.uniform(0.0, 10.0, (900, 1)), rng.integers(3, size=900)
    y = np.sin(3.0 * x[:, 0] + output) + 0.05 * rng.standard_normal(900)
    model = manygp.TLVMOGP(num_inducing=20, num_neighbors=24, epochs=30, progress=False)
    model.fit_cells(x[:700], output[:700], y[:700])
    scores = model.predict_cells(x[700:], output[700:]).score(y[700:])
    assert scores["mse"] < 0.01


def test_few_cells_need_none(rng):
    X, Y, _ = series(rng, n=40, p=3)
    assert manygp.TLVMOGP(epochs=1, progress=False).fit(X, Y).model_.num_neighbors == 0


def test_settings_that_make_no_sense():
    with pytest.raises(manygp.SettingError, match="num_neighbors=-1"):
        manygp.TLVMOGP(num_neighbors=-1).fit(np.zeros((3, 1)), np.zeros((3, 2)))
