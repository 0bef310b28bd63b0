"""OILMM against dense models of its definition: likelihood, bound and predictions, complete and with gaps."""

import math

import numpy as np
import pytest
import torch

from manygp.data import Grid, GridPlan
from manygp.likelihoods import Gaussian
from manygp.models.coupled import COUPLED
from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel
from manygp.models.orthogonal import PROJECTIONS, Basis
from manygp.variational import CellBatch, InducingGP, KernelBatch

from ..tolerances import EXACT_GP, assert_close
from . import worlds

N, P, L, D = 8, 6, 3, 2


@torch.no_grad()
def random_model(rng, projection="matched", Z=None, separate=False, **settings):
    """A model with everything at random; in a `separate` basis every output has a share in one process alone."""
    kernels = worlds.shake(KernelBatch("rbf", D, L), rng, 0.3)
    if Z is None:
        processes = ExactProcesses(kernels, D)
    else:
        q = worlds.random_posterior("natural", (L, len(Z)), rng)
        processes = InducingGP(kernels, Z.expand(L, -1, -1), q, jitter=1e-10)
    processes.units.copy_(torch.as_tensor(0.5 + rng.uniform(size=D)))
    basis = worlds.shake(Basis(P, L), rng)
    basis.weight.copy_(worlds.normal(rng, P, L))
    if separate:
        basis.weight.mul_(torch.eye(L).repeat(P // L, 1))
    return OrthogonalMixingModel(basis, processes, Gaussian(noise=0.3), projection, **settings)


def dense_covariance(model, x, outputs):
    """Covariance of f = H (z + ξ) at cells: Σ_l H_pl H_p'l (k_l(x, x') + D_l [x = x'])."""
    kernels = model.processes.kernels
    with torch.no_grad():
        K = kernels.covariance(kernels.rows(), x / model.processes.units, x / model.processes.units)
        H, same = model.basis.H[outputs], (x.unsqueeze(0) == x.unsqueeze(1)).all(-1)
        return sum(torch.outer(H[:, j], H[:, j]) * (K[j] + model.basis.D[j] * same) for j in range(L))


def dense_log_likelihood(model, batch):
    outputs = batch.outputs[batch.column]
    covariance = dense_covariance(model, batch.x, outputs) + 0.3 * torch.eye(len(batch.y))
    return torch.distributions.MultivariateNormal(torch.zeros_like(batch.y), covariance).log_prob(batch.y)


def dense_posterior(model, batch, x, outputs):
    """Means and variances of f at cells given a batch."""
    K = dense_covariance(model, torch.cat([x, batch.x]), torch.cat([outputs, batch.outputs[batch.column]]))
    b = len(x)
    weights = torch.linalg.solve(K[b:, b:] + 0.3 * torch.eye(len(batch.y)), K[b:, :b])
    return weights.T @ batch.y, K[:b, :b].diagonal() - (K[:b, b:] * weights.T).sum(-1)


def some_cells(rng, table):
    """Cells at new inputs and at those of the table."""
    x = torch.cat([worlds.normal(rng, 4, D), torch.as_tensor(table.X[:4])])
    return x, torch.as_tensor(rng.integers(P, size=8))


def table_of(rng, kind):
    return worlds.random_grid(rng, N, P, D, missing=0.0 if kind == "complete" else 0.4)


# Complete rows, and gaps where outputs have a share in one process only: U_oᵀU_o is diagonal.
EXACT = [("complete", False), ("gaps", True)]


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize(("kind", "separate"), EXACT)
def test_the_likelihood_is_that_of_the_dense_model(rng, kind, separate, projection):
    model = random_model(rng, projection, separate=separate)
    Y = table_of(rng, kind).Y
    if separate:
        # The pseudo-inverse takes a process without observations for one that is known.
        Y[:, :L] = np.where(np.isnan(Y[:, :L]), 0.5, Y[:, :L])
    batch = worlds.whole_batch(Grid(rng.standard_normal((N, D)), Y))
    assert_close(model.log_likelihood(model.rows(batch)), dense_log_likelihood(model, batch), EXACT_GP)


def test_matched_rows_may_leave_processes_out(rng):
    model = random_model(rng, separate=True)
    batch = worlds.whole_batch(worlds.random_grid(rng, N, P, D, missing=0.7))
    assert_close(model.log_likelihood(model.rows(batch)), dense_log_likelihood(model, batch), EXACT_GP)


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
def test_a_single_row_is_exact_whatever_its_gaps(rng, missing):
    """Matched sites have the density of the row, and lead to the marginals that it leads to."""
    model, batch = random_model(rng), worlds.whole_batch(worlds.random_grid(rng, 1, P, D, missing))
    rows = model.rows(batch)
    assert_close(model.log_likelihood(rows), dense_log_likelihood(model, batch), EXACT_GP)
    with torch.no_grad():
        sites, prior = model.sites(rows), model._prior_variance() + model.basis.D
        H = model.basis.H[batch.outputs[batch.column]]
        Σ = torch.linalg.inv(H.T @ H / 0.3 + torch.diag(1.0 / prior))
        precision = 1.0 / sites.noise[0] + 1.0 / prior
        assert_close(1.0 / precision, Σ.diagonal())
        assert_close(sites.mean[0] / sites.noise[0] / precision, Σ @ H.T @ batch.y / 0.3)


def test_the_pseudo_inverse_is_the_formula_of_the_paper(rng):
    model, table = random_model(rng, "pseudo-inverse", regularisation=1.6), table_of(rng, "gaps")
    batch = worlds.whole_batch(table)
    U, S, σ2 = model.basis.U.detach(), model.basis.S.detach(), 0.3
    sites = model.sites(model.rows(batch))
    assert_close(U.T @ U, torch.eye(L))
    for row, y in enumerate(torch.as_tensor(table.Y)):
        seen = ~y.isnan()
        Uo, yo = U[seen], y[seen]
        T = torch.diag(S.rsqrt()) @ torch.linalg.pinv(Uo)
        spread = torch.linalg.pinv(Uo.T @ Uo).diagonal()
        residual = (yo - Uo @ torch.diag(S.sqrt()) @ T @ yo).square().sum() / σ2
        penalty = S.log().sum() - spread.log().sum() + (len(yo) - L) * math.log(2 * math.pi * σ2) + residual
        assert_close(sites.mean[row], T @ yo)
        assert_close(sites.noise[row], σ2 * spread / S)
        assert_close(sites.log_scale[row], -0.5 * penalty)
    plain = OrthogonalMixingModel(model.basis, model.processes, model.likelihood, "pseudo-inverse")
    rows = model.rows(batch)
    assert_close(
        model.log_likelihood(rows) - plain.log_likelihood(rows), 0.6 * model.sites(rows).log_scale.sum(), EXACT_GP
    )


def test_matched_sites_tend_to_the_pseudo_inverse_under_a_wide_prior(rng):
    model = random_model(rng)
    rows = model.rows(worlds.whole_batch(worlds.random_grid(rng, N, P, D, missing=0.15)))
    with torch.no_grad():
        model.processes.kernels.rescale(torch.ones(1, D), torch.tensor([1e7]))
        matched = model.sites(rows)
        model.projection = "pseudo-inverse"
        published = model.sites(rows)
        known = (rows.count >= L).unsqueeze(-1)
        assert known.any()
        np.testing.assert_allclose(*((known * sites.mean).numpy() for sites in (matched, published)), rtol=1e-4)
        np.testing.assert_allclose(*((known * sites.noise).numpy() for sites in (matched, published)), rtol=1e-4)


# -- predictions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sparse", "projection"), [(False, "matched"), (True, "matched"), (True, COUPLED)])
@pytest.mark.parametrize(("kind", "separate"), EXACT)
def test_predictions_are_those_of_the_dense_model(rng, kind, separate, sparse, projection):
    """At new inputs and at those of the table, where the noise that outputs share is known in part."""
    table = table_of(rng, kind)
    model = random_model(rng, projection, separate=separate, Z=torch.as_tensor(table.X) if sparse else None)
    batch = worlds.whole_batch(table)
    rows = model.rows(batch)
    if sparse:
        with torch.no_grad():
            model.processes.Z.div_(model.processes.units)
            model.bound(rows, rate=1.0)
    model.remember([rows])
    cells = some_cells(rng, table)
    mean, variance = model.predictor(1, 0)(*cells)
    exact = dense_posterior(model, batch, *cells)
    assert_close(mean[0], exact[0], EXACT_GP)
    assert_close(variance[0], exact[1], EXACT_GP)


def test_coupled_processes_have_the_means_of_the_dense_model(rng):
    """Whatever the gaps: processes that are independent of each other in q have exact means."""
    table = table_of(rng, "gaps")
    model, batch = random_model(rng, COUPLED, Z=torch.as_tensor(table.X)), worlds.whole_batch(table)
    rows = model.rows(batch)
    with torch.no_grad():
        model.processes.Z.div_(model.processes.units)
        for _ in range(3):
            model.bound(rows, rate=1.0)
    model.remember([rows])
    cells = some_cells(rng, table)
    mean, variance = model.predictor(1, 0)(*cells)
    exact = dense_posterior(model, batch, *cells)
    assert_close(mean[0], exact[0], EXACT_GP)
    # Variances are not: each process takes the others for known.
    assert (variance[0] > 0.3 * exact[1]).all()
    assert (variance[0] < 1.5 * exact[1]).all()


# -- the bound of sparse processes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "separate"), [*EXACT, ("gaps", False)])
def test_coupled_rows_give_a_bound(rng, kind, separate):
    """It is the likelihood where rows leave processes independent, and below it elsewhere."""
    table = table_of(rng, kind)
    model, batch = random_model(rng, COUPLED, Z=torch.as_tensor(table.X), separate=separate), worlds.whole_batch(table)
    with torch.no_grad():
        model.processes.Z.div_(model.processes.units)
        bounds = [model.elbo(batch, worlds.generator()).bound]
        bounds += [model.natural_elbo(batch, worlds.generator(), rate).bound for rate in (0.3, 1.0, 1.0)]
    exact = dense_log_likelihood(model, batch)
    assert bounds[0] < bounds[1] < bounds[2] <= bounds[3] + 1e-6
    if (kind, separate) in EXACT:
        assert_close(bounds[3], exact, EXACT_GP)
    else:
        assert bounds[3] < exact - 0.01


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_the_bound_reaches_the_likelihood_with_inducing_points_at_the_inputs(rng, projection):
    table = table_of(rng, "gaps")
    model = random_model(rng, projection, Z=torch.as_tensor(table.X))
    batch, exact = worlds.whole_batch(table), ExactProcesses(model.processes.kernels, D)
    exact.units.copy_(model.processes.units)
    with torch.no_grad():
        model.processes.Z.div_(model.processes.units)
        before = model.elbo(batch, worlds.generator()).bound
        after = model.natural_elbo(batch, worlds.generator(), 1.0).bound
        again = model.natural_elbo(batch, worlds.generator(), 0.5).bound
        whole = OrthogonalMixingModel(model.basis, exact, model.likelihood, projection)
        expected = whole.log_likelihood(whole.rows(batch))
    assert before < after
    assert_close(after, expected, EXACT_GP)
    assert_close(again, expected, EXACT_GP)


@pytest.mark.parametrize("projection", [*PROJECTIONS, COUPLED])
@pytest.mark.parametrize("size", [1, 3])
def test_an_epoch_averages_to_the_full_bound(rng, projection, size):
    table = table_of(rng, "gaps")
    Y = table.Y.copy()
    Y[3], Y[:, 2] = np.nan, np.nan
    table = Grid(table.X, Y)
    model = random_model(rng, projection, Z=worlds.normal(rng, 4, D), regularisation=1.6)
    with torch.no_grad():
        full = model.elbo(worlds.whole_batch(table), worlds.generator())
        batches = GridPlan(table, worlds.raw(table), batch_inputs=size).epoch(rng)
        parts = [model.elbo(CellBatch.from_arrays(b, torch.float64, worlds.CPU), worlds.generator()) for b in batches]
    for term in ("expected_log_lik", "kl_u", "bound"):
        assert_close(torch.stack([getattr(part, term) for part in parts]).mean(), getattr(full, term))


def test_an_output_without_observations_changes_nothing(rng):
    Z = worlds.normal(rng, 4, D)
    model, table = random_model(rng, Z=Z), worlds.random_grid(rng, N, P - 1, D)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(N, np.nan)]))
    with torch.no_grad():
        bounds = [model.elbo(worlds.whole_batch(t), worlds.generator()).bound for t in (table, wider)]
    assert_close(*bounds)


def test_repeated_inputs_are_one_row(rng):
    """The noise that outputs share at an input is the same for all observations there."""
    model = random_model(rng)
    X = np.repeat(rng.standard_normal((4, D)), 2, axis=0)
    batch = worlds.whole_batch(Grid(X, rng.standard_normal((8, P))))
    assert len(model.rows(batch).x) == 4
    assert_close(model.log_likelihood(model.rows(batch)), dense_log_likelihood(model, batch), EXACT_GP)


@pytest.mark.parametrize("m", [4, 7])
def test_parameters_are_counted_as_in_the_paper(rng, m):
    model = random_model(rng, Z=worlds.normal(rng, m, D))
    assert model.num_parameters == 2 * L + L * m * D + L * m + L * m**2
    learned = [model.basis.raw_scale, model.basis.raw_noise, model.processes.Z]
    stored = [model.processes.posterior.theta, model.processes.posterior.precision]
    assert model.num_parameters == sum(part.numel() for part in learned + stored)
    assert random_model(rng).num_parameters == 2 * L
