"""SV-LMC against dense models of its definition: bounds, natural steps and predictions, with gaps."""

import itertools

import numpy as np
import pytest
import torch

from manygp.data import Grid
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian
from manygp.models.svlmc import MIXING_POSTERIORS, LinearMixingModel, Mixing
from manygp.variational import (
    InducingGP,
    KernelBatch,
    NaturalPosterior,
)

from ..tolerances import EXACT_GP, PREDICTION, assert_close, assert_monte_carlo
from . import worlds
from .registry import LIKELIHOODS

P, L, M, D = 5, 3, 4, 2


def random_model(rng, posterior="diagonal", likelihood=None, Z=None, latents=L, jitter=1e-10):
    Z = worlds.normal(rng, latents, M, D) if Z is None else Z.expand(latents, -1, -1)
    kernels = worlds.shake(KernelBatch("rbf", D, latents), rng, 0.3)
    q = worlds.random_posterior("natural", (latents, Z.shape[1]), rng)
    mixing = worlds.shake(Mixing(P, latents, posterior, has_prior=True), rng)
    with torch.no_grad():
        mixing.mean.add_(worlds.normal(rng, P, latents))
    likelihood = Gaussian(noise=0.3) if likelihood is None else likelihood
    return LinearMixingModel(InducingGP(kernels, Z, q, jitter), likelihood, mixing, worlds.normal(rng, P, 1))


def table_for(rng, likelihood, missing=0.3):
    """A grid with gaps whose values the likelihood can have, one input and one output without a cell."""
    table = worlds.random_grid(rng, 8, P, D, missing)
    Y = table.Y.copy() if likelihood.is_affine else np.minimum(np.abs(np.round(table.Y)), 1.0)
    Y[3], Y[:, 2] = np.nan, np.nan
    return Grid(table.X, Y)


def dense_processes(model, x):
    """Means (n, L) and covariances (L, n, n) of q(g_l), by the textbook formulas with inverses."""
    q, means, covariances = model.processes.posterior.moments(), [], []
    rows = model.processes.kernels.rows()
    Kuu, Kxu = (model.processes.kernels.covariance(rows, a, model.processes.Z) for a in (model.processes.Z, x))
    Kxx = model.processes.kernels.covariance(rows, x, x)
    for j in range(len(Kuu)):
        factor = torch.linalg.cholesky(Kuu[j])
        A = Kxu[j] @ torch.linalg.inv(factor).T
        means.append(A @ q.mean[j])
        covariances.append(Kxx[j] - A @ A.T + A @ q.covariance[j] @ A.T)
    return torch.stack(means, 1), torch.stack(covariances)


# -- the bound ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def brute_force_bound(model, table):
    """Cell by cell, with second moments of w and g as full matrices."""
    g, cov = dense_processes(model, torch.as_tensor(table.X))
    w, s = model.mixing.moments(torch.arange(P))
    noise, total = model.likelihood.noise[0], 0.0
    for n, p in zip(*np.nonzero(~np.isnan(table.Y)), strict=True):
        gg = torch.diag(cov[:, n, n]) + torch.outer(g[n], g[n])
        ww = torch.diag(s[p]) + torch.outer(w[p], w[p])
        r = table.Y[n, p] - float(model.bias[p, 0])
        # E(r − wᵀg)² = r² − 2 r E[w]ᵀE[g] + tr(E[wwᵀ] E[ggᵀ])
        square = r**2 - 2 * r * (w[p] @ g[n]) + (ww * gg).sum()
        total += -0.5 * (torch.log(2 * torch.pi * noise) + square / noise)
    moments = model.processes.posterior.moments()
    for mean, S in zip(moments.mean, moments.covariance, strict=True):
        q = torch.distributions.MultivariateNormal(mean, S)
        prior = torch.distributions.MultivariateNormal(torch.zeros_like(mean), torch.eye(len(mean)).to(mean))
        total -= torch.distributions.kl_divergence(q, prior)
    standard = torch.distributions.Normal(torch.zeros_like(w), 1.0)
    if model.mixing.posterior == "point":
        return total + standard.log_prob(w).sum()
    return total - torch.distributions.kl_divergence(torch.distributions.Normal(w, s.sqrt()), standard).sum()


@pytest.mark.parametrize("posterior", MIXING_POSTERIORS)
def test_the_bound_is_that_of_the_dense_model(rng, posterior):
    model = random_model(rng, posterior)
    table = table_for(rng, model.likelihood)
    assert_close(
        model.elbo(worlds.whole_batch(table), worlds.generator()).bound, brute_force_bound(model, table), EXACT_GP
    )


