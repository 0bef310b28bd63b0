"""SGPRN against dense models of its definition: bound, natural steps and predictions, with gaps."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from manygp.data import Grid
from manygp.kernels import make_kernel
from manygp.likelihoods import Gaussian
from manygp.models import sgprn
from manygp.models.sgprn import RegressionNetwork
from manygp.variational import TensorNormal

from ..tolerances import EXACT_GP, assert_close, assert_monte_carlo
from . import worlds
from .registry import LIKELIHOODS

N, P, L, D = 6, 6, 2, 2
SHAPES = [(6,), (3, 1, 2), (2, 4)]


def random_model(rng, shape=(2, 3), likelihood=None, natural=True, inputs=None, latents=L):
    inputs = worlds.normal(rng, N, D) if inputs is None else torch.as_tensor(inputs)
    kernels = [worlds.shake(make_kernel("rbf", D), rng, 0.3) for _ in range(2)]
    likelihood = Gaussian(noise=0.3) if likelihood is None else likelihood
    model = RegressionNetwork(inputs, *kernels, likelihood, P, latents, shape, natural, bias=worlds.normal(rng, P, 1))
    with torch.no_grad():
        model.log_latent_noise.fill_(-1.5)
        for q in (model.latents, model.weights):
            q.mean.copy_(worlds.normal(rng, *q.mean.shape))
            for mode, size in enumerate(q.shape):
                q.set_covariance(mode, 0.3 * worlds.positive_definite(rng, size))
    return model


def table_for(rng, likelihood, missing=0.3):
    """A grid with gaps whose values the likelihood can have, one input and one output without a cell."""
    table = worlds.random_grid(rng, N, P, D, missing)
    Y = table.Y.copy() if likelihood.is_affine else np.minimum(np.abs(np.round(table.Y)), 1.0)
    Y[3], Y[:, 2] = np.nan, np.nan
    return Grid(table.X, Y)


def world(rng, shape=(2, 3), likelihood=None, **settings):
    likelihood = Gaussian(noise=0.3) if likelihood is None else likelihood
    table = table_for(rng, likelihood)
    return random_model(rng, shape, likelihood, inputs=table.X, **settings), table


@torch.no_grad()
def dense(model):
    """Means and covariances of vec F and vec W, and those of their priors, by Kronecker products in full."""
    Cf, Cw = model.whitening()
    F, W, (n, L) = model.latents, model.weights, model.latents.shape
    places = math.prod(W.shape[2:])
    mean = torch.zeros(places, n, L, dtype=torch.float64)
    mean[: len(W.mean)] = W.mean
    eye = functools.partial(torch.eye, dtype=torch.float64)
    F_mean, W_mean = (Cf @ F.mean).flatten(), torch.einsum("an,pnl->alp", Cw, mean).flatten()
    F_cov = torch.kron(Cf @ F.covariance(0) @ Cf.T, F.covariance(1))
    outputs = functools.reduce(torch.kron, [W.covariance(m) for m in range(2, len(W.shape))])
    W_cov = torch.kron(torch.kron(Cw @ W.covariance(0) @ Cw.T, W.covariance(1)), outputs)
    return (
        (F_mean, F_cov, torch.kron(Cf @ Cf.T, eye(L))),
        (W_mean, W_cov, torch.kron(torch.kron(Cw @ Cw.T, eye(L)), eye(places))),
        places,
    )


def divergence(mean, covariance, prior):
    q = torch.distributions.MultivariateNormal(mean, covariance)
    return torch.distributions.kl_divergence(q, torch.distributions.MultivariateNormal(torch.zeros_like(mean), prior))


@torch.no_grad()
def brute_force(model, table):
    """Data term cell by cell with second moments from the dense covariances, and the divergences."""
    latents, weights, places = dense(model)
    n, L = model.latents.shape
    h, S = latents[0].view(n, L), latents[1].view(n, L, n, L)
    w, V = weights[0].view(n, L, places), weights[1].view(n, L, places, n, L, places)
    noise, data = model.likelihood.noise[0], 0.0
    for i, p in zip(*np.nonzero(~np.isnan(table.Y)), strict=True):
        hh = S[i, :, i, :] + torch.outer(h[i], h[i])
        ww = V[i, :, p, i, :, p] + torch.outer(w[i, :, p], w[i, :, p])
        r = table.Y[i, p] - float(model.bias[p, 0])
        # E(r − wᵀh)² = r² − 2 r E[w]ᵀE[h] + tr(E[wwᵀ] E[hhᵀ])
        square = r**2 - 2 * r * (w[i, :, p] @ h[i]) + (ww * hh).sum()
        data += -0.5 * (torch.log(2 * torch.pi * noise) + square / noise)
    return data, divergence(*latents), divergence(*weights)


# -- the bound ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_bound_is_that_of_the_dense_model(rng, shape):
    """With more places than outputs, too: they are outputs without observations and with weights of mean zero."""
    model, table = world(rng, shape)
    terms = model.elbo(worlds.whole_batch(table), worlds.generator())
    data, kl_latents, kl_weights = brute_force(model, table)
    assert_close(terms.expected_log_lik, data, EXACT_GP)
    assert_close(terms.kl_u + terms.kl_h, kl_latents + kl_weights, EXACT_GP)


def test_prior_and_posterior_alike_have_no_divergence():
    model = RegressionNetwork(
        torch.zeros(3, 1), make_kernel("rbf", 1), make_kernel("rbf", 1), Gaussian(), 4, 2, (2, 2), natural=False
    )
    batch = worlds.whole_batch(Grid(np.zeros((3, 1)), np.zeros((3, 4))))
    terms = model.elbo(batch, worlds.generator())
    assert_close(terms.kl_u, 0.0)
    assert_close(terms.kl_h, 0.0)


@pytest.mark.parametrize("likelihood", ["gaussian", "gaussian with a noise for each output", "bernoulli"])
def test_an_epoch_averages_to_the_full_bound(rng, monkeypatch, likelihood):
    model, table = world(rng, likelihood=LIKELIHOODS[likelihood](P))
    noise, view = worlds.normal(rng, N, L), model._view

    def with_fixed_draws(batch, generator):
        found = view(batch, generator)
        return found if found.noise is None else type(found)(**(vars(found) | {"noise": noise[batch.row.unique()]}))

    monkeypatch.setattr(model, "_view", with_fixed_draws)
    worlds.assert_epochs_average(model, table, rng)


def test_a_missing_output_adds_its_own_divergence_only(rng):
    model, table = world(rng)
    Y = table.Y.copy()
    Y[:, 5] = np.nan
    with torch.no_grad():
        without = model.elbo(worlds.whole_batch(Grid(table.X, Y[:, :5])), worlds.generator())
        with_it = model.elbo(worlds.whole_batch(Grid(table.X, Y)), worlds.generator())
    assert_close(with_it.expected_log_lik, without.expected_log_lik)
    assert torch.equal(with_it.kl_u, without.kl_u)
    assert_close(with_it.kl_h - without.kl_h, 0.5 * model.weights.mean[5].square().sum())


def test_draws_of_latents_are_unbiased(rng):
    """Likelihoods without a closed form take draws; for Gaussian noise in that guise, their average is known."""
    model, table = world(rng)
    batch = worlds.whole_batch(table)
    with torch.no_grad():
        exact = model.elbo(batch, worlds.generator()).expected_log_lik
        model.likelihood = worlds.Disguised(model.likelihood)
        draws = [model.elbo(batch, worlds.generator(seed)).expected_log_lik for seed in range(60)]
    assert_monte_carlo(torch.stack(draws), exact)


# -- natural steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_part_of_a_natural_step_rises(rng, monkeypatch, shape):
    """Each covariance goes to its optimum given the others, one after another, and so do the means."""
    model, table = world(rng, shape)
    batch, bounds, blend = worlds.whole_batch(table), [], TensorNormal.blend

    def watched(*arguments):
        blend(*arguments)
        bounds.append(model.elbo(batch, worlds.generator()).bound.item())

    monkeypatch.setattr(TensorNormal, "blend", watched)
    for _ in range(3):
        bounds.append(model.natural_elbo(batch, worlds.generator(), 1.0).bound.item())
    assert len(bounds) == 3 * (5 + len(shape))
    assert all(after > before - 1e-9 for before, after in itertools.pairwise(bounds))


def test_a_natural_step_leaves_no_gradient_of_what_moved_last(rng, monkeypatch):
    monkeypatch.setattr(sgprn, "_WEIGHT_ITERATIONS", 60)
    model, table = world(rng)
    batch = worlds.whole_batch(table)
    twin, norms = random_model(rng, natural=False, inputs=table.X), []
    for _ in range(2):
        twin.load_state_dict(model.state_dict())
        bound = twin.elbo(batch, worlds.generator()).bound
        gradients = torch.autograd.grad(bound, [twin.weights.factor3, twin.weights.mean])
        norms.append([float(gradients[0].tril().norm()), float(gradients[1].norm())])
        model.natural_elbo(batch, worlds.generator(), 1.0)
    assert norms[1][0] < 1e-9 * norms[0][0]
    # Conjugate gradients end at 1e-5 of where they began.
    assert norms[1][1] < 1e-4 * norms[0][1]


def test_with_the_weights_known_one_step_finds_the_exact_posterior_mean(rng):
    """Weights without variance make it a linear mixture of GPs, whose posterior mean is known."""
    model, table = world(rng)
    batch = worlds.whole_batch(table)
    with torch.no_grad():
        model.weights.set_covariance(0, 1e-12 * torch.eye(N))
        q = model._moments(model._view(batch, worlds.generator()), batch.outputs)
        for _ in range(20):
            view = model._view(batch, worlds.generator())
            q = model._moments(view, batch.outputs)
            model._step_latents(batch, view, q, *model._sites(batch, view, q), 1.0)
        Cf, _ = model.whitening()
        outputs = batch.outputs[batch.column]
        w = q.W[torch.unique(batch.row, return_inverse=True)[1], batch.column]
        K = (w @ w.T) * (Cf @ Cf.T)[batch.row][:, batch.row]
        Kyy = K + model.likelihood.noise[0] * torch.eye(len(batch.y))
        expected = K @ torch.linalg.solve(Kyy, batch.y - model.bias[outputs, 0])
        found = (w * (Cf @ model.latents.mean)[batch.row]).sum(-1)
    assert_close(found, expected, EXACT_GP)


# -- prediction --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def dense_factors(model, x, p):
    """Means and covariances of h and w_p at new inputs, by inverses."""
    (M, S, Kf), (U, V, Kw), places = dense(model)
    eye = torch.eye(model.latents.shape[1], dtype=torch.float64)
    kf, kw = (worlds.dense_covariance(kernel, x, model.inputs) for kernel in (model.latent_kernel, model.weight_kernel))
    same = (x.unsqueeze(1) == model.inputs).all(-1)
    kf = kf + model.latent_noise * same
    moments = []
    pick = torch.zeros(places, dtype=torch.float64)
    pick[p] = 1.0
    for k, prior, mean, covariance, K, chosen in (
        (kf, model.latent_kernel, M, S, Kf, eye),
        (kw, model.weight_kernel, U, V, Kw, torch.kron(eye, pick.unsqueeze(0))),
    ):
        A = torch.kron(k, chosen) @ torch.linalg.inv(K)
        own = worlds.dense_covariance(prior, x, x) + (model.latent_noise if prior is model.latent_kernel else 0.0)
        cross = torch.kron(k, chosen)
        moments.append((A @ mean, torch.kron(own, eye) - A @ cross.T + A @ covariance @ A.T))
    return moments


@pytest.mark.parametrize("at", ["an input of the fit", "a new input"])
def test_the_mixture_has_the_moments_of_the_product(rng, at):
    model = random_model(rng)
    x = model.inputs[1:2] if at == "an input of the fit" else worlds.normal(rng, 1, D)
    draws = 20_000
    means, variances = model.predictor(draws, 0)(x.expand(P, -1), torch.arange(P))
    for p in range(P):
        (h, S), (w, V) = dense_factors(model, x, p)
        mean, second = w @ h, ((V + torch.outer(w, w)) * (S + torch.outer(h, h))).sum()
        # Draws come in pairs of opposite sign: the mean has no error, and pairs are what is independent.
        assert_close(means[:, p].mean() - model.bias[p, 0], mean, EXACT_GP)
        squares = (means[:, p] - model.bias[p, 0]).square() + variances[:, p]
        assert_monte_carlo(squares.view(2, -1).mean(0), second)


def test_the_mixture_has_the_density_of_the_product(rng):
    """What is drawn and what is integrated differs between cells; the distribution does not."""
    model = random_model(rng)
    x, draws = worlds.normal(rng, 1, D), 4000
    means, variances = model.predictor(draws, 0)(x.expand(P, -1), torch.arange(P))
    noise = torch.Generator().manual_seed(1)
    for p in range(P):
        (h, S), (w, V) = dense_factors(model, x, p)
        z = torch.randn(2, 40_000, L, generator=noise, dtype=torch.float64)
        f = ((w + z[0] @ torch.linalg.cholesky(V).T) * (h + z[1] @ torch.linalg.cholesky(S).T)).sum(-1)
        for level in (-1.0, 0.5):
            # Of either, the standard error is at most 0.5 / √draws.
            ours = torch.special.ndtr((level + model.bias[p, 0] - means[:, p]) / variances[:, p].sqrt()).mean()
            assert abs(ours - (f < level).double().mean()) < 4.5 * 0.5 / np.sqrt(draws)


def test_predictions_do_not_depend_on_what_they_are_asked_with(rng):
    model = random_model(rng)
    x, outputs = worlds.normal(rng, 7, D), torch.as_tensor(rng.integers(P, size=7))
    x[2] = model.inputs[0]
    together = model.predictor(5, 3)(x, outputs)
    for i in range(7):
        alone = model.predictor(5, 3)(x[i : i + 1], outputs[i : i + 1])
        for a, b in zip(alone, together, strict=True):
            assert_close(a[:, 0], b[:, i])
