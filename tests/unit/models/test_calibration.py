"""The noise by cells left out one at a time: against exact GPs without these cells, and where the noise is wrong."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import manygp
from manygp.data import Grid, Scaling
from manygp.estimators import corrections
from manygp.models import calibration
from manygp.models.calibration import LeftOut, calibrate_noise, leave_out

from ...laws import worlds
from ...tolerances import EXACT_GP, assert_close


def exact_model(rng):
    """A model whose sparse GP is exact, and its table."""
    table = worlds.random_grid(rng)
    batch = worlds.whole_batch(table)
    model = worlds.random_model(rng, num_outputs=table.num_outputs)
    worlds.set_points(model, worlds.point_embeddings(model, batch.x, batch.outputs[batch.column]))
    model.gp.jitter = 0.0
    model.natural_elbo(batch, worlds.generator(), rate=1.0)
    return model, table


def test_a_cell_that_is_left_out_is_predicted_by_the_exact_gp_of_the_others(rng):
    model, table = exact_model(rng)
    row, column = np.nonzero(~np.isnan(table.Y))
    x, y, outputs = torch.as_tensor(table.X[row]), torch.as_tensor(table.Y[row, column]), torch.as_tensor(column)
    e, noise = worlds.point_embeddings(model, x, outputs), worlds.noise_of(model, outputs)
    found = leave_out(model, table, worlds.raw(table), rng)
    kept = 0
    for i in range(len(y)):
        others = torch.arange(len(y)) != i
        mean, variance = worlds.exact_prediction(model.gp.kernel, e[others], y[others], noise[others], e[i : i + 1])
        # What is known of the cell: 1 / (1 / v + 1 / σ²) with v the variance without it.
        if float(noise[i] / (noise[i] + variance)) > calibration._LEAST_REST:
            assert_close(found.residual[kept], y[i] - mean[0], EXACT_GP)
            assert_close(found.variance[kept], variance[0], EXACT_GP)
            kept += 1
    assert kept == len(found.residual) > 0


def test_a_residual_grows_by_what_its_cell_had_to_say_about_its_unit(rng):
    table = Grid(np.arange(7.0)[:, None], rng.standard_normal((7, 3)) * [1.0, 10.0, 100.0])
    scaling, row, output = Scaling.fit(table), np.repeat(np.arange(7), 3), np.tile(np.arange(3), 7)
    value = table.Y[row, output]
    y = scaling.scale_y(value, output)
    growth = calibration._unfamiliarity(table, scaling, output, value)
    for i in range(len(y)):
        others = np.delete(table.Y[:, output[i]], row[i])
        # About the centre of all, a residual is y − c; about that of the others it is this.
        alone = (table.Y[row[i], output[i]] - others.mean()) / max(others.std(), 0.3 * scaling.y_scale[output[i]])
        assert_close(growth[i] * y[i], alone)
    completed = replace(scaling, y_center=scaling.y_center + 1.0, y_scale=scaling.y_scale * [0.8, 1.0, 1.2])
    assert_close(calibration._unfamiliarity(table, completed, output, value), growth)
    assert (calibration._unfamiliarity(table, Scaling.fit(table, outputs="global"), output, value) == 1.0).all()


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_a_wrong_noise_is_put_right_and_a_right_one_left_alone(rng, monkeypatch, factor):
    model, table = exact_model(rng)
    right = model.likelihood.noise.detach().clone()
    noise, variance = right.expand(2000), torch.full((2000,), 0.5 * float(right))
    residual = worlds.normal(rng, 2000) * (variance + noise / factor).sqrt()
    monkeypatch.setattr(calibration, "leave_out", lambda *given: LeftOut(residual, variance, noise))
    monkeypatch.setattr(calibration, "_gap_variance", lambda *given: None)
    found = calibrate_noise(model, table, worlds.raw(table), rng)
    assert found == pytest.approx(1.0 / factor, rel=0.0 if factor == 1.0 else 0.25)
    assert_close(model.likelihood.noise, found * right)


def test_few_cells_change_nothing(rng):
    model, _ = exact_model(rng)
    Y = np.full((3, 4), np.nan)
    Y[:, 1] = [1.0, 2.0, 30.0]
    table = Grid(rng.standard_normal((3, 2)), Y)
    assert calibrate_noise(model, table, worlds.raw(table), rng) == 1.0


def test_cells_that_others_say_nothing_about_change_nothing(rng, monkeypatch):
    model, table = exact_model(rng)
    noise = model.likelihood.noise.detach().expand(2000)
    residual = 9.0 * worlds.normal(rng, 2000) * noise.sqrt()
    monkeypatch.setattr(calibration, "_gap_variance", lambda *given: None)
    for share, changes in ((0.5, False), (1.0, True)):
        left_out = LeftOut(residual, 0.1 * noise, noise, share)
        monkeypatch.setattr(calibration, "leave_out", lambda *given, left_out=left_out: left_out)
        assert (calibrate_noise(model, table, worlds.raw(table), rng) > 1.0) == changes


@pytest.mark.parametrize(
    ("setting", "expected"),
    [({}, 1), ({"freeze_likelihood": float("inf")}, 0), ({"preset": "paper"}, 0)],
    ids=["default", "frozen", "paper"],
)
def test_a_fit_ends_with_it_unless_the_noise_is_not_to_be_learned(rng, monkeypatch, setting, expected):
    calls = []
    monkeypatch.setattr(corrections, "calibrate_noise", lambda *given: calls.append(given) or 1.0)
    sizes = {"latent_dim": 1, "num_inducing": 5, "epochs": 1, "standardize": "output", "device": "cpu"}
    model = manygp.TLVMOGP(**sizes, progress=False, **setting)
    model.fit(rng.uniform(size=(9, 1)), rng.standard_normal((9, 2)))
    assert len(calls) == expected
    assert all(given[0] is model.model_ for given in calls)


def test_gaps_that_are_unlike_single_cells_change_nothing(rng, monkeypatch):
    model, table = exact_model(rng)
    noise = model.likelihood.noise.detach().expand(2000)
    left_out = LeftOut(9.0 * worlds.normal(rng, 2000) * noise.sqrt(), 0.1 * noise, noise)
    monkeypatch.setattr(calibration, "leave_out", lambda *given: left_out)
    for factor, changes in ((3.0, False), (1.0, True)):
        gaps = factor * 1.1 * noise
        monkeypatch.setattr(calibration, "_gap_variance", lambda *given, gaps=gaps: gaps)
        assert (calibrate_noise(model, table, worlds.raw(table), rng) > 1.0) == changes


def test_variances_of_gaps_are_those_of_predictions(rng):
    model, table = exact_model(rng)
    Y = table.Y.copy()
    Y[:, 0], Y[1:, 1] = np.nan, 1.0
    Y[0, 1:] = [np.nan, 1.0, 1.0]
    Y[:, 2:] = 1.0
    # One gap is left in an output that was observed; those of an output without any observation do not count.
    gaps = calibration._gap_variance(model, Grid(table.X, Y), worlds.raw(table), rng)
    _, variance = model.predictor(1, 0)(torch.as_tensor(table.X[:1]), torch.tensor([1]))
    noise = worlds.noise_of(model, torch.tensor([1]))
    assert_close(gaps, (variance[0] + noise).expand(len(gaps)), EXACT_GP)
    full = Grid(table.X, np.ones_like(Y))
    assert calibration._gap_variance(model, full, worlds.raw(full), rng) is None
