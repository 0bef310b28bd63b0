"""The model of separable kernels as a module, and where it begins."""

import numpy as np
import pytest
import torch

from manygp import GSLVMOGP, LVMOGP
from manygp.data import Grid, Scaling
from manygp.initialise.gslvmogp import (
    choose_inducing_sizes,
    initialise,
    initialise_at_prior,
)
from manygp.models.gslvmogp import SeparableLatentModel, SeparablePredictor
from manygp.terms import Level

from ...laws import worlds
from ...laws.test_gslvmogp import random_model
from ...tolerances import assert_close


@pytest.mark.parametrize("q", [1, 3])
def test_parameters_are_as_many_as_the_paper_counts(q):
    """Appendix I, and what the module of the published procedure holds, triangles counted as squares."""
    h, j, k, d, p = 3, 5, 7, 2, 11
    sizes = {
        "num_features": d,
        "num_outputs": p,
        "num_components": q,
        "latent_dim": h,
        "num_inducing_latents": j,
        "num_inducing_inputs": k,
        "prior_mean": False,
    }
    model = GSLVMOGP(num_components=q, preset="paper")._restore(sizes)
    counted = model.num_parameters
    assert counted == q * h * p + q * h**2 * p + k * j + k**2 + j**2 + q * j * h + k * d
    parts = (model.latents, model.posterior)
    held = sum(parameter.numel() for part in parts for parameter in part.parameters())
    held += model.Z_X.numel() + model.Z_H.numel()
    assert counted == held + q * p * (h**2 - h * (h + 1) // 2)


def test_rows_of_an_output_are_its_components(rng):
    model = random_model(rng, 3)
    assert model.rows(torch.tensor([2, 0])).tolist() == [6, 7, 8, 0, 1, 2]
    assert model.num_outputs == 4
    assert isinstance(model.predictor(2, 0), SeparablePredictor)


@pytest.mark.parametrize("q", [1, 2])
def test_levels_shift_bound_and_predictions(rng, q):
    """A constant added to an output is the same as one taken off its values."""
    model = random_model(rng, q)
    table = worlds.random_grid(rng)
    shift = rng.standard_normal(4)
    batch, moved = worlds.whole_batch(table), worlds.whole_batch(Grid(table.X, table.Y + shift))
    plain = model.elbo(batch, worlds.generator()).bound
    before, _ = model.predictor(2, 0)(batch.x, batch.outputs[batch.column])
    level = Level(4)
    level.set(torch.as_tensor(shift))
    model.terms.append(level)
    assert_close(model.elbo(moved, worlds.generator()).bound, plain)
    after, _ = model.predictor(2, 0)(batch.x, batch.outputs[batch.column])
    assert_close(after - before, torch.as_tensor(shift)[batch.column].expand(2, -1))
    assert any(parameter is level.value for parameter in model.row_parameters())


def curves(rng, n=40, p=12):
    x = np.sort(rng.uniform(size=(n, 1)), axis=0)
    Y = np.column_stack([np.sin(7 * x[:, 0]), np.cos(4 * x[:, 0])]) @ rng.standard_normal((2, p))
    Y[rng.uniform(size=Y.shape) < 0.2] = np.nan
    return Grid(x, Y + 0.05 * rng.standard_normal(Y.shape))


@pytest.mark.parametrize("estimator", [LVMOGP(), GSLVMOGP(num_components=2)], ids=["one", "two"])
def test_the_start_explains_most_before_any_training(rng, estimator):
    table = curves(rng)
    scaling = Scaling.fit(table, outputs="global")
    survey = worlds.survey_of(table, rng)
    factors = survey.factors(2)
    sizes = {
        "num_features": 1,
        "num_outputs": 12,
        "num_components": estimator.num_components,
        "latent_dim": 2,
        "num_inducing_latents": 6,
        "num_inducing_inputs": 10,
        "prior_mean": False,
    }
    model = estimator._restore(sizes)
    assert isinstance(model, SeparableLatentModel)
    initialise(model, survey, survey.functions(factors), factors)
    row, output, y = table.cells(table.places())
    x = torch.as_tensor(scaling.scale_x(table.X[row]))
    mean, _ = model.predictor(4, 0)(x, torch.as_tensor(output))
    residual = scaling.scale_y(y, output) - mean.mean(0).numpy()
    assert np.mean(residual**2) < 0.03
    initialise_at_prior(model, torch.Generator())
    assert_close(model.likelihood.noise, torch.tensor([0.01], dtype=torch.float64))


def test_inducing_points_follow_roughness_and_directions(rng):
    table = curves(rng)
    scaling = Scaling.fit(table, outputs="global")
    smooth = worlds.survey_of(table, rng).functions(None)
    rough = type(smooth)(smooth.lengthscale / 20.0, smooth.signal, smooth.noise)
    few, many = (choose_inducing_sizes(table, scaling, 2, 1, found) for found in (smooth, rough))
    assert few[0] == many[0] == 6
    assert few[1] < many[1] <= 40
    latents, inputs = choose_inducing_sizes(table, scaling, 3, 3, rough)
    assert latents == 12
    assert latents * inputs <= 448
