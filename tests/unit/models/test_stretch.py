"""One factor of all lengthscales by cells held out, and every q(u) at its optimum."""

import numpy as np
import pytest
import torch

from manygp.data import Grid
from manygp.likelihoods import Gaussian
from manygp.models.indgp import SparseIndependentModel
from manygp.models.stretch import stretch_lengthscales
from manygp.variational import InducingGP, KernelBatch, NaturalPosterior

from ...laws import worlds
from ...tolerances import PREDICTION, assert_close

N, P = 24, 40


def draws(rng, lengthscale):
    """Draws of one GP, of which half have lost a third of their cells in one piece."""
    X = np.linspace(0.0, 8.0, N)[:, None]
    K = np.exp(-0.5 * (X - X.T) ** 2 / lengthscale**2) + 1e-6 * np.eye(N)
    Y = np.linalg.cholesky(K) @ rng.standard_normal((N, P)) + 0.1 * rng.standard_normal((N, P))
    Y[N // 3 : 2 * N // 3, ::2] = np.nan
    return Grid(X, Y)


def model_of(table):
    """GPs with lengthscale 1 and inducing points at the inputs."""
    kernels = KernelBatch("rbf", 1, P, log_parameters=True)
    kernels.rescale(torch.ones(1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    Z = torch.as_tensor(table.X).expand(P, N, 1)
    return SparseIndependentModel(InducingGP(kernels, Z, NaturalPosterior(P, N), 1e-6), Gaussian(noise=0.01))


@pytest.mark.parametrize(("truth", "low", "high"), [(0.6, 0.5, 0.7), (1.0, 0.9, 1.1), (1.25, 1.1, 1.25)])
def test_lengthscales_go_to_where_the_data_have_them(rng, truth, low, high):
    table = draws(rng, truth)
    model, scaling = model_of(table), worlds.raw(table)
    factor = stretch_lengthscales(model, table, scaling, rng)
    assert low <= factor <= high
    assert_close(model.processes.units, torch.tensor([factor], dtype=torch.float64))
    # Inducing points are where they were.
    assert_close(model.processes.Z * model.processes.units, torch.as_tensor(table.X).expand(P, N, 1))
    with torch.no_grad():
        batch = worlds.whole_batch(table)
        settled = model.elbo(batch, worlds.generator()).bound
        assert_close(settled, model.natural_elbo(batch, worlds.generator(), 1.0).bound, PREDICTION)


def test_without_cells_to_hold_out_only_the_posterior_moves(rng):
    table = draws(rng, 0.6)
    lonely = Grid(table.X[:1], table.Y[:1])
    model = model_of(table)
    assert stretch_lengthscales(model, lonely, worlds.raw(lonely), rng) == 1.0
    assert model.processes.posterior.theta.any()