@torch.no_grad()
def dense_lmc(model, x, outputs):
    """Covariance of f at cells with point weights: Σ_l w_pl w_p'l k_l(x, x')."""
    K = model.processes.kernels.covariance(model.processes.kernels.rows(), x, x)
    w = model.mixing.mean[outputs]
    return sum(torch.outer(w[:, j], w[:, j]) * K[j] for j in range(len(K)))


def test_the_bound_is_below_the_evidence_and_reaches_it_for_one_process(rng):
    """With inducing points at the inputs, all that is lost is the correlation of several processes in q."""
    for latents in (1, 3):
        table = table_for(rng, Gaussian())
        model = random_model(rng, "point", Z=torch.as_tensor(table.X), latents=latents)
        batch = worlds.whole_batch(table)
        for rate in [1.0] * 30:
            terms = model.natural_elbo(batch, worlds.generator(), rate)
        outputs = batch.outputs[batch.column]
        noise = model.likelihood.noise[0].detach()
        covariance = dense_lmc(model, batch.x, outputs) + noise * torch.eye(len(batch.y))
        evidence = torch.distributions.MultivariateNormal(model.bias[outputs, 0].detach(), covariance).log_prob(batch.y)
        bound = terms.expected_log_lik - terms.kl_u
        if latents == 1:
            assert_close(bound, evidence, EXACT_GP)
        else:
            assert bound < evidence


def test_means_at_the_optimum_are_those_of_the_exact_posterior(rng):
    """Independent q(u_l) have the wrong variances, but the right means."""
    table = table_for(rng, Gaussian())
    model = random_model(rng, "point", Z=torch.as_tensor(table.X))
    batch = worlds.whole_batch(table)
    for _ in range(40):
        model.natural_elbo(batch, worlds.generator(), 1.0)
    outputs = batch.outputs[batch.column]
    x, which = worlds.normal(rng, 9, D), torch.as_tensor(rng.integers(P, size=9))
    with torch.no_grad():
        K = dense_lmc(model, torch.cat([x, batch.x]), torch.cat([which, outputs]))
        Kyy = K[9:, 9:] + model.likelihood.noise[0] * torch.eye(len(batch.y))
        expected = K[:9, 9:] @ torch.linalg.solve(Kyy, batch.y - model.bias[outputs, 0]) + model.bias[which, 0]
        assert_close(model.predictor(1, 0)(x, which)[0][0], expected, EXACT_GP)


PARTS = [("diagonal", "gaussian")] + [("point", name) for name in LIKELIHOODS]


@pytest.mark.parametrize(("posterior", "likelihood"), PARTS)
def test_an_epoch_averages_to_the_full_bound(rng, posterior, likelihood):
    model = random_model(rng, posterior, LIKELIHOODS[likelihood](P))
    table = table_for(rng, model.likelihood)
    worlds.assert_epochs_average(model, table, rng)


def test_draws_of_weights_are_unbiased(rng):
    """Likelihoods without a closed form take draws; for Gaussian noise in that guise, their average is known."""
    model = random_model(rng)
    batch = worlds.whole_batch(table_for(rng, model.likelihood))
    with torch.no_grad():
        exact = model.elbo(batch, worlds.generator()).expected_log_lik
        model.likelihood = worlds.Disguised(model.likelihood)
        draws = [model.elbo(batch, worlds.generator(seed)).expected_log_lik for seed in range(150)]
    assert_monte_carlo(torch.stack(draws), exact)


# -- natural steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_one_process_steps_as_an_inducing_gp(rng, rate):
    """With a single process and weights of one, this is the sparse GP of the flagship."""
    model = random_model(rng, "point", latents=1)
    with torch.no_grad():
        model.mixing.mean.fill_(1.0)
        model.bias.zero_()
    kernel = make_kernel("rbf", D)
    with torch.no_grad():
        for key, parameter in kernel.named_parameters():
            parameter.copy_(dict(model.processes.kernels.kernel.named_parameters())[key][0])
    gp = InducingGP(kernel, model.processes.Z[0].detach(), NaturalPosterior(M), 1e-10)
    q = model.processes.posterior
    gp.posterior.step(q.theta[0], q.precision[0], 1.0)
    batch = worlds.whole_batch(table_for(rng, model.likelihood))
    outputs = batch.outputs[batch.column]
    gp.natural_step(gp.evidence(batch.x, batch.y, outputs, model.likelihood), batch.cell_weight, rate)
    model.natural_elbo(batch, worlds.generator(), rate)
    assert_close(q.moments().mean[0], gp.posterior.moments().mean, EXACT_GP)
    assert_close(q.moments().covariance[0], gp.posterior.moments().covariance, EXACT_GP)


