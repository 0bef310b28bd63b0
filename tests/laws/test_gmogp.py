"""G-MOGP: without attention it is independent GPs, with it the GPs that its definition says."""

import math

import numpy as np
import pytest
import torch

from manygp.data import Grid
from manygp.likelihoods import Gaussian
from manygp.models.gmogp import Attention
from manygp.models.indgp import SparseIndependentModel
from manygp.variational import InducingGP, KernelBatch, Mixture, NaturalPosterior

from ..tolerances import EXACT_GP, assert_close
from . import worlds
from .registry import LIKELIHOODS

P, D = 5, 2


@torch.no_grad()
def random_model(rng, Z, num_kernels=None, likelihood=None, attention=True):
    """A model with everything at random; without attention, every output is by itself."""
    mixture = Attention(P, num_kernels) if attention else None
    size = P if num_kernels is None else num_kernels
    kernels = worlds.shake(KernelBatch("rbf", D, size, mixture=mixture), rng, 0.3)
    if mixture is not None:
        mixture.similarity.copy_(torch.as_tensor(rng.uniform(-1, 1, (P, P))))
        mixture.weight.copy_(worlds.normal(rng, P, P))
    processes = InducingGP(kernels, Z.expand(P, -1, -1), NaturalPosterior(P, Z.shape[-2]), 1e-10)
    return SparseIndependentModel(processes, Gaussian(noise=0.3) if likelihood is None else likelihood)


@torch.no_grad()
def dense_attention(attention):
    """a_ij by loops, as its definition says."""
    a = torch.eye(P, dtype=torch.float64)
    for i in range(P):
        s = {}
        for j in set(range(P)) - {i}:
            value = float(attention.similarity[i, j] * attention.weight[i, j] + attention.bias[i, j])
            s[j] = value if value > 0 else 0.2 * value
        total = 1.0 + sum(math.exp(value) for value in s.values())
        for j, value in s.items():
            a[i, j] = math.exp(value) / total
    return a


@pytest.mark.parametrize("num_kernels", [None, 3])
def test_priors_are_mixed_by_attention(rng, num_kernels):
    model = random_model(rng, worlds.normal(rng, 4, D), num_kernels)
    kernels = model.processes.kernels
    attention, a = kernels.mixture, dense_attention(kernels.mixture)
    assert isinstance(attention, Mixture)
    plain = KernelBatch("rbf", D, kernels.size)
    plain.kernel.load_state_dict(kernels.kernel.state_dict())
    x, z, which = worlds.normal(rng, 6, D), worlds.normal(rng, 3, D), torch.tensor([4, 0])
    with torch.no_grad():
        assert_close(attention.attend(which), a[which])
        weight = a if num_kernels is None else a @ attention.log_share.exp()
        K = torch.einsum("ij,jnm->inm", weight[which], plain.covariance(plain.rows(), x, z))
        assert_close(kernels.covariance(kernels.rows(which), x, z), K)
        diagonal = torch.einsum("ij,jn->in", weight[which], plain.diagonal(plain.rows(), x))
        assert_close(kernels.diagonal(kernels.rows(which), x), diagonal)
        assert_close(attention.means(which), a[which] @ attention.mean)


def test_mixtures_of_many_kernels_are_made_in_parts(rng, monkeypatch):
    model, x = random_model(rng, worlds.normal(rng, 4, D)), worlds.normal(rng, 6, D)
    kernels = model.processes.kernels

    def covariance():
        K = kernels.covariance(kernels.rows(), x, model.processes.Z)
        gradients = torch.autograd.grad(K.square().sum(), [*kernels.parameters()], allow_unused=True)
        return K, torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])

    whole = covariance()
    monkeypatch.setattr("manygp.variational.kernel_batch._MIXED_NUMBERS", 200)
    for ours, theirs in zip(covariance(), whole, strict=True):
        assert_close(ours, theirs)


