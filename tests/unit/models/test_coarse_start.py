"""Starts that inducing points can follow: found by the bound, and only where they are needed."""

import gpytorch
import numpy as np
import pytest
import torch

import manygp
from manygp.data import Grid
from manygp.models import coarse_start
from manygp.training import settle

from ...laws import worlds
from ...tolerances import assert_close


def many_inputs(rng, d=8, n=150, p=4):
    """Mixtures of two functions of many inputs."""
    X = rng.uniform(-1.0, 1.0, (n, d))
    waves = np.cos(X @ rng.standard_normal((d, 200)) + rng.uniform(0.0, 2.0 * np.pi, 200))
    F = waves @ rng.standard_normal((200, 2)) / 10.0
    return Grid(X, F @ rng.standard_normal((2, p)) + 0.05 * rng.standard_normal((n, p)))


def begin(table, monkeypatch, coarse=False, **settings):
    """A model at its start, with or without a look at what inducing points leave open."""
    if not coarse:
        monkeypatch.setattr("manygp.estimators.tlvmogp_start.coarsen", lambda *_: False)
    torch.manual_seed(0)
    estimator = manygp.TLVMOGP(latent_dim=2, standardize="output", **settings)
    model, scaling = estimator._begin(table, np.random.default_rng(0), torch.Generator())
    monkeypatch.undo()
    return model, scaling, estimator._plan(table, scaling)


def test_the_bound_of_the_start_rises_by_far_where_points_are_few(rng, monkeypatch):
    table = many_inputs(rng)
    bounds = []
    for coarse in (False, True):
        model, _, plan = begin(table, monkeypatch, coarse, num_inducing=30)
        bounds.append(settle(model, plan, dtype=torch.float64, device=worlds.CPU, seed=0))
    assert bounds[1] > bounds[0] + 1.0


def test_nothing_moves_where_points_see_everything(rng, monkeypatch):
    X = np.linspace(0.0, 1.0, 40)[:, None]
    table = Grid(X, np.sin(6.0 * X + np.arange(4.0)) + 0.1 * rng.standard_normal((40, 4)))
    model, scaling, _ = begin(table, monkeypatch, num_inducing=60)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    assert not coarse_start.coarsen(model, table, scaling, rng)
    for name, value in model.named_parameters():
        assert_close(value, before[name])


@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "student-t"},
        {"kernel": gpytorch.kernels.ScaleKernel(gpytorch.kernels.RQKernel())},
        {"embedding": torch.nn.Linear(10, 3).double()},
    ],
    ids=["likelihood", "kernel", "embedding"],
)
def test_other_kernels_likelihoods_and_embeddings_start_as_they_are(rng, monkeypatch, settings):
    table = many_inputs(rng)
    model, scaling, _ = begin(table, monkeypatch, num_inducing=30, **settings)
    assert not coarse_start.coarsen(model, table, scaling, rng)


def test_noise_is_never_below_and_lengthscales_never_shorter_than_the_data_said(rng, monkeypatch):
    table = many_inputs(rng)
    fine, coarse = (begin(table, monkeypatch, coarse, num_inducing=30)[0] for coarse in (False, True))
    d = table.num_features
    lengthscales = [model.gp.kernel.base_kernel.lengthscale.detach()[0] for model in (fine, coarse)]
    assert (lengthscales[1][:d] >= 0.999 * lengthscales[0][:d]).all()
    assert (lengthscales[1][d:] <= 1.001 * lengthscales[0][d:]).all()
    assert coarse.likelihood.noise.mean() >= 0.999 * fine.likelihood.noise.mean()
    assert lengthscales[1][0] > 1.3 * lengthscales[0][0]
