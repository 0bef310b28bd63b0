"""The G-MOGP estimator: its attention, what it finds, what it refuses."""

import logging

import numpy as np
import pytest

from manygp import GMOGP, IndGP, SettingError
from manygp.data import Cells, Grid
from manygp.initialise.gmogp import cosine_similarity, start_means
from manygp.models.gmogp import Attention, attention_bytes

from ...laws import worlds
from ...tolerances import assert_close
from .test_svlmc import QUIET, held_out


def test_similarity_is_the_cosine_of_columns_with_zeros(rng):
    grid = worlds.random_grid(rng, 9, 4)
    filled = np.nan_to_num(grid.Y)
    expected = filled.T @ filled / np.outer(*[np.linalg.norm(filled, axis=0)] * 2)
    row, output = np.nonzero(~np.isnan(grid.Y))
    cells = Cells(grid.X[row], output, grid.Y[row, output])
    for table in (grid, cells):
        assert_close(cosine_similarity(table, worlds.raw(table)), expected)


def test_an_output_without_observations_is_similar_to_none(rng):
    table = worlds.random_grid(rng, 9, 4)
    empty = Grid(table.X, np.column_stack([table.Y[:, :3], np.full(9, np.nan)]))
    assert not cosine_similarity(empty, worlds.raw(table))[3].any()


def test_means_start_at_levels(rng):
    attention, level = worlds.shake(Attention(4), rng), worlds.normal(rng, 4)
    start_means(attention, level)
    assert_close(attention.means(), level)


@pytest.mark.parametrize("num_kernels", [None, 3])
def test_it_fills_scattered_gaps(rng, num_kernels):
    X, Y, _ = held_out(rng, num_inputs=40, num_outputs=8)
    gaps = rng.uniform(size=Y.shape) < 0.2
    model = GMOGP(num_inducing=15, num_kernels=num_kernels, epochs=25, **QUIET).fit(X, np.where(gaps, np.nan, Y))
    score = model.evaluate(X, np.where(gaps, Y, np.nan))
    assert score["mse"] < 0.3 * np.nanvar(Y[gaps])
    assert score["coverage90"] > 0.7
    others = model.attention_ - np.eye(8)
    assert (others >= 0).all()
    assert (others.sum(1) < 1).all()


def test_many_outputs_share_kernels(rng):
    Y = rng.standard_normal((12, 1)) + 0.1 * rng.standard_normal((12, 40))
    model = GMOGP(num_inducing=4, epochs=2, **QUIET).fit(np.linspace(0, 1, 12)[:, None], Y)
    assert model.model_.processes.kernels.size == 9


def test_training_as_published_climbs(rng):
    X, Y, _ = held_out(rng)
    model = GMOGP(preset="paper", num_inducing=6, epochs=20, **QUIET).fit(X, Y)
    assert model.model_.processes.kernels.size == 12
    assert np.mean(model.history_["bound"][-5:]) > np.mean(model.history_["bound"][:5])


def test_counts(rng):
    X = np.linspace(0, 1, 40)[:, None]
    Y = rng.poisson(np.exp(1.0 + np.sin(6 * X) * np.linspace(0.5, 1.5, 4))).astype(float)
    model = GMOGP(num_inducing=8, likelihood="poisson", epochs=20, **QUIET).fit(X, Y)
    assert np.mean((model.predict(X) - Y) ** 2) < 0.8 * np.mean((Y.mean(0) - Y) ** 2)


def test_the_memory_of_attention_is_told_and_refused(rng, monkeypatch, caplog):
    X, Y, _ = held_out(rng)
    assert attention_bytes(1000, sparse=True) == 56_000_000
    assert attention_bytes(1000, sparse=False) > attention_bytes(1000, sparse=True)
    with caplog.at_level(logging.INFO, "manygp"):
        GMOGP(num_inducing=4, epochs=1, **QUIET).fit(X, Y)
    assert "attention of 12 outputs" in caplog.text
    monkeypatch.setattr("manygp.estimators.gmogp.total_memory", lambda device: 8000.0)
    with pytest.raises(SettingError, match=r"attention between 12 outputs.*use fewer outputs, or SVLMC"):
        GMOGP(num_inducing=4, epochs=1, **QUIET).fit(X, Y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_inducing": 99}, "exceeds the 25 inputs"),
        ({"num_inducing": None}, "num_inducing=None"),
        ({"num_kernels": 0}, "num_kernels=0"),
        ({"kernel": "cubic"}, "kernel='cubic'"),
        ({"likelihood": "cauchy"}, "likelihood='cauchy'"),
        ({"standardize": "completed"}, "standardize='completed'"),
    ],
)
def test_settings_that_make_no_sense(rng, settings, message):
    X, Y, _ = held_out(rng)
    with pytest.raises(SettingError, match=message):
        GMOGP(**(QUIET | settings)).fit(X, Y)


def lost_blocks(rng, num_outputs=60):
    """Cycles too steep for the kernel, of which a third of the outputs lost the end and a third the beginning."""
    t = np.arange(30.0)
    phase, level = rng.normal(0.0, 0.3, num_outputs), rng.normal(0.0, 0.3, num_outputs)
    cycle = np.tanh(3.0 * np.sin(2.0 * np.pi * t[:, None] / 12.0 + phase + rng.uniform(0.0, 6.28)))
    Y = level + cycle * rng.uniform(0.8, 1.2, num_outputs) + 0.2 * rng.standard_normal((30, num_outputs))
    lost = np.zeros(Y.shape, dtype=bool)
    lost[20:, : num_outputs // 3] = True
    lost[:10, num_outputs // 3 : 2 * num_outputs // 3] = True
    return t[:, None], np.where(lost, np.nan, Y), np.where(lost, Y, np.nan)


def test_it_extrapolates_no_worse_than_outputs_alone():
    """Slopes at the edge of a gap, and levels of what is left, must not run away with what is lost."""
    X, Y, held = lost_blocks(np.random.default_rng(1))
    score = GMOGP(num_inducing=10, epochs=60, **QUIET).fit(X, Y).evaluate(X, held)
    alone = IndGP(**QUIET).fit(X, Y).evaluate(X, held)
    assert score["mse"] < min(1.02 * alone["mse"], np.nanvar(held))
    assert score["nll"] < 1.02 * alone["nll"]


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_only_outputs_that_cannot_be_centred_have_means(rng, likelihood):
    Y = rng.poisson(5.0, (20, 4)).astype(float)
    X = np.linspace(0, 1, 20)[:, None]
    model = GMOGP(num_inducing=5, epochs=3, likelihood=likelihood, **QUIET).fit(X, Y)
    assert bool(model.model_.processes.kernels.mixture.mean.any()) == (likelihood == "poisson")
