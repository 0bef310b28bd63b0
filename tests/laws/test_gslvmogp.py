"""Sums of separable kernels: kernels, bound and predictions against dense brute force, natural steps, minibatches."""

import itertools

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode

from manygp.data import CellPlan, Grid, GridPlan
from manygp.kernels import cross_covariance, make_kernel
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.models.new_outputs import model_of_new_outputs
from manygp.variational import CellBatch, Latents
from manygp.variational.kronecker import CholeskyKronecker, DenseCurvature, FactoredCurvature, NaturalKronecker

from ..tolerances import EXACT_GP, PREDICTION, assert_close
from . import worlds
from .registry import LIKELIHOODS
from .test_special_cases import BlockScaling, rbf

D, H, J, K = 2, 2, 3, 4
COMPONENTS = (1, 3)
GAUSSIANS = ("gaussian", "gaussian with a noise for each output")


def natural(q, j=J, k=K):
    return NaturalKronecker(j, k, FactoredCurvature(j, k) if q == 1 else DenseCurvature(j, k))


def random_model(
    rng, q, *, num_outputs=4, natural_steps=False, likelihood="gaussian", latent_posterior="point", sizes=(J, K)
):
    """A model with every parameter at random, and no jitter."""
    j, k = sizes
    posterior = natural(q, j, k) if natural_steps else worlds.shake(CholeskyKronecker(j, k), rng, 0.3)
    latents = Latents(num_outputs * q, H, latent_posterior, worlds.normal(rng, num_outputs * q, H), 1.7)
    with torch.no_grad():
        worlds.shake(latents, rng, 0.2).mean.add_(worlds.normal(rng, num_outputs * q, H))
    return SeparableLatentModel(
        [worlds.random_kernel("rbf", D, rng) for _ in range(q)],
        [worlds.random_kernel("rbf", H, rng) for _ in range(q)],
        worlds.normal(rng, k, D),
        worlds.normal(rng, q, j, H),
        posterior,
        latents,
        worlds.shake(LIKELIHOODS[likelihood](num_outputs), rng, 0.2),
        0.5 + torch.as_tensor(rng.uniform(size=D)),
        jitter=0.0,
    ).eval()


def latents_of(model, outputs):
    """Means of the latent vectors of cells, (b, q, h)."""
    return model.latents.mean.detach().view(-1, model.num_components, H)[outputs]


@torch.no_grad()
def brute_kernel(model, x, h, other_x, other_h):
    """The kernel written out from its parameters."""
    total = 0.0
    for q, (on_x, on_h) in enumerate(zip(model.input_kernels, model.latent_kernels, strict=True)):
        K_X = on_x.outputscale * rbf(x / model.units, other_x / model.units, on_x.base_kernel.lengthscale)
        total = total + K_X * on_h.outputscale * rbf(h[:, q], other_h[:, q], on_h.base_kernel.lengthscale)
    return total


@torch.no_grad()
def dense_posterior(model):
    """All pairs of inducing points, and q(u) = N(m, S) with nothing left to structure."""
    q = model.posterior.moments()
    j, k = q.mean.shape
    Z_x = (model.Z_X * model.units).repeat(j, 1)
    Z_h = model.Z_H.transpose(0, 1).repeat_interleave(k, 0)
    Kuu = brute_kernel(model, Z_x, Z_h, Z_x, Z_h)
    L = torch.linalg.cholesky(Kuu)
    return Z_x, Z_h, Kuu, L @ q.mean.flatten(), L @ torch.kron(q.left, q.right) @ L.T


@torch.no_grad()
def dense_marginals(model, x, h):
    Z_x, Z_h, Kuu, mean, S = dense_posterior(model)
    W = torch.linalg.solve(Kuu, brute_kernel(model, Z_x, Z_h, x, h)).T
    return W @ mean, (brute_kernel(model, x, h, x, h) + W @ (S - Kuu) @ W.T).diagonal()


