"""Noise that users know, and noise that differs between inputs, through the door that users take."""

import copy

import numpy as np
import pandas as pd
import pytest

import manygp
from manygp import SVLMC, TLVMOGP, SettingError

SETTINGS = {"latent_dim": 2, "num_inducing": 40, "device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def months():
    """Fourteen outputs over six years; winters have four times the noise of summers."""
    rng = np.random.default_rng(3)
    t = np.arange(72.0)[:, None] / 12.0
    F = np.column_stack([np.sin(1.3 * t), np.cos(0.9 * t)]) @ rng.standard_normal((2, 14))
    std = 0.3 * 4.0 ** (0.5 * np.cos(2.0 * np.pi * t))
    Y = F + std * rng.standard_normal(F.shape)
    return t, np.where(rng.random(Y.shape) < 0.25, np.nan, Y), Y, F, std


@pytest.fixture(scope="module")
def fits(months):
    t, gaps, _, _, std = months
    plain = TLVMOGP(**SETTINGS, num_neighbors=0, epochs=60)
    return {
        "constant": copy.copy(plain).fit(t, gaps),
        "per-input": TLVMOGP(**plain.get_params() | {"noise": "per-input"}).fit(t, gaps),
        "known": copy.copy(plain).fit(t, gaps, y_std=std),
    }


def assert_right_in_all_seasons(model, months):
    """90% intervals hold in winter and in summer."""
    t, gaps, Y, _, std = months
    missing = np.isnan(gaps)
    lower, upper = model.predict_dist(t).interval(0.9)
    inside = (lower < Y) & (upper > Y) & missing
    for season in (std > np.median(std), std <= np.median(std)):
        assert 0.8 < inside[season[:, 0]].sum() / missing[season[:, 0]].sum() < 0.98


def test_noise_that_differs_is_seen(months, fits):
    """Held-out cells are likelier, the function nearer, and intervals right in winter and in summer."""
    t, gaps, Y, F, _ = months
    missing = np.isnan(gaps)
    scores = {name: model.evaluate(t, np.where(missing, Y, np.nan)) for name, model in fits.items()}
    for name, gain in (("per-input", 0.05), ("known", 0.1)):
        assert scores[name]["nll"] < scores["constant"]["nll"] - gain
        assert 0.84 < scores[name]["coverage90"] < 0.96
        error, plain = (np.square(fits[which].predict(t) - F)[missing].mean() for which in (name, "constant"))
        assert error < 0.8 * plain
        assert_right_in_all_seasons(fits[name], months)


def test_predictions_elsewhere_have_typical_noise(months, fits):
    """Of a summer, a winter and a new input."""
    _, _, _, _, std = months
    x = np.array([[0.5], [1.0], [6.37]])
    for name in ("per-input", "known"):
        dist, f = (fits[name].predict_dist(x, observation_noise=noise) for noise in (True, False))
        summer, winter, new = np.sqrt(dist.variance - f.variance).mean(1)
        assert winter > 1.6 * summer
        assert summer < new < winter
        assert new == pytest.approx(np.median(std), rel=0.5)
        draws = dist.sample(400) - dist.mean
        assert draws.std((0, 2)) == pytest.approx(dist.std.mean(1), rel=0.2)
        # Cells together have the same noise as cells by themselves.
        assert dist.covariance([3]).item() == pytest.approx(dist.variance[0, 3], rel=1e-3)


def test_saved_and_loaded(fits, months, tmp_path):
    t = months[0]
    for name in ("per-input", "known"):
        fits[name].save(tmp_path / name)
        found = manygp.load(tmp_path / name)
        np.testing.assert_array_equal(found.predict_dist(t).std, fits[name].predict_dist(t).std)
        assert found.config_ == fits[name].config_


def test_update_refuses(fits, months):
    with pytest.raises(SettingError, match="fit it anew"):
        fits["known"].update(np.array([[7.0]]), np.zeros((1, 14)))


def test_new_outputs_have_the_noise_of_their_inputs(fits, months):
    t, _, Y, _, std = months
    new = fits["known"].adapt(t[::2], Y[::2, :1] + 0.01, output_names=["new"])
    dist, f = (new.predict_dist(t, "new", observation_noise=noise) for noise in (True, False))
    noise = np.sqrt(dist.variance - f.variance)
    assert np.corrcoef(noise[:, 0], std[:, 0])[0, 1] > 0.95


def test_neighbours_know_it_too(months, tmp_path):
    t, gaps, Y, _, std = months
    model = TLVMOGP(**SETTINGS, num_neighbors=12, epochs=40)
    plain, known = (copy.copy(model).fit(t, gaps, y_std=given) for given in (None, std))
    held = np.where(np.isnan(gaps), Y, np.nan)
    # Shocks explain some of the winters.
    assert known.evaluate(t, held)["nll"] < plain.evaluate(t, held)["nll"] - 0.05
    assert_right_in_all_seasons(known, months)
    dist = known.predict_dist(t[:2])
    assert dist.covariance([3]).item() == pytest.approx(dist.variance[0, 3], rel=1e-3)
    known.save(tmp_path / "model")
    np.testing.assert_array_equal(manygp.load(tmp_path / "model").predict_dist(t).std, known.predict_dist(t).std)


def test_a_grid_and_a_list_say_the_same(months):
    t, gaps, _, _, std = months
    model = TLVMOGP(**SETTINGS, num_neighbors=0, epochs=4)
    grid = copy.copy(model).fit(t, gaps, y_std=std)
    row, output = np.nonzero(~np.isnan(gaps))
    cells = copy.copy(model).fit_cells(t[row], output, gaps[row, output], y_std=std[row, 0], output_names=range(14))
    np.testing.assert_allclose(cells.predict_dist(t).std, grid.predict_dist(t).std, rtol=1e-8)
    frame = pd.DataFrame({"t": t[row, 0], "p": output, "y": gaps[row, output], "e": std[row, 0]})
    long = copy.copy(model).fit_long(frame, inputs="t", output="p", value="y", y_std="e")
    np.testing.assert_allclose(long.predict_dist(pd.DataFrame({"t": t[:, 0]})).std, grid.predict_dist(t).std, rtol=1e-8)


def test_a_true_list_of_cells(months):
    t, gaps, _, _, std = months
    row, output = np.nonzero(~np.isnan(gaps))
    x = t[row] + 0.01 * np.random.default_rng(0).random((len(row), 1))
    model = TLVMOGP(**SETTINGS, num_neighbors=0, epochs=4).fit_cells(x, output, gaps[row, output], y_std=std[row, 0])
    assert np.isfinite(model.predict_dist(t).std).all()
    with pytest.raises(SettingError, match="list of cells"):
        TLVMOGP(**SETTINGS, noise="per-input", epochs=4).fit_cells(x, output, gaps[row, output])


def test_who_cannot_says_so(months):
    t, _, Y, _, _ = months
    with pytest.raises(SettingError, match="SVLMC takes no y_std"):
        SVLMC().fit(t, Y, y_std=0.1)
    counts = np.abs(Y).astype(int)
    for settings, told in (({}, {"y_std": 0.1}), ({"noise": "per-input"}, {})):
        with pytest.raises(SettingError, match="Gaussian observations"):
            TLVMOGP(likelihood="poisson", **settings).fit(t, counts, **told)
    with pytest.raises(SettingError, match="noise"):
        TLVMOGP(noise="loud").fit(t, Y)
