"""standard ≤ tight ≤ log evidence; a factor of one gives the standard bound back; natural steps stay right."""

import itertools

import numpy as np
import pytest
import torch

from ..tolerances import EXACT_GP, assert_close
from . import worlds
from .registry import GAUSSIAN_LIKELIHOODS, KERNELS

OTHERS = ("bernoulli", "poisson", "student-t")


def pair(rng, table=None, **parts):
    """The same model with either bound, and the full batch of a table."""
    table = worlds.random_grid(rng) if table is None else table
    batch = worlds.whole_batch(table)
    model = worlds.random_model(rng, bound="tight", **parts)
    standard = worlds.random_model(rng, **parts)
    standard.load_state_dict({k: v for k, v in model.state_dict().items() if k != "gp.log_shrinkage"})
    return standard, model, batch


def data_minus_kl(model, batch):
    terms = model.elbo(batch, worlds.generator())
    return terms.expected_log_lik - terms.kl_u


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gaussian_noise(rng, kernel, likelihood):
    """Above the standard bound by ½ Σ d/σ² − log(1 + d/σ²), and below the evidence."""
    standard, model, batch = pair(rng, kernel=kernel, likelihood=likelihood)
    model.gp.jitter = standard.gp.jitter = 0.0
    outputs = batch.outputs[batch.column]
    e, noise = worlds.point_embeddings(model, batch.x, outputs), worlds.noise_of(model, outputs)
    Z = model.gp.Z.detach()
    Kuf = worlds.dense_covariance(model.gp.kernel, Z, e)
    Qff = Kuf.T @ torch.linalg.solve(worlds.dense_covariance(model.gp.kernel, Z, Z), Kuf)
    ratio = (worlds.dense_covariance(model.gp.kernel, e, e) - Qff).diagonal() / noise
    correction = 0.5 * (ratio - ratio.log1p()).sum()
    assert correction > 0
    assert_close(data_minus_kl(model, batch) - data_minus_kl(standard, batch), correction, EXACT_GP)
    evidence = worlds.log_evidence(model.gp.kernel, e, batch.y, noise)
    assert data_minus_kl(model, batch) < evidence
    for each in (standard, model):
        each.natural_elbo(batch, worlds.generator(), 1.0)
    assert_close(model.gp.posterior.moments().mean, standard.gp.posterior.moments().mean)
    assert data_minus_kl(standard, batch) < data_minus_kl(model, batch) < evidence


@pytest.mark.parametrize("likelihood", OTHERS)
def test_a_factor_of_one_gives_the_standard_bound(rng, likelihood):
    table = counts(rng)
    standard, model, batch = pair(rng, table, likelihood=likelihood)
    assert_close(data_minus_kl(model, batch), data_minus_kl(standard, batch))


def counts(rng, num_inputs=6, num_outputs=4):
    table = worlds.random_grid(rng, num_inputs, num_outputs)
    table.Y[:] = np.where(np.isnan(table.Y), np.nan, table.Y > 0)
    return table


@pytest.mark.parametrize("likelihood", OTHERS)
def test_other_likelihoods(rng, likelihood):
    """Two cells, whose evidence is a sum over a grid: no factor exceeds it, and the best is no worse than one."""
    table = counts(rng, 2, 1)
    table.Y[:] = [[0.0], [1.0]]
    _, model, batch = pair(rng, table, likelihood=likelihood, num_outputs=1, num_inducing=1)
    outputs = batch.outputs[batch.column]
    evidence = log_evidence_of_two(model, batch, outputs)
    bounds = {}
    for factor, _ in itertools.product((0.3, 0.6, 0.9, 1.0, 1.2), range(8)):
        with torch.no_grad():
            model.gp.log_shrinkage.fill_(factor).log_()
        model.natural_elbo(batch, worlds.generator(), 0.7)
        bounds[factor] = float(data_minus_kl(model, batch).detach())
    assert max(bounds.values()) < evidence
    assert max(bounds[factor] for factor in (0.3, 0.6, 0.9)) > bounds[1.0]


@torch.no_grad()
def log_evidence_of_two(model, batch, outputs, points=400):
    """log ∫ p(y₁ | f₁) p(y₂ | f₂) N(f | 0, K) df by a fine grid in whitened coordinates."""
    e = worlds.point_embeddings(model, batch.x, outputs)
    L = torch.linalg.cholesky(worlds.dense_covariance(model.gp.kernel, e, e))
    z = torch.linspace(-9.0, 9.0, points, dtype=torch.float64)
    f = torch.cartesian_prod(z, z) @ L.T
    log_prob = model.likelihood.log_prob(f, batch.y, outputs).sum(-1)
    log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(torch.cartesian_prod(z, z)).sum(-1)
    return float(torch.logsumexp(log_prob + log_prior, 0) + 2.0 * torch.log(z[1] - z[0]))


def test_natural_steps_find_the_best_q_for_any_factor(rng):
    table = counts(rng)
    _, model, batch = pair(rng, table, likelihood="poisson")
    with torch.no_grad():
        model.gp.log_shrinkage.fill_(-0.7)
    for _ in range(40):
        model.natural_elbo(batch, worlds.generator(), 0.5)
    best, posterior = data_minus_kl(model, batch), model.gp.posterior
    theta, precision = posterior.theta.clone(), posterior.precision.clone()
    for _ in range(10):
        A = worlds.normal(rng, len(theta), len(theta))
        posterior.step(theta + 0.1 * worlds.normal(rng, len(theta)), precision + 0.05 * A @ A.T, 1.0)
        assert data_minus_kl(model, batch) < best


def test_gradients_of_the_factor(rng):
    table = counts(rng)
    _, model, batch = pair(rng, table, likelihood="poisson")

    def bound(value):
        with torch.no_grad():
            model.gp.log_shrinkage.fill_(value)
        return data_minus_kl(model, batch)

    bound(-0.3).backward()
    slope = (bound(-0.3 + 1e-5) - bound(-0.3 - 1e-5)) / 2e-5
    assert_close(model.gp.log_shrinkage.grad, slope, EXACT_GP)