@pytest.mark.parametrize("q", COMPONENTS)
def test_the_kernel_is_that_of_the_transformed_model_with_blocks(rng, q):
    """Appendix D: T-LVMOGP with a block-structured embedding and an additive base kernel."""
    model = random_model(rng, q)
    x, h = worlds.normal(rng, 7, D), worlds.normal(rng, 7, q, H)
    other_x, other_h = worlds.normal(rng, 5, D), worlds.normal(rng, 5, q, H)
    parts, x_scale, h_scale = [], [], []
    for i, (on_x, on_h) in enumerate(zip(model.input_kernels, model.latent_kernels, strict=True)):
        part = ScaleKernel(RBFKernel(active_dims=tuple(range(i * (D + H), (i + 1) * (D + H))))).double()
        part.base_kernel.lengthscale, part.outputscale = 1.0, on_x.outputscale.detach() * on_h.outputscale.detach()
        parts.append(part)
        x_scale.append(on_x.base_kernel.lengthscale[0].detach() * model.units)
        h_scale.append(on_h.base_kernel.lengthscale[0].detach())
    base = make_kernel(gpytorch.kernels.AdditiveKernel(*parts), q * (D + H))
    embed = BlockScaling(torch.stack(x_scale), torch.stack(h_scale))
    theirs = cross_covariance(
        base, embed(torch.cat([x, h.flatten(1)], -1)), embed(torch.cat([other_x, other_h.flatten(1)], -1))
    )
    ours = model.covariance(x, h, other_x, other_h)
    assert_close(ours, theirs)
    assert_close(ours, brute_kernel(model, x, h, other_x, other_h))
    assert_close(model.diagonal(x, h), model.covariance(x, h, x, h).diagonal())


@pytest.mark.parametrize("likelihood", GAUSSIANS)
@pytest.mark.parametrize("q", COMPONENTS)
def test_the_bound_is_that_of_the_dense_model(rng, q, likelihood):
    model = random_model(rng, q, likelihood=likelihood)
    batch = worlds.whole_batch(worlds.random_grid(rng))
    outputs = batch.outputs[batch.column]
    mean, variance = dense_marginals(model, batch.x, latents_of(model, outputs))
    noise = worlds.noise_of(model, outputs)
    data = (Normal(mean, noise.sqrt()).log_prob(batch.y) - 0.5 * variance / noise).sum()
    _, _, Kuu, m, S = dense_posterior(model)
    kl = kl_divergence(MultivariateNormal(m, S), MultivariateNormal(torch.zeros_like(m), Kuu))
    terms = model.elbo(batch, worlds.generator())
    assert_close(terms.expected_log_lik, data, EXACT_GP)
    assert_close(terms.kl_u, kl, EXACT_GP)
    assert_close(terms.kl_h, model.latents.kl(torch.arange(4 * q)).sum())


@pytest.mark.parametrize("q", COMPONENTS)
def test_any_likelihood_sees_the_dense_marginals(rng, q):
    """A likelihood that is not Gaussian, by the same quadrature of the marginals of the dense model."""
    names = [name for name in LIKELIHOODS if name not in GAUSSIANS]
    if not names:
        pytest.skip("only Gaussian likelihoods are registered")
    model = random_model(rng, q, likelihood=names[0])
    batch = worlds.whole_batch(worlds.random_grid(rng))
    batch = CellBatch(**(vars(batch) | {"y": (batch.y > 0).double()}))
    outputs = batch.outputs[batch.column]
    mean, variance = dense_marginals(model, batch.x, latents_of(model, outputs))
    data = model.likelihood.expected_log_prob(mean, variance, batch.y, outputs).sum()
    assert_close(model.elbo(batch, worlds.generator()).expected_log_lik, data, EXACT_GP)


@pytest.mark.parametrize("q", COMPONENTS)
def test_predictions_are_those_of_the_dense_model(rng, q):
    model = random_model(rng, q, latent_posterior="full")
    x, outputs = worlds.normal(rng, 9, D), torch.as_tensor(rng.integers(4, size=9))
    mean, variance = model.predictor(num_samples=3, seed=5)(x, outputs)
    draws = model.latents.sample(model.rows(torch.arange(4)), 3, 5).view(3, 4, q, H)
    for s in range(3):
        dense_mean, dense_variance = dense_marginals(model, x, draws[s][outputs])
        assert_close(mean[s], dense_mean, EXACT_GP)
        assert_close(variance[s], dense_variance, EXACT_GP)


