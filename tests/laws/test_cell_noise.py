"""Noise that differs between cells, known or learnt, is a diagonal of the dense model on every path."""

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from manygp.data import CellPlan, Cells, Grid, GridPlan
from manygp.likelihoods import PooledGaussian
from manygp.models.cell_noise import CellNoise
from manygp.models.neighbors import NeighborPredictor, ObservedCells
from manygp.terms import Points
from manygp.variational import CellBatch

from ..tolerances import EXACT_GP, SAME_FORMULA, assert_close
from . import worlds
from .test_two_scales import ALL, dense_covariance, group_plan, two_scale_model

LEARNED = (False, True)


@pytest.fixture
def table(rng):
    """Gaps at random, and known errors of every cell."""
    grid = worlds.random_grid(rng, num_inputs=8, num_outputs=4)
    grid.y_std = rng.uniform(0.2, 1.5, grid.Y.shape)
    return grid


def with_noise(model, table, rng, is_learned):
    model.cell_noise = CellNoise(table.num_outputs, table.num_inputs, table.num_features, is_learned)
    model.cell_noise.set_known(table, worlds.raw(table))
    if is_learned:
        with torch.no_grad():
            model.cell_noise.log_factor.copy_(worlds.normal(rng, table.num_inputs))
    return model


def noise_of_cells(model, table):
    """σ²_p exp(τ_n) + s²_np of all observed cells."""
    row, output, _ = table.cells(table.places())
    own = model.likelihood.noise_of(torch.as_tensor(output))
    return own * model.cell_noise.log_factor[row].exp() + torch.as_tensor(table.known_variance(row, output))


def batch_of(plan, rng):
    return CellBatch.from_arrays(next(plan.epoch(rng)), torch.float64, worlds.CPU)


@pytest.mark.parametrize("is_learned", LEARNED)
def test_neighbours_have_the_evidence_and_predictions_of_the_exact_gp(rng, table, is_learned):
    model = with_noise(two_scale_model(rng, table), table, rng, is_learned)
    batch = batch_of(group_plan(model, table, num_given=ALL), rng)
    row, output, y = table.cells(table.places())
    noise = torch.as_tensor(table.known_variance(row, output))
    with torch.no_grad():
        model.natural_elbo(batch, worlds.generator(), 1.0)
        terms = model.elbo(batch, worlds.generator())
        plain, y = dense_covariance(model, table)
        own = model.likelihood.noise_of(torch.as_tensor(output))
        R = plain - own.diag() + noise_of_cells(model, table).diag()
        parts = (torch.as_tensor(part) for part in (table.X, row, output, y, noise))
        model.observed = ObservedCells.of(*parts, table.num_outputs)
        x, outputs = torch.as_tensor(np.r_[table.X[:2], table.X[:1] + 0.3]), torch.tensor([2, 0, 3])
        mean, variance = NeighborPredictor(model, ALL, True)(x, outputs)
        h = model.latents.mean
        known = Points(torch.as_tensor(table.X[row]), torch.as_tensor(output), torch.as_tensor(row), h[output])
        asked = Points(x, outputs, torch.tensor([0, 1, -1]), h[outputs])
        both = Points(*(torch.cat(pair) for pair in zip(vars(known).values(), vars(asked).values(), strict=True)))
        K = model.covariance(both, model.embed(both.x, both.h))
    assert_close(terms.expected_log_lik - terms.kl_u, MultivariateNormal(torch.zeros_like(y), R).log_prob(y), EXACT_GP)
    n = len(y)
    b = torch.linalg.solve(R, K[:n, n:])
    assert_close(mean[0], b.T @ y, EXACT_GP)
    assert_close(variance[0], (K[n:, n:] - b.T @ K[:n, n:]).diagonal(), EXACT_GP)


@pytest.mark.parametrize("is_learned", LEARNED)
@pytest.mark.parametrize("bound", ["standard", "tight"])
def test_inducing_points_have_the_bound_of_the_dense_model(rng, table, is_learned, bound):
    model = with_noise(worlds.random_model(rng, bound=bound), table, rng, is_learned)
    batch = worlds.whole_batch(table)
    row, output, y = (torch.as_tensor(part) for part in table.cells(table.places()))
    with torch.no_grad():
        model.natural_elbo(batch, worlds.generator(), 1.0)
        terms = model.elbo(batch, worlds.generator())
        e = model.embed(torch.as_tensor(table.X)[row], model.latents.mean[output])
        A, noise = model.explained(e), noise_of_cells(model, table)
        left = worlds.dense_covariance(model.gp.kernel, e, e).diagonal() - A.square().sum(-1)
        dense = MultivariateNormal(torch.zeros_like(y), A @ A.T + noise.diag()).log_prob(y)
        # Σ dᵢ/σᵢ² of the standard bound, Σ log(1 + dᵢ/σᵢ²) of the tight one
        lost = 0.5 * (left / noise if bound == "standard" else (left / noise).log1p()).sum()
    assert_close(terms.expected_log_lik - terms.kl_u, dense - lost, EXACT_GP)


