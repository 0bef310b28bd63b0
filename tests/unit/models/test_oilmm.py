"""Parts of OILMM: the basis, rows through it, where it begins and how it climbs."""

import itertools

import numpy as np
import pytest
import torch

from manygp.data import Scaling
from manygp.data.factorisation import factorise
from manygp.errors import NumericalError
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.oilmm import initialise
from manygp.likelihoods import Gaussian
from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel, OrthogonalPredictor, climb_likelihood
from manygp.models.orthogonal import Basis, Rows, Sites, log_normal, project
from manygp.variational import CellBatch, Conditional, InducingGP, KernelBatch, NaturalPosterior

from ...laws import worlds
from ...tolerances import assert_close
from .test_svlmc import low_rank_table


def cells(x, outputs, y, p):
    outputs = torch.as_tensor(outputs)
    return CellBatch(x, y, torch.arange(p), outputs, 1.0, torch.ones(p, dtype=torch.float64), outputs)


@pytest.mark.parametrize("log_parameters", [True, False])
def test_a_basis_stays_orthonormal(rng, log_parameters):
    basis = worlds.shake(Basis(7, 3, log_parameters), rng)
    assert_close(basis.U.T @ basis.U, torch.eye(3))
    assert_close(basis.H, basis.U * basis.S.sqrt())
    S, D = torch.tensor([3.0, 1.0, 0.5]), torch.tensor([0.1, 0.2, 0.3])
    weight = torch.linalg.qr(worlds.normal(rng, 7, 3))[0]
    basis.start(weight, S, D)
    for found, expected in ((basis.U, weight), (basis.S, S.double()), (basis.D, D.double())):
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-6)


@pytest.mark.parametrize("p", [3, 40])
def test_rows_are_the_same_whatever_the_layout(rng, p):
    """A full grid groups rows by their gaps, a nearly empty one does not; both have the same sums."""
    U, row = worlds.normal(rng, p, 2), torch.tensor([0, 0, 1, 2, 2])
    x, outputs, y = worlds.normal(rng, 3, 1)[row], [0, 2, 1, 0, 2], worlds.normal(rng, 5)
    rows = Rows.gather(U, cells(x, outputs, y, p))
    assert len(rows.gram) == (2 if p == 3 else 3)
    for n in range(3):
        own = (row == n).nonzero()[:, 0]
        Uo = U[torch.tensor(outputs)[own]]
        assert_close(rows.gram[rows.pattern[n]], Uo.T @ Uo)
        assert_close(rows.pull[n], Uo.T @ y[own])
        assert_close(rows.power[n], y[own].square().sum())
        assert rows.count[n] == len(own)


