"""Ind-GP is scikit-learn's GP for every output; its sparse form is exact where inducing points are the inputs."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from manygp import IndGP
from manygp.data import Grid, GridPlan
from manygp.likelihoods import Gaussian
from manygp.models.exact import ExactBatch, log_evidence, stack_columns
from manygp.models.indgp import SparseIndependentModel
from manygp.variational import CellBatch, InducingGP, KernelBatch, NaturalPosterior

from ..tolerances import EXACT_GP, PREDICTION, assert_close
from . import worlds
from .conftest import NAMES, observations
from .registry import LIKELIHOODS

X_NEW = np.linspace(-0.2, 1.2, 9)[:, None]


def scikit_learn(model, output):
    """scikit-learn's GP with the parameters of an output, in scaled units."""
    i = 0 if model.share_kernel else output
    base = {"rbf": RBF, "matern32": lambda scale: Matern(scale, nu=1.5)}[model.kernel](model.lengthscale_[i])
    kernel = ConstantKernel(model.outputscale_[i]) * base + WhiteKernel(model.noise_[i])
    return GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)


@pytest.mark.parametrize("share_kernel", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_it_is_the_gp_of_scikit_learn(kernel, share_kernel):
    X, Y = observations()
    model = IndGP(kernel=kernel, share_kernel=share_kernel, device="cpu").fit(X, Y, output_names=NAMES)
    assert model.is_exact_
    scaling = model.scaling_
    mean, std = model.predict(X_NEW, return_std=True)
    evidence = 0.0
    for p in range(5):
        seen = ~np.isnan(Y[:, p])
        gp = scikit_learn(model, p)
        gp.fit(scaling.scale_x(X[seen]), scaling.scale_y(Y[seen, p], np.array(p)))
        expected = gp.predict(scaling.scale_x(X_NEW), return_std=True)
        assert_close(mean[:, p], scaling.unscale_mean(expected[0], np.array(p)), PREDICTION)
        assert_close(std[:, p], expected[1] * scaling.y_scale[p], PREDICTION)
        evidence += gp.log_marginal_likelihood_value_
    assert_close(model.history_["bound"][-1], evidence, EXACT_GP)


def test_no_neighbour_has_more_evidence():
    """With a shared kernel, nothing but the evidence decides: the fit is a maximum of it."""
    X, Y = observations()
    model = IndGP(share_kernel=True, device="cpu").fit(X, Y).model_
    rows, which = model.parameter_rows(), torch.tensor([0])
    best = model.log_evidence(rows, which)
    for k in range(rows.shape[1]):
        for step in (-0.05, 0.05):
            moved = rows.clone()
            moved[0, k] += step
            assert model.log_evidence(moved, which) < best


def test_the_backward_of_the_evidence(rng):
    """The hand-written derivatives agree with finite differences."""
    A, Y = worlds.normal(rng, 2, 4, 4).requires_grad_(), worlds.normal(rng, 2, 4, 3).requires_grad_()
    eye, count = torch.eye(4, dtype=torch.float64), torch.tensor([3, 2])
    assert torch.autograd.gradcheck(lambda A, Y: log_evidence(A @ A.mT + eye, Y, count), (A, Y))


# -- sparse ------------------------------------------------------------------------------------------------------------


def sparse_model(rng, num_outputs, Z, likelihood, share=False):
    size = 1 if share else num_outputs
    kernels = worlds.shake(KernelBatch("rbf", Z.shape[-1], size), rng, 0.3)
    processes = InducingGP(kernels, Z.expand(size, -1, -1), NaturalPosterior(num_outputs, Z.shape[-2]), 1e-10)
    bias = None if likelihood.is_affine else worlds.normal(rng, num_outputs, 1)
    return SparseIndependentModel(processes, likelihood, bias)


@pytest.mark.parametrize("share", [True, False])
def test_inducing_points_at_the_inputs_are_exact(rng, share):
    table = worlds.random_grid(rng, 7, 4)
    likelihood = worlds.shake(Gaussian(4, noise=0.3, per_output=not share), rng)
    model = sparse_model(rng, 4, torch.as_tensor(table.X), likelihood, share)
    exact = ExactBatch(model.processes.kernels, likelihood, stack_columns(table, worlds.raw(table)))
    batch = worlds.whole_batch(table)
    with torch.no_grad():
        bound = model.natural_elbo(batch, worlds.generator(), 1.0).bound
        rows = exact.parameter_rows()
        evidence = exact.log_evidence(rows, torch.arange(len(rows))).sum()
        assert_close(bound, evidence, EXACT_GP)
        x, outputs = worlds.normal(rng, 9, 2), torch.as_tensor(rng.integers(4, size=9))
        for ours, theirs in zip(model.predictor(1, 0)(x, outputs), exact.predictor(1, 0)(x, outputs), strict=True):
            assert_close(ours, theirs, EXACT_GP)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_an_epoch_averages_to_the_full_bound(rng, likelihood):
    table = worlds.random_grid(rng, 8, 5)
    Y = np.abs(np.round(table.Y)) if not LIKELIHOODS[likelihood](5).is_affine else table.Y.copy()
    Y = np.minimum(Y, 1.0)
    Y[:, 2], Y[3] = np.nan, np.nan
    table = Grid(table.X, Y)
    model = sparse_model(rng, 5, worlds.normal(rng, 4, 2), LIKELIHOODS[likelihood](5))
    model.processes.posterior = worlds.random_posterior("natural", (5, 4), rng)
    worlds.assert_epochs_average(model, table, rng, ("expected_log_lik", "kl_u", "bound"))


def test_natural_steps_on_batches_average_to_that_on_all(rng):
    """Gaussian noise: the targets of all batches of inputs average to the target of the whole table."""
    table = worlds.random_grid(rng, 8, 3)
    model = sparse_model(rng, 3, worlds.normal(rng, 4, 2), Gaussian(3, per_output=True))
    posterior, targets = model.processes.posterior, []
    with torch.no_grad():
        model.natural_elbo(worlds.whole_batch(table), worlds.generator(), 1.0)
        whole = posterior.precision.clone(), posterior.theta.clone()
        for batch in GridPlan(table, worlds.raw(table), 3).epoch(rng):
            model.natural_elbo(CellBatch.from_arrays(batch, torch.float64, worlds.CPU), worlds.generator(), 1.0)
            targets.append((posterior.precision.clone(), posterior.theta.clone()))
    for expected, parts in zip(whole, zip(*targets, strict=True), strict=True):
        assert_close(torch.stack(parts).mean(0), expected)


def test_a_missing_output_adds_its_own_kl_only(rng):
    table = worlds.random_grid(rng, num_outputs=4)
    model = sparse_model(rng, 5, worlds.normal(rng, 4, 2), Gaussian())
    model.processes.posterior = worlds.random_posterior("natural", (5, 4), rng)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    with torch.no_grad():
        without, with_it = (model.elbo(worlds.whole_batch(t), worlds.generator()) for t in (table, wider))
        own = model.processes.posterior.moments().kl()[4]
    assert_close(with_it.expected_log_lik, without.expected_log_lik)
    assert_close(with_it.kl_u - without.kl_u, own)
