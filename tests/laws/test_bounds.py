"""Whitened = unwhitened; bound ≤ log evidence for any q; at fixed Z the best q gives the collapsed bound."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from ..tolerances import EXACT_GP, assert_close
from . import worlds
from .registry import EMBEDDINGS, GAUSSIAN_LIKELIHOODS, KERNELS, LATENT_POSTERIORS, POSTERIORS


def setting(rng, **parts):
    """A model, the full batch of a table, embeddings and noise of its cells."""
    batch = worlds.whole_batch(worlds.random_grid(rng))
    model = worlds.random_model(rng, **parts)
    outputs = batch.outputs[batch.column]
    return model, batch, worlds.point_embeddings(model, batch.x, outputs), worlds.noise_of(model, outputs)


def unwhitened_bound(model, e, y, noise):
    """Σ E[log p(y | f)] − KL[q(u) ‖ p(u)] with u itself, by dense inverses."""
    q, Z = model.gp.posterior.moments(), model.gp.Z.detach()
    Kuu = worlds.dense_covariance(model.gp.kernel, Z, Z)
    L = torch.linalg.cholesky(Kuu)
    mean_u, cov_u = L @ q.mean, L @ q.covariance @ L.T
    W = torch.linalg.solve(Kuu, worlds.dense_covariance(model.gp.kernel, Z, e)).T
    mean = W @ mean_u
    variance = (worlds.dense_covariance(model.gp.kernel, e, e) + W @ (cov_u - Kuu) @ W.T).diagonal()
    data = (Normal(mean, noise.sqrt()).log_prob(y) - 0.5 * variance / noise).sum()
    zero = torch.zeros_like(mean_u)
    return data - kl_divergence(MultivariateNormal(mean_u, cov_u), MultivariateNormal(zero, Kuu))


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_whitened_equals_unwhitened(rng, kernel, posterior, likelihood):
    model, batch, e, noise = setting(rng, kernel=kernel, posterior=posterior, likelihood=likelihood)
    model.gp.jitter = 0.0
    terms = model.elbo(batch, worlds.generator())
    assert_close(terms.expected_log_lik - terms.kl_u, unwhitened_bound(model, e, batch.y, noise), EXACT_GP)


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bound_is_below_the_evidence_for_any_q(rng, kernel, embedding):
    model, batch, e, noise = setting(rng, kernel=kernel, embedding=embedding)
    evidence = worlds.log_evidence(model.gp.kernel, e, batch.y, noise)
    for scale in (0.0, 0.1, 1.0, 5.0):
        m = len(model.gp.Z)
        precision = torch.linalg.inv(worlds.positive_definite(rng, m)) * (1.0 + scale)
        model.gp.posterior.step(scale * worlds.normal(rng, m), precision, 1.0)
        terms = model.elbo(batch, worlds.generator())
        assert terms.expected_log_lik - terms.kl_u < evidence


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_best_q_gives_the_collapsed_bound(rng, kernel, likelihood):
    """log N(y | 0, Qff + Σ) − ½ tr Σ⁻¹(Kff − Qff), between any other q's bound and the evidence."""
    model, batch, e, noise = setting(rng, kernel=kernel, likelihood=likelihood)
    model.gp.jitter = 0.0
    before = model.elbo(batch, worlds.generator()).bound
    model.natural_elbo(batch, worlds.generator(), 1.0)
    terms = model.elbo(batch, worlds.generator())
    Z = model.gp.Z.detach()
    Kuf = worlds.dense_covariance(model.gp.kernel, Z, e)
    Qff = Kuf.T @ torch.linalg.solve(worlds.dense_covariance(model.gp.kernel, Z, Z), Kuf)
    left = worlds.dense_covariance(model.gp.kernel, e, e).diagonal() - Qff.diagonal()
    marginal = MultivariateNormal(torch.zeros_like(batch.y), Qff + torch.diag(noise))
    collapsed = marginal.log_prob(batch.y) - 0.5 * (left / noise).sum()
    assert_close(terms.expected_log_lik - terms.kl_u, collapsed, EXACT_GP)
    assert before < terms.bound
    assert collapsed < worlds.log_evidence(model.gp.kernel, e, batch.y, noise)


@pytest.mark.parametrize("latent_posterior", LATENT_POSTERIORS)
def test_the_bound_is_its_terms(rng, latent_posterior):
    batch = worlds.whole_batch(worlds.random_grid(rng))
    model = worlds.random_model(rng, latent_posterior=latent_posterior)
    terms = model.elbo(batch, worlds.generator())
    assert_close(terms.bound, terms.expected_log_lik - terms.kl_u - terms.kl_h)
    assert_close(terms.kl_h, model.latents.kl(batch.outputs).sum())