@pytest.mark.parametrize("has_groups", [False, True])
def test_equal_errors_are_plain_noise(rng, table, has_groups):
    table.y_std = np.full((1, 1), 0.8)
    model = two_scale_model(rng, table) if has_groups else worlds.random_model(rng)
    with torch.no_grad():
        model.likelihood.noise = torch.tensor(0.5 + 0.8**2, dtype=torch.float64)
        plan = group_plan(model, table) if has_groups else GridPlan(table, worlds.raw(table))
        plain = model.elbo(batch_of(plan, np.random.default_rng(0)), worlds.generator())
        model.likelihood.noise = torch.tensor(0.5, dtype=torch.float64)
        with_noise(model, table, rng, is_learned=False)
        known = model.elbo(batch_of(plan, np.random.default_rng(0)), worlds.generator())
    assert_close(known.expected_log_lik, plain.expected_log_lik, SAME_FORMULA)
    assert_close(model.cell_noise.typical, np.full(4, 0.64))
    assert_close(model.cell_noise.ratio, np.ones(8))


@pytest.mark.parametrize("kind", ["grid", "cells", "groups", "list"])
def test_an_epoch_averages_to_the_full_bound(rng, table, kind):
    if kind == "list":
        row, output, y = table.cells(table.places())
        cells = Cells(table.X[row] + 1e-3 * rng.standard_normal((len(y), 2)), output, y, range(4))
        cells.y_std, table = rng.uniform(0.2, 1.5, len(y)), cells
    model = two_scale_model(rng, table) if kind == "groups" else worlds.random_model(rng)
    model.likelihood = worlds.shake(PooledGaussian(4), rng)
    if kind == "list":
        model.cell_noise = CellNoise(4, 0, 2, is_learned=False)
        model.cell_noise.set_known(table, worlds.raw(table))
    else:
        with_noise(model, table, rng, is_learned=True)

    def plan(size):
        if kind == "groups":
            return group_plan(model, table, batch_cells=size or 1000)
        if kind == "grid":
            return GridPlan(table, worlds.raw(table), size and 3, size and 2)
        return CellPlan(table, worlds.raw(table), size)

    def bound(plan):
        epoch = plan.epoch(np.random.default_rng(1))
        batches = [CellBatch.from_arrays(batch, torch.float64, worlds.CPU) for batch in epoch]
        return torch.stack([model.elbo(batch, worlds.generator()).bound for batch in batches]).mean()

    with torch.no_grad():
        assert len(plan(6)) > 2
        assert_close(bound(plan(6)), bound(plan(None)), SAME_FORMULA)


@pytest.mark.parametrize("has_groups", [False, True])
def test_gradients_of_what_is_learnt_of_inputs(rng, table, has_groups):
    model = two_scale_model(rng, table) if has_groups else worlds.random_model(rng)
    noise = with_noise(model, table, rng, is_learned=True).cell_noise
    batch = batch_of(group_plan(model, table), rng) if has_groups else worlds.whole_batch(table)
    inputs = [noise.log_factor, noise.log_spread, model.likelihood.raw_noise]
    found = torch.autograd.grad(model.elbo(batch, worlds.generator()).bound, inputs)
    for parameter, gradient in zip(inputs, found, strict=True):
        direction, values = worlds.normal(rng, *parameter.shape), []
        with torch.no_grad():
            for sign in (1.0, -1.0):
                parameter.add_(sign * 1e-5 * direction)
                values.append(float(model.elbo(batch, worlds.generator()).bound))
                parameter.sub_(sign * 1e-5 * direction)
        assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-5)


def test_the_penalty_is_laplaces_approximation_of_the_evidence(rng):
    """log ∫ N(τ | 0, ω) exp(ℓ(τ)) dτ for ℓ with curvature −c/2, whose peak is where the sum has it."""
    noise, count, peak = CellNoise(1, 1, 1, is_learned=True), 7.0, 0.6
    noise.count.fill_(count)
    τ = torch.linspace(-12, 12, 20001, dtype=torch.float64)
    ω = noise.log_spread.detach().exp()
    log_lik = -0.25 * count * (τ - peak).square()
    log_prior = -0.5 * (τ.square() / ω + (2 * torch.pi * ω).log())
    exact = torch.logsumexp(log_lik + log_prior, 0) + (τ[1] - τ[0]).log()
    best = (log_lik - 0.5 * τ.square() / ω).argmax()
    with torch.no_grad():
        noise.log_factor.copy_(τ[best].view(1))
    assert_close(log_lik[best] - noise.penalty(torch.zeros(int(count), dtype=torch.int64)).sum(), exact, EXACT_GP)


def test_cells_that_were_not_observed_have_typical_noise(rng):
    """Errors that are a product of what inputs and what outputs have."""
    by_input, by_output = rng.uniform(0.5, 2.0, 9), rng.uniform(0.5, 2.0, 5)
    by_input /= np.median(by_input)
    Y = rng.standard_normal((9, 5))
    Y[2, 3] = np.nan
    table = Grid(rng.standard_normal((9, 1)), Y)
    table.y_std = by_input[:, None] * by_output
    noise = CellNoise(5, 9, 1, is_learned=False)
    noise.set_known(table, worlds.raw(table))
    x, outputs = torch.as_tensor(np.r_[table.X[2:4], table.X[2:3] + 7.0]), torch.tensor([3, 3, 3])
    own = torch.ones(3, dtype=torch.float64)
    expected = by_output[3] ** 2 * np.array([by_input[2] ** 2, by_input[3] ** 2, 1.0])
    usual = float(noise.typical[3])
    assert_close(noise.finder()(own, x, outputs) * by_output[3] ** 2 / usual, expected)
    assert usual == pytest.approx(by_output[3] ** 2, rel=0.5)