@pytest.mark.parametrize("q", COMPONENTS)
def test_a_new_output_at_the_latents_of_another_is_that_output(rng, q):
    """To the last digit for the same draws of h, and as the dense model has it; other outputs make no difference."""
    model = random_model(rng, q, latent_posterior="diagonal", likelihood="gaussian")
    x, which = worlds.normal(rng, 9, D), torch.as_tensor(rng.integers(2, size=9))
    L = model.latents.factor(torch.arange(4 * q))
    mean, variance = (part.detach().view(4, -1)[:2] for part in (model.latents.mean, L.square().sum(-1)))
    new = model_of_new_outputs(model, mean, variance, torch.zeros(2), torch.zeros(2), 0.0)
    assert new.num_outputs == 2
    ours, theirs = new.predictor(3, 5)(x, which), model.predictor(3, 5)(x, which)
    assert_close(ours[0], theirs[0])
    assert_close(ours[1], theirs[1])
    point = model_of_new_outputs(model, mean[1:], torch.full_like(mean[1:], 1e-20), *torch.zeros(2, 1), 0.0)
    dense_mean, dense_variance = dense_marginals(model, x, latents_of(model, torch.ones(9, dtype=torch.int64)))
    ours = point.predictor(2, 0)(x, torch.zeros(9, dtype=torch.int64))
    assert_close(ours[0], dense_mean.expand(2, -1), EXACT_GP)
    assert_close(ours[1], dense_variance.expand(2, -1), EXACT_GP)


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("q", COMPONENTS)
def test_natural_steps_climb_to_where_no_gradient_is_left(rng, q, missing):
    """At the end neither the mean nor the factors of the covariance can improve the bound."""
    batch = worlds.whole_batch(worlds.random_grid(rng, missing=missing))
    model = random_model(rng, q, natural_steps=True)
    bounds = [float(model.natural_elbo(batch, worlds.generator(), 1.0).bound.detach()) for _ in range(60)]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(bounds))
    moments = model.posterior.moments()
    free = CholeskyKronecker(J, K)
    with torch.no_grad():
        free.mean.copy_(moments.mean)
        free.left_factor.copy_(torch.linalg.cholesky(moments.left))
        free.right_factor.copy_(torch.linalg.cholesky(moments.right))
    model.posterior = free
    bound = model.elbo(batch, worlds.generator()).bound
    assert_close(bound, bounds[-1])
    for gradient in torch.autograd.grad(bound, list(free.parameters())):
        assert float(gradient.abs().max()) < 1e-5 * abs(float(bound.detach()))


def test_one_step_solves_for_the_mean_of_a_complete_grid(rng):
    """There the curvature is a Kronecker product, and with Z at all inputs and outputs the mean is the exact GP's."""
    table = worlds.random_grid(rng, num_inputs=5, missing=0.0)
    batch = worlds.whole_batch(table)
    model = random_model(rng, 1, natural_steps=True, sizes=(4, 5))
    with torch.no_grad():
        model.Z_X.copy_(torch.as_tensor(table.X) / model.units)
        model.Z_H.copy_(model.latents.mean.unsqueeze(0))
    model.natural_elbo(batch, worlds.generator(), 1.0)
    outputs = batch.outputs[batch.column]
    h, x = latents_of(model, outputs), batch.x
    Kyy = brute_kernel(model, x, h, x, h) + torch.diag(worlds.noise_of(model, outputs))
    new_x, new_outputs = worlds.normal(rng, 6, D), torch.as_tensor(rng.integers(4, size=6))
    Ksy = brute_kernel(model, new_x, latents_of(model, new_outputs), x, h)
    mean, _ = model.predictor(1, 0)(new_x, new_outputs)
    assert_close(mean[0], Ksy @ torch.linalg.solve(Kyy, batch.y), EXACT_GP)