def test_lots_of_rows_join(rng):
    U, table = worlds.normal(rng, 5, 2), worlds.random_grid(rng, 6, 5, 1)
    batch = worlds.whole_batch(table)
    first = batch.x[:, 0] <= float(np.median(table.X))
    parts = [Rows.gather(U, cells(batch.x[part], batch.column[part], batch.y[part], 5)) for part in (first, ~first)]
    joined, S, one = Rows.join(parts), torch.ones(2, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    for projection in ("matched", "pseudo-inverse"):
        whole = project(joined, S, S, one, projection)
        assert isinstance(whole, Sites)
        apart = [project(part, S, S, one, projection) for part in parts]
        assert_close(whole.mean, torch.cat([sites.mean for sites in apart]))
        assert_close(whole.log_scale, torch.cat([sites.log_scale for sites in apart]))


def test_log_normal(rng):
    residual, variance = worlds.normal(rng, 4), worlds.normal(rng, 4).exp()
    expected = torch.distributions.Normal(0.0, variance.sqrt()).log_prob(residual)
    assert_close(log_normal(residual, variance), expected)


def started(rng, table, latents=3, num_inducing=None):
    scaling = Scaling.fit(table, outputs="global")
    kernels = KernelBatch("rbf", 1, latents, log_parameters=True)
    processes = (
        ExactProcesses(kernels, 1)
        if num_inducing is None
        else InducingGP(kernels, torch.zeros(latents, num_inducing, 1), NaturalPosterior(latents, num_inducing))
    )
    model = OrthogonalMixingModel(Basis(table.num_outputs, latents, True), processes, Gaussian())
    found, factors = Lengthscales(np.array([0.3]), 1.0, 0.01), factorise(table, scaling, max(1, latents - 1))
    initialise(model, worlds.survey_of(table, rng), found, factors)
    return model, scaling


def test_the_start_spans_the_table(rng):
    table = low_rank_table(rng, missing=0.0)
    model, scaling = started(rng, table)
    Y = torch.as_tensor(scaling.scale_y(table.Y))
    U = model.basis.U.detach()
    assert (Y - Y @ U @ U.T).square().mean() < 0.02
    # S and kernels together have the variance of the projections.
    power = (Y @ U).square().mean(0)
    prior = (model.basis.S * model._prior_variance()).detach()
    assert (prior / power).log().abs().max() < 2.0


def test_a_table_of_lower_rank_is_completed(rng):
    model, _ = started(rng, low_rank_table(rng, num_outputs=6), latents=6)
    assert_close(model.basis.U.T @ model.basis.U, torch.eye(6))
    assert model.basis.S.min() < 0.01 * model.basis.S.max()


@pytest.mark.parametrize("num_inducing", [None, 6])
def test_climbing_finds_more_likelihood(rng, num_inducing):
    table = low_rank_table(rng)
    model, _ = started(rng, table, num_inducing=num_inducing)
    batch = worlds.whole_batch(table)
    history = climb_likelihood(model, lambda: model.rows(batch), table.num_observed, 15)
    course = history["bound"]
    assert history.stop_reason == ("epochs" if len(course) == 15 else "converged")
    assert course[-1] > course[0]
    # A divergence, and natural steps, where there is a q(u) and nowhere else.
    assert (history["kl_u"][-1] > 0.0) == (history["natural_rate"][-1] == 1.0) == (num_inducing is not None)
    assert min(history["seconds"]) > 0.0
    assert all(after >= before for before, after in itertools.pairwise(course))
    rows = model.rows(batch)
    final = model.log_likelihood(rows) if num_inducing is None else model.bound(rows, rate=1.0).bound
    np.testing.assert_allclose(float(final.detach()), course[-1], rtol=1e-6)
    model.remember([rows])
    predictor = model.predictor(1, 0)
    assert isinstance(predictor, OrthogonalPredictor)
    assert isinstance(predictor.conditional, Conditional)
    # Exact processes know no inducing variables whose uncertainty would be lost.
    assert (predictor.conditional.lost.shape[-2] == 0) == (num_inducing is None)


@pytest.mark.parametrize(
    ("error", "expected"), [(NumericalError("too far"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
@pytest.mark.parametrize("call", [2, 6])
def test_a_search_that_is_cut_short_keeps_what_it_had_and_says_so(rng, error, expected, call):
    table = low_rank_table(rng)
    model, _ = started(rng, table)
    batch, calls = worlds.whole_batch(table), []

    def rows():
        calls.append(1)
        if len(calls) == call:
            raise error
        return model.rows(batch)

    before = float(model.log_likelihood(model.rows(batch)).detach())
    history = climb_likelihood(model, rows, table.num_observed, 30)
    after = float(model.log_likelihood(model.rows(batch)).detach())
    assert history.stop_reason == expected
    assert after >= before
    np.testing.assert_allclose(history["bound"][-1], after, rtol=1e-9)


@pytest.mark.parametrize("how", ["error", "infinite"])
def test_a_search_that_finds_nothing_finite_is_no_fit(rng, monkeypatch, how):
    table = low_rank_table(rng)
    model, _ = started(rng, table)
    batch = worlds.whole_batch(table)

    def broken(rows):
        if how == "error":
            raise NumericalError("nothing")
        return torch.inf * model.basis.S.sum()

    monkeypatch.setattr(model, "log_likelihood", broken)
    with pytest.raises(NumericalError, match="not finite where the climb begins: check the data"):
        climb_likelihood(model, lambda: model.rows(batch), table.num_observed, 5)