@pytest.mark.parametrize("posterior", MIXING_POSTERIORS)
def test_natural_steps_rise_to_where_no_gradient_is_left(rng, posterior):
    model = random_model(rng, posterior)
    batch = worlds.whole_batch(table_for(rng, model.likelihood))
    bounds = [model.natural_elbo(batch, worlds.generator(), 0.7).bound.item() for _ in range(30)]
    assert all(after > before - 1e-9 for before, after in itertools.pairwise(bounds))
    q, view = model.processes.posterior, model._view(batch, worlds.generator())
    moments = q.moments()
    mean, covariance = moments.mean.requires_grad_(), moments.covariance.requires_grad_()
    moved = type(moments)(mean, covariance, torch.logdet(covariance))
    marginals = model._marginals(batch, view, *view.projection.marginals(moved))
    outputs = batch.outputs[batch.column]
    bound = model.likelihood.expected_log_prob(*marginals, batch.y, outputs).sum() - moved.kl().sum()
    for gradient in torch.autograd.grad(bound, (mean, covariance)):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


def test_processes_that_do_the_same_job_do_not_overshoot(rng):
    """Equal weights for all processes: steps of each on its own would go L times too far."""
    model = random_model(rng, "point", latents=8)
    with torch.no_grad():
        model.mixing.mean.copy_(model.mixing.mean[:, :1].expand(-1, 8))
    batch = worlds.whole_batch(table_for(rng, model.likelihood))
    start = model.elbo(batch, worlds.generator()).bound
    first = model.natural_elbo(batch, worlds.generator(), 1.0).bound
    second = model.natural_elbo(batch, worlds.generator(), 1.0).bound
    assert first > start
    # Gaussian noise and rate 1: the first step is the last.
    assert_close(second, first, EXACT_GP)


# -- prediction --------------------------------------------------------------------------------------------------------


def test_predictions_are_moments_of_products(rng):
    model = random_model(rng)
    x, outputs = worlds.normal(rng, 6, D), torch.tensor([3, 1, 1, 0, 3, 2])
    mean, variance = model.predictor(1, 0)(x, outputs)
    with torch.no_grad():
        g, cov = dense_processes(model, x)
        w, s = model.mixing.moments(outputs)
        draws = 50_000
        noise = torch.Generator().manual_seed(0)
        spread = cov.diagonal(dim1=-2, dim2=-1).T.sqrt()
        z = torch.randn(2, draws, 6, L, generator=noise, dtype=torch.float64)
        f = ((w + s.sqrt() * z[0]) * (g + spread * z[1])).sum(-1) + model.bias[outputs, 0]
        assert_monte_carlo(f, mean[0])
        assert_monte_carlo((f - mean[0]).square(), variance[0])
        assert_close(mean[0], (w * g).sum(-1) + model.bias[outputs, 0], PREDICTION)


def test_an_output_without_observations_has_the_variance_of_its_prior(rng):
    model = random_model(rng)
    with torch.no_grad():
        model.mixing.mean[2], model.mixing.log_std[2] = 0.0, 0.0
    x = worlds.normal(rng, 4, D)
    mean, variance = model.predictor(1, 0)(x, torch.full((4,), 2))
    with torch.no_grad():
        g, cov = dense_processes(model, x)
    assert_close(mean[0], model.bias[2].expand(4), PREDICTION)
    assert_close(variance[0], (g.square() + cov.diagonal(dim1=-2, dim2=-1).T).sum(-1), PREDICTION)


@pytest.mark.parametrize("posterior", MIXING_POSTERIORS)
def test_a_missing_output_adds_its_own_kl_only(rng, posterior):
    table = worlds.random_grid(rng, num_outputs=P - 1)
    model = random_model(rng, posterior)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    with torch.no_grad():
        without, with_it = (model.elbo(worlds.whole_batch(t), worlds.generator()) for t in (table, wider))
        own = model.mixing.kl(*model.mixing.moments(torch.tensor([P - 1])))[0]
    assert_close(with_it.expected_log_lik, without.expected_log_lik)
    assert_close(with_it.kl_u, without.kl_u)
    assert_close(with_it.kl_h - without.kl_h, own)
