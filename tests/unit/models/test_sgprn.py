"""SGPRN: sizes, parameter count, and where it begins."""

import math

import numpy as np
import pytest
import torch

from manygp.data import Grid, Scaling
from manygp.data.factorisation import factorise
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.sgprn import initialise, initialise_at_prior
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian
from manygp.models.sgprn import NetworkPredictor, RegressionNetwork, choose_output_shape

from ...laws import worlds
from ...tolerances import EXACT_GP, assert_close
from .test_svlmc import low_rank_table


def make_model(table, latents, shape=None, natural=True):
    d, p = table.num_features, table.num_outputs
    bias = torch.zeros(p, 1) if natural else None
    kernels = make_kernel("rbf", d), make_kernel("rbf", d)
    shape = (p,) if shape is None else shape
    return RegressionNetwork(torch.as_tensor(table.X), *kernels, Gaussian(), p, latents, shape, natural, bias)


@pytest.mark.parametrize(
    ("outputs", "shape"), [(1, (1,)), (7, (7,)), (64, (64,)), (72, (8, 9)), (3395, (35, 97)), (10_873, (83, 131))]
)
def test_outputs_are_laid_out_by_factors_of_their_number(outputs, shape):
    assert choose_output_shape(outputs) == shape


@pytest.mark.parametrize("outputs", [67, 2 * 997, 7919])
def test_numbers_without_such_factors_leave_a_few_places_empty(outputs):
    shape = choose_output_shape(outputs)
    assert outputs <= math.prod(shape) < outputs + max(shape)
    assert max(shape) < 2 * min(shape)


@pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 2, 3)])
def test_parameters_are_counted_as_in_the_paper(rng, shape):
    """L N + 2 N² + 2 L² + L N P + Σ p_m², appendix I, and as many as are stored."""
    N, L, P = 7, 3, 12
    table = worlds.random_grid(rng, N, P, 1)
    model = make_model(table, L, shape, natural=False)
    assert model.num_parameters == L * N + 2 * N**2 + 2 * L**2 + L * N * P + sum(size**2 for size in shape)
    stored = [*model.latents.parameters(), *model.weights.parameters()]
    assert model.num_parameters == sum(parameter.numel() for parameter in stored)


def test_it_begins_at_the_factorisation(rng):
    table = low_rank_table(rng, missing=0.2)
    scaling = Scaling.fit(table, outputs="global")
    factors = factorise(table, scaling, 3)
    model = make_model(table, 5)
    model.inputs.copy_(torch.as_tensor(scaling.scale_x(table.X)))
    initialise(model, worlds.survey_of(table, rng), Lengthscales(np.array([0.5]), 1.0, 0.01), factors)
    with torch.no_grad():
        Cf, Cw = model.whitening()
        W = torch.einsum("an,pnq->apq", Cw, model.weights.mean)
        f = torch.einsum("apq,aq->ap", W, Cf @ model.latents.mean)
    assert_close(f, factors.predict(), EXACT_GP)
    # Weights do not vary over the inputs yet.
    assert_close(W, W[:1].expand_as(W), EXACT_GP)
    assert_close(model.likelihood.noise, [0.01], EXACT_GP)
    assert isinstance(model.predictor(2, 0), NetworkPredictor)


def test_it_begins_without_a_factorisation(rng):
    table = Grid(rng.standard_normal((6, 1)), rng.standard_normal((6, 1)))
    model = make_model(table, 2)
    survey = worlds.survey_of(table, rng, standardize=False)
    initialise(model, survey, Lengthscales(np.array([0.5]), 1.0, 0.1), None)
    assert not model.latents.mean.any()
    assert model.weights.mean.any()


def test_the_published_start(rng):
    model = make_model(worlds.random_grid(rng, 30, 20, 1), 3, natural=False)
    initialise_at_prior(model, 0.1, torch.Generator())
    assert 0.9 < model.weights.mean.std() < 1.1
    assert model.latents.mean.std() > 0.5
    assert_close(model.likelihood.noise, [0.01], EXACT_GP)
    assert_close(model.weights.covariance_kl() + model.latents.covariance_kl(), 0.0)