def test_the_bound_is_below_the_evidence(rng):
    model = random_model(rng, 1, natural_steps=True)
    batch = worlds.whole_batch(worlds.random_grid(rng))
    outputs = batch.outputs[batch.column]
    h = latents_of(model, outputs)
    covariance = brute_kernel(model, batch.x, h, batch.x, h) + torch.diag(worlds.noise_of(model, outputs))
    evidence = MultivariateNormal(torch.zeros_like(batch.y), covariance).log_prob(batch.y)
    for rate in (0.3, 1.0, 1.0, 1.0):
        terms = model.natural_elbo(batch, worlds.generator(), rate)
        assert terms.expected_log_lik - terms.kl_u < evidence


class Largest(TorchDispatchMode):
    """The largest number of elements that any result of an operation has."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return out


def test_one_component_never_forms_the_square_of_all_inducing_variables(rng):
    j, k = 20, 15
    batch = worlds.whole_batch(worlds.random_grid(rng))
    model = random_model(rng, 1, natural_steps=True, sizes=(j, k))
    model.jitter = 1e-8
    with Largest() as largest:
        model.natural_elbo(batch, worlds.generator(), 0.5).bound.backward()
        model.predictor(2, 0)(batch.x, batch.outputs[batch.column])
    assert largest.size < (j * k) ** 2 / 10


PLANS = {
    "inputs and outputs": lambda table, s: GridPlan(table, s, batch_inputs=4, batch_outputs=3),
    "cells": lambda table, s: CellPlan(table, s, batch_cells=5),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("q", COMPONENTS)
def test_minibatches_average_to_the_full_bound(rng, q, plan):
    grid = worlds.random_grid(rng, num_inputs=8, num_outputs=5)
    Y = grid.Y.copy()
    Y[3], Y[:, 2] = np.nan, np.nan
    table = Grid(grid.X, Y)
    model = random_model(rng, q, num_outputs=5)
    full = model.elbo(worlds.whole_batch(table), worlds.generator())
    batches = PLANS[plan](table, worlds.raw(table)).epoch(rng)
    parts = [model.elbo(CellBatch.from_arrays(b, torch.float64, worlds.CPU), worlds.generator()) for b in batches]
    for term in ("expected_log_lik", "kl_u", "kl_h"):
        assert_close(torch.stack([getattr(part, term) for part in parts]).mean(), getattr(full, term))


@pytest.mark.parametrize("q", COMPONENTS)
def test_a_missing_output_adds_its_own_kl_only(rng, q):
    table = worlds.random_grid(rng)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    terms = []
    for observed in (table, wider):
        model = random_model(np.random.default_rng(1), q, num_outputs=5, natural_steps=True, latent_posterior="full")
        terms.append(model.natural_elbo(worlds.whole_batch(observed), worlds.generator(), 0.7))
    assert torch.equal(terms[0].expected_log_lik, terms[1].expected_log_lik)
    assert torch.equal(terms[0].kl_u, terms[1].kl_u)
    assert_close(terms[1].kl_h - terms[0].kl_h, model.latents.kl(model.rows(torch.tensor([4]))).sum())


@pytest.mark.parametrize("q", COMPONENTS)
def test_draws_of_the_latents_are_unbiased(rng, q):
    """The average over seeds is the average over the predictor's own draws of the marginals."""
    model = random_model(rng, q, latent_posterior="full")
    batch = worlds.whole_batch(worlds.random_grid(rng))
    outputs = batch.outputs[batch.column]
    with torch.no_grad():
        draws = torch.stack([model.elbo(batch, worlds.generator(seed)).expected_log_lik for seed in range(100)])
        mean, variance = model.predictor(200, 0)(batch.x, outputs)
        each = model.likelihood.expected_log_prob(mean, variance, batch.y, outputs).sum(-1)
    error = (draws.var() / len(draws) + each.var() / len(each)).sqrt()
    assert abs(draws.mean() - each.mean()) < 4 * error


@pytest.mark.parametrize("q", COMPONENTS)
def test_single_precision_is_nearly_the_same(rng, q):
    model = random_model(rng, q)
    model.jitter = 1e-6
    table = worlds.random_grid(rng)
    double = model.elbo(worlds.whole_batch(table), worlds.generator())
    single = model.elbo(worlds.whole_batch(table, torch.float32), worlds.generator())
    assert single.bound.dtype == torch.float64
    assert_close(single.bound, double.bound, PREDICTION, torch.float32)
