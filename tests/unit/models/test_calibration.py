"""The noise by cells left out one at a time: against exact GPs without these cells, and where the noise is wrong."""

import numpy as np
import pytest
import torch

import manygp
from manygp.data import Grid, Scaling
from manygp.estimators import tlvmogp
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
    y = scaling.scale_y(table.Y[row, output], output)
    growth = calibration._unfamiliarity(table, scaling, output, y)
    for i in range(len(y)):
        others = np.delete(table.Y[:, output[i]], row[i])
        # About the centre of all, a residual is y − c; about that of the others it is this.
        alone = (table.Y[row[i], output[i]] - others.mean()) / max(others.std(), 0.3 * scaling.y_scale[output[i]])
        assert_close(growth[i] * y[i], alone)
    assert (calibration._unfamiliarity(table, Scaling.fit(table, outputs="global"), output, y) == 1.0).all()


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_a_wrong_noise_is_put_right_and_a_right_one_left_alone(rng, monkeypatch, factor):
    model, table = exact_model(rng)
    right = model.likelihood.noise.detach().clone()
    noise, variance = right.expand(2000), torch.full((2000,), 0.5 * float(right))
    residual = worlds.normal(rng, 2000) * (variance + noise / factor).sqrt()
    monkeypatch.setattr(calibration, "leave_out", lambda *given: LeftOut(residual, variance, noise))
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
    for share, changes in ((0.5, False), (1.0, True)):
        left_out = LeftOut(residual, 0.1 * noise, noise, share)
        monkeypatch.setattr(calibration, "leave_out", lambda *given, left_out=left_out: left_out)
        assert (calibrate_noise(model, table, worlds.raw(table), rng) > 1.0) == changes


def test_a_fit_on_a_clean_table_ends_with_a_noise_that_predicts_better(monkeypatch):
    """What inducing points leave open counts as noise in the bound, and once more in a prediction."""
    rng, factors = np.random.default_rng(1), []
    X = rng.uniform(size=(40, 2))
    functions = np.cos(X @ rng.normal(0.0, 5.0, (2, 100)) + rng.uniform(0.0, 6.0, 100)) @ rng.standard_normal((100, 2))
    Y = functions @ rng.standard_normal((2, 20)) / 10.0 + 0.02 * rng.standard_normal((40, 20))
    held = rng.uniform(size=Y.shape) < 0.2
    monkeypatch.setattr(tlvmogp, "calibrate_noise", lambda *given: factors.append(calibrate_noise(*given)) or 1.0)
    model = manygp.TLVMOGP(latent_dim=2, num_inducing=100, epochs=60, device="cpu", progress=False)
    after = model.fit(X, np.where(held, np.nan, Y)).evaluate(X, np.where(held, Y, np.nan))
    model.model_.likelihood.noise = model.model_.likelihood.noise / factors[0]
    before = model.evaluate(X, np.where(held, Y, np.nan))
    assert factors[0] < 0.8
    assert after["nll"] < before["nll"] - 0.01
    assert after["coverage90"] < before["coverage90"]


@pytest.mark.parametrize("setting", [{"freeze_likelihood": float("inf")}, {"preset": "paper"}], ids=str)
def test_a_noise_that_is_not_to_be_learned_stays(rng, monkeypatch, setting):
    monkeypatch.setattr(tlvmogp, "calibrate_noise", lambda *given: pytest.fail("the noise was changed"))
    sizes = {"latent_dim": 1, "num_inducing": 5, "epochs": 1, "standardize": "output", "device": "cpu"}
    manygp.TLVMOGP(**sizes, progress=False, **setting).fit(rng.uniform(size=(9, 1)), rng.standard_normal((9, 2)))
