"""Marginals of q(f), and the batch as tensors."""

import numpy as np
import pytest
import torch

from manygp.data import Batch
from manygp.variational import CellBatch, Conditional, ElboTerms, InducingGP

from ...laws import worlds
from ...laws.registry import KERNELS
from ...tolerances import EXACT_GP, assert_close


@pytest.mark.parametrize("kernel", KERNELS)
def test_q_at_the_prior_gives_the_prior_back(rng, kernel):
    model = worlds.random_model(rng, kernel=kernel)
    worlds.set_points(model, worlds.normal(rng, 6, 4))
    e = worlds.normal(rng, 9, 4)
    with torch.no_grad():
        mean, variance = model.gp.conditional()(e)
    assert_close(mean, torch.zeros(9))
    assert_close(variance, worlds.dense_covariance(model.gp.kernel, e, e).diagonal())


@pytest.mark.parametrize("kernel", KERNELS)
def test_at_the_inducing_points_the_marginals_are_q_of_u(rng, kernel):
    gp = worlds.random_model(rng, kernel=kernel).gp
    gp.jitter = 0.0
    with torch.no_grad():
        conditional = gp.conditional()
        mean, variance = conditional(gp.Z)
        q, Kuu = gp.posterior.moments(), worlds.dense_covariance(gp.kernel, gp.Z, gp.Z)
    assert isinstance(conditional, Conditional)
    L = torch.linalg.cholesky(Kuu)
    assert_close(mean, L @ q.mean, EXACT_GP)
    assert_close(variance, (L @ q.covariance @ L.T).diagonal(), EXACT_GP)


def test_whitening_inverts_the_covariance(rng):
    gp = worlds.random_model(rng).gp
    with torch.no_grad():
        Linv = gp.whitening()
    Kuu = worlds.dense_covariance(gp.kernel, gp.Z.detach(), gp.Z.detach())
    assert_close(Linv @ Kuu @ Linv.T, torch.eye(6), EXACT_GP)


def test_inducing_points_are_copied_parameters(rng):
    Z = worlds.normal(rng, 5, 4)
    gp = InducingGP(worlds.random_kernel("rbf", 4, rng), Z, worlds.random_posterior("natural", 5, rng))
    with torch.no_grad():
        gp.Z.zero_()
    assert float(Z.abs().sum()) > 0
    assert gp.Z.requires_grad


def test_natural_steps_are_for_natural_posteriors(rng):
    model = worlds.random_model(rng, posterior="cholesky")
    before = model.gp.posterior.moments()
    model.natural_elbo(worlds.whole_batch(worlds.random_grid(rng)), worlds.generator(), 1.0)
    assert torch.equal(model.gp.posterior.moments().mean, before.mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_become_tensors(dtype):
    arrays = Batch(
        x=np.ones((3, 2)),
        outputs=np.array([4, 7]),
        column=np.array([0, 1, 1]),
        row=np.array([0, 0, 1]),
        y=np.arange(3.0),
        cell_weight=2.0,
        output_weight=np.array([2.0, 1.0]),
    )
    batch = CellBatch.from_arrays(arrays, dtype, worlds.CPU)
    assert batch.x.dtype == batch.y.dtype == dtype
    assert batch.output_weight.dtype == torch.float64
    assert batch.outputs.dtype == batch.column.dtype == torch.int64
    assert batch.cell_weight == 2.0


def test_the_bound_is_data_minus_divergences():
    terms = ElboTerms(torch.tensor(10.0), torch.tensor(3.0), torch.tensor(0.5))
    assert_close(terms.bound, 6.5)