def test_without_attention_outputs_are_independent(rng):
    """All attention at zero: bound, natural step and predictions are those of independent sparse GPs."""
    Z, table = worlds.normal(rng, 4, D), worlds.random_grid(rng, 8, P, D)
    model, alone = random_model(rng, Z), random_model(rng, Z, attention=False)
    attention = model.processes.kernels.mixture
    alone.processes.kernels.kernel.load_state_dict(model.processes.kernels.kernel.state_dict())
    batch, x, which = worlds.whole_batch(table), worlds.normal(rng, 9, D), torch.as_tensor(rng.integers(P, size=9))
    with torch.no_grad():
        attention.bias.fill_(-1e6)
        attention.mean.zero_()
        for rate in (1.0, 0.3):
            ours, theirs = (m.natural_elbo(batch, worlds.generator(), rate) for m in (model, alone))
            assert_close(ours.bound, theirs.bound)
        for ours, theirs in zip(*(m.predictor(1, 0)(x, which) for m in (model, alone)), strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("num_kernels", [None, 3])
def test_inducing_points_at_the_inputs_are_exact(rng, num_kernels):
    """With the best q(u) the bound is the evidence of GPs with the mixed means and kernels."""
    table = worlds.random_grid(rng, 7, P, D)
    model = random_model(rng, torch.as_tensor(table.X), num_kernels)
    kernels, X, evidence = model.processes.kernels, torch.as_tensor(table.X), 0.0
    with torch.no_grad():
        bound = model.natural_elbo(worlds.whole_batch(table), worlds.generator(), 1.0).bound
        K, mean = kernels.covariance(kernels.rows(), X, X), kernels.mixture.means()
        for p in range(P):
            y = torch.as_tensor(table.Y[:, p])
            seen = ~y.isnan()
            covariance = K[p][seen][:, seen] + 0.3 * torch.eye(int(seen.sum()))
            normal = torch.distributions.MultivariateNormal(mean[p].expand(len(covariance)), covariance)
            evidence += normal.log_prob(y[seen])
    assert_close(bound, evidence, EXACT_GP)


@pytest.mark.parametrize("likelihood", ["gaussian", "poisson"])
def test_an_epoch_averages_to_the_full_bound(rng, likelihood):
    Y = np.abs(np.round(worlds.random_grid(rng, 8, P, D).Y))
    Y[:, 2], Y[3] = np.nan, np.nan
    table = Grid(rng.standard_normal((8, D)), Y)
    model = random_model(rng, worlds.normal(rng, 4, D), 2, LIKELIHOODS[likelihood](P))
    model.processes.posterior = worlds.random_posterior("natural", (P, 4), rng)
    worlds.assert_epochs_average(model, table, rng, ("expected_log_lik", "kl_u", "bound"))


def test_a_missing_output_adds_its_own_kl_only(rng):
    table = worlds.random_grid(rng, 8, P - 1, D)
    model = random_model(rng, worlds.normal(rng, 4, D))
    model.processes.posterior = worlds.random_posterior("natural", (P, 4), rng)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    with torch.no_grad():
        without, with_it = (model.elbo(worlds.whole_batch(t), worlds.generator()) for t in (table, wider))
        own = model.processes.posterior.moments().kl()[P - 1]
    assert_close(with_it.expected_log_lik, without.expected_log_lik)
    assert_close(with_it.kl_u - without.kl_u, own)


@pytest.mark.parametrize("m", [4, 6])
def test_parameters_are_counted_as_in_the_paper(rng, m):
    model = random_model(rng, worlds.normal(rng, m, D))
    attention, posterior = model.processes.kernels.mixture, model.processes.posterior
    stored = [attention.weight, attention.bias, model.processes.Z, posterior.theta, posterior.precision]
    assert model.num_parameters == sum(part.numel() for part in stored) == 2 * P**2 + m * D * P + m * P + m**2 * P
