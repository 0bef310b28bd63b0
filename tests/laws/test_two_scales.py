"""Inducing points and neighbours together are one dense model: exact, FITC and plain Vecchia are its limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from manygp.data import Grid, GroupPlan
from manygp.data.groups import Stretch, group_cells, lose_stretches
from manygp.models import tiles
from manygp.models.nearness import Nearness
from manygp.models.neighbors import NeighborPredictor, ObservedCells
from manygp.models.tiles import Conditioned, in_units, rows_of
from manygp.terms import OwnPart, Points, SharedPart, SharedShocks
from manygp.variational import CellBatch, Groups, NaturalPosterior, PosteriorMoments, VecchiaEvidence, projected_rows

from ..tolerances import EXACT_GP, SAME_FORMULA, assert_close
from . import worlds

ALL = 1000


def evidence_of(A, R, y, grouping):
    members = torch.as_tensor(grouping.members(np.arange(len(grouping))))
    groups = Groups(members.clamp(min=0), members >= 0, grouping.given.shape[1])
    at = groups.index
    return VecchiaEvidence.from_groups(A, R[at.unsqueeze(-1), at.unsqueeze(-2)], y, groups)


def best_bound(evidence, m):
    posterior = NaturalPosterior(m)
    posterior.step(*evidence.natural_target(posterior, 1.0), 1.0)
    q = posterior.moments()
    return evidence.expected_log_lik(q) - q.kl()


@pytest.fixture
def cells(rng):
    """Rows A, a covariance R with R − A Aᵀ positive definite, values, and coordinates of 23 cells."""
    A = 0.5 * worlds.normal(rng, 23, 4)
    return A, A @ A.T + worlds.positive_definite(rng, 23), worlds.normal(rng, 23), rng.standard_normal((23, 2))


def test_all_earlier_cells_give_the_exact_gp(rng, cells):
    A, R, y, z = cells
    found = best_bound(evidence_of(A, R, y, group_cells(z, 4, ALL, rng)), 4)
    assert_close(found, MultivariateNormal(torch.zeros_like(y), R).log_prob(y), SAME_FORMULA)


@pytest.mark.parametrize(("size", "num_given"), [(1, 3), (4, 5), (3, 0)])
@pytest.mark.parametrize("lost", [(), (Stretch(np.array([3, 7, 11]), np.array([1, 2, 5]), np.arange(3.0)[:, None]),)])
def test_the_bound_is_the_log_likelihood_of_the_dense_model(rng, cells, size, num_given, lost):
    A, R, y, z = cells
    grouping = group_cells(z, size, num_given, rng, lost)
    S, n = R - A @ A.T, len(y)
    # The density of residuals, group by group, has the precision Σ_g B_gᵀ D_g⁻¹ B_g
    precision, seen = torch.zeros(n, n, dtype=torch.float64), set()
    for g in range(len(grouping)):
        own = grouping.cell[grouping.start[g] : grouping.start[g + 1]]
        given = grouping.given[g][grouping.given[g] >= 0]
        assert set(given) <= seen
        seen |= set(own)
        B = torch.zeros(len(own), n, dtype=torch.float64)
        B[range(len(own)), own] = 1.0
        b = torch.linalg.solve(S[np.ix_(given, given)], S[np.ix_(given, own)]).T
        B[:, given] = -b
        D = S[np.ix_(own, own)] - b @ S[np.ix_(given, own)]
        precision += B.T @ torch.linalg.solve(D, B)
    assert seen == set(range(n))
    dense = MultivariateNormal(torch.zeros_like(y), A @ A.T + torch.linalg.inv(precision))
    assert_close(best_bound(evidence_of(A, R, y, grouping), 4), dense.log_prob(y), SAME_FORMULA)


def test_no_neighbours_and_single_cells_give_fitc(rng, cells):
    A, R, y, z = cells
    fitc = A @ A.T + torch.diag(R.diagonal() - A.square().sum(-1))
    found = best_bound(evidence_of(A, R, y, group_cells(z, 1, 0, rng)), 4)
    assert_close(found, MultivariateNormal(torch.zeros_like(y), fitc).log_prob(y), SAME_FORMULA)


def test_no_inducing_points_give_plain_vecchia(rng, cells):
    _, R, y, z = cells
    grouping = group_cells(z, 1, 3, rng)
    total = torch.zeros((), dtype=torch.float64)
    for g, i in enumerate(grouping.cell):
        N = grouping.given[g][grouping.given[g] >= 0]
        b = torch.linalg.solve(R[np.ix_(N, N)], R[N, i])
        d = R[i, i] - b @ R[N, i]
        total += torch.distributions.Normal(b @ y[N], d.sqrt()).log_prob(y[i])
    found = best_bound(evidence_of(torch.zeros(len(y), 2, dtype=torch.float64), R, y, grouping), 2)
    assert_close(found, total, SAME_FORMULA)


def test_gradients_are_those_of_the_value(rng, cells):
    A, R, y, z = cells
    grouping = group_cells(z, 3, 4, rng)
    m, V = worlds.normal(rng, 4), worlds.positive_definite(rng, 4)
    nothing = torch.zeros((), dtype=torch.float64)

    def value(A, R, y, m, V):
        q = PosteriorMoments(m, 0.5 * (V + V.T), nothing)
        return evidence_of(A, 0.5 * (R + R.T), y, grouping).expected_log_lik(q)

    assert torch.autograd.gradcheck(value, tuple(part.requires_grad_() for part in (A, R, y, m, V)))


def test_gradients_of_projected_rows(rng):
    def rows(K, Kuu):
        Kuu = 0.5 * (Kuu + Kuu.T)
        return projected_rows(K, Kuu, torch.linalg.inv(torch.linalg.cholesky(Kuu)).detach())

    K, Kuu = worlds.normal(rng, 7, 3).requires_grad_(), worlds.positive_definite(rng, 3).requires_grad_()
    assert torch.autograd.gradcheck(rows, (K, Kuu))


# -- the model -----------------------------------------------------------------------------------------------------


def two_scale_model(rng, table, **settings):
    model = worlds.random_model(rng, features=table.num_features, num_outputs=table.num_outputs, **settings)
    p, h = table.num_outputs, model.latents.dim
    d = table.num_features
    terms = [OwnPart(p, h, d), SharedShocks(p, h, 2), SharedPart(p, h, d, 2, 1)]
    model.terms.extend(worlds.shake(term, rng) for term in terms)
    return model


def group_plan(model, table, size=3, num_given=4, batch_cells=1000):
    plan = GroupPlan(table, worlds.raw(table), batch_cells, size, num_given, np.random.default_rng(0))
    row, output, _ = table.cells(plan.places)
    at_input, at_output = model.coordinates_of(torch.as_tensor(table.X), torch.arange(table.num_outputs))
    plan.arrange(np.concatenate([at_input[row], at_output[output]], axis=1))
    return plan


def bound_of(model, plan, rng_seed=0):
    batches = [CellBatch.from_arrays(b, torch.float64, worlds.CPU) for b in plan.epoch(np.random.default_rng(rng_seed))]
    values = [model.elbo(batch, torch.Generator().manual_seed(0)).bound for batch in batches]
    return torch.stack(values).mean()


@pytest.fixture
def table(rng):
    """Gaps at random, and one output without a cell."""
    grid = worlds.random_grid(rng, num_inputs=8, num_outputs=4)
    Y = grid.Y.copy()
    Y[:, 2] = np.nan
    return Grid(grid.X, Y)


def dense_covariance(model, table):
    """Covariance of all observed cells in the model, and the values."""
    row, output, y = table.cells(table.places())
    x, outputs = torch.as_tensor(table.X[row]), torch.as_tensor(output)
    h = model.latents.means(outputs)
    points = Points(x, outputs, torch.as_tensor(row), h)
    R = model.covariance(points, model.embed(x, h)) + model.likelihood.noise_of(outputs).diag()
    return R, torch.as_tensor(y)


def test_a_model_given_all_earlier_cells_has_the_evidence_of_the_exact_gp(rng, table):
    model = two_scale_model(rng, table)
    plan = group_plan(model, table, num_given=ALL)
    batch = CellBatch.from_arrays(next(plan.epoch(rng)), torch.float64, worlds.CPU)
    with torch.no_grad():
        model.natural_elbo(batch, torch.Generator().manual_seed(0), 1.0)
        terms = model.elbo(batch, torch.Generator().manual_seed(0))
        R, y = dense_covariance(model, table)
    exact = MultivariateNormal(torch.zeros_like(y), R).log_prob(y)
    assert_close(terms.expected_log_lik - terms.kl_u, exact, EXACT_GP)


def test_an_epoch_averages_to_the_full_bound(rng, table):
    model = two_scale_model(rng, table)
    with torch.no_grad():
        full = bound_of(model, group_plan(model, table))
        parts = group_plan(model, table, batch_cells=6)
        assert len(parts) > 2
        assert_close(bound_of(model, parts), full, SAME_FORMULA)


def test_an_output_without_cells_changes_its_own_terms_alone(rng, table):
    model = two_scale_model(rng, table)
    with torch.no_grad():
        before = bound_of(model, group_plan(model, table)) + model.own_kl(torch.tensor([2])).sum()
        model.latents.mean[2] += 1.0
        after = bound_of(model, group_plan(model, table)) + model.own_kl(torch.tensor([2])).sum()
    assert_close(after, before, SAME_FORMULA)


def observed(table):
    row, output, y = table.cells(table.places())
    return ObservedCells.of(*(torch.as_tensor(part) for part in (table.X, row, output, y)), None, table.num_outputs)


def test_predictions_from_all_cells_are_those_of_the_exact_gp(rng, table):
    model = two_scale_model(rng, table)
    plan = group_plan(model, table, num_given=ALL)
    batch = CellBatch.from_arrays(next(plan.epoch(rng)), torch.float64, worlds.CPU)
    with torch.no_grad():
        model.natural_elbo(batch, torch.Generator().manual_seed(0), 1.0)
        R, y = dense_covariance(model, table)
        model.observed = observed(table)
        x, outputs = torch.as_tensor(np.r_[table.X[:3], table.X[:1] + 0.3]), torch.tensor([2, 0, 1, 3])
        mean, variance = NeighborPredictor(model, ALL, True)(x, outputs)
        row, output, _ = table.cells(table.places())
        known = Points(
            torch.as_tensor(table.X[row]), torch.as_tensor(output), torch.as_tensor(row), model.latents.mean[output]
        )
        asked = Points(x, outputs, torch.tensor([0, 1, 2, -1]), model.latents.mean[outputs])
        both = Points(*(torch.cat(pair) for pair in zip(vars(known).values(), vars(asked).values(), strict=True)))
        joint = model.covariance(both, model.embed(both.x, both.h))
    n = len(y)
    b = torch.linalg.solve(R, joint[:n, n:])
    assert_close(mean[0], b.T @ y, EXACT_GP)
    assert_close(variance[0], (joint[n:, n:] - b.T @ joint[:n, n:]).diagonal(), EXACT_GP)


def test_predictions_do_not_depend_on_chunks(rng, table):
    model = two_scale_model(rng, table, latent_posterior="full")
    model.observed = observed(table)
    predictor = NeighborPredictor(model, 5, True)
    x, outputs = torch.as_tensor(np.repeat(table.X, 4, axis=0)), torch.arange(4).repeat(len(table.X))
    mean, variance = predictor(x, outputs)
    order = torch.as_tensor(rng.permutation(len(x)))
    for part in order.split(7):
        one, spread = predictor(x[part], outputs[part])
        assert_close(one[0], mean[0, part], SAME_FORMULA)
        assert_close(spread[0], variance[0, part], SAME_FORMULA)


@pytest.mark.parametrize("has_noise", [True, False])
def test_tiles_of_cells_are_predicted_as_cells_one_by_one(rng, has_noise, monkeypatch):
    small = {"_BLOCK_INPUTS": 8, "_BLOCK_CELLS": 32, "_TILE": (2, 6), "_PART": 5, "_RANKED_OUTPUTS": 3, "_ROWS": 7}
    for name, value in small.items():
        monkeypatch.setattr(tiles, name, value)
    table = worlds.random_grid(rng, num_inputs=20, num_outputs=9)
    model = two_scale_model(rng, table, latent_posterior="full")
    model.observed = observed(table)
    predictor = NeighborPredictor(model if has_noise else model.without_noise(), 6, has_noise)
    assert predictor.search.shares_inputs
    x = np.concatenate([table.X, table.X[:5] + 0.1])
    cells = rng.permutation(9 * len(x))[:150]
    x, outputs = torch.as_tensor(x[cells // 9]), torch.as_tensor(cells % 9)
    mean, variance = predictor(x, outputs)
    wanted = Conditioned.joined(predictor.one_by_one(x, outputs))
    assert_close(mean[0], wanted.mean, SAME_FORMULA)
    assert_close(variance[0], wanted.variance, SAME_FORMULA)


def test_blocks_know_the_rows_of_their_points(rng, monkeypatch):
    """Observed cells and cells that are asked about, some of which are observed, from several blocks."""
    for name, value in {"_BLOCK_INPUTS": 4, "_BLOCK_CELLS": 8, "_TILE": (2, 6), "_RANKED_OUTPUTS": 3}.items():
        monkeypatch.setattr(tiles, name, value)
    table = worlds.random_grid(rng, num_inputs=20, num_outputs=9)
    model = two_scale_model(rng, table, latent_posterior="full")
    model.observed = observed(table)
    predictor, blocks = NeighborPredictor(model, 6, True), []
    # Inputs of the table, some of them rounded, and others
    x = np.r_[table.X[::2], table.X[:3] + 0.1, table.X[1:2] + 1e-9]
    x = torch.as_tensor(x).repeat_interleave(9, 0)
    outputs = torch.arange(9).repeat(14)
    found = Conditioned.joined(predictor.parts(x, outputs, blocks))
    assert len(blocks) > 2
    assert len(blocks[0].points.x) < len(blocks[0].cells) + len(blocks[0].asked)
    cells = found.near.unique()
    points = predictor.points(cells, x, outputs)
    with torch.no_grad():
        e, A, _, slope = predictor.explained(points)
    wanted = e, A, in_units(model.latents, slope, points.outputs)
    for rows, one in zip(rows_of(blocks, cells, len(x)), wanted, strict=True):
        assert_close(rows, one, SAME_FORMULA)


def test_cells_without_any_candidate_are_predicted_from_inducing_points(rng):
    table = worlds.random_grid(rng, num_inputs=6, num_outputs=4)
    model = two_scale_model(rng, table)
    model.observed = observed(table)
    predictor = NeighborPredictor(model, 5, True)
    predictor.candidates = lambda x, outputs: np.full((len(x), 7), -1)
    x, outputs = torch.as_tensor(table.X[:3]), torch.tensor([0, 1, 2])
    mean, variance = predictor(x, outputs)
    with torch.no_grad():
        points = Points(x, outputs, torch.arange(3), model.latents.mean[outputs])
        A = model.explained(model.embed(x, points.h))
    assert_close(mean[0], A @ model.gp.posterior.moments().mean + model.terms.mean(points), SAME_FORMULA)
    assert (variance > 0.0).all()


def test_gradients_of_the_whole_bound(rng, table):
    model = two_scale_model(rng, table)
    plan = group_plan(model, table)
    batch = CellBatch.from_arrays(next(plan.epoch(rng)), torch.float64, worlds.CPU)
    parameters = [p for p in model.parameters() if p.requires_grad and p.numel()]
    bound = model.elbo(batch, torch.Generator().manual_seed(0)).bound
    gradients = torch.autograd.grad(bound, parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        gradient = gradient.to_dense() if gradient.is_sparse else gradient
        direction = worlds.normal(rng, *parameter.shape)
        with torch.no_grad():
            step = 1e-5
            values = []
            for sign in (1.0, -1.0):
                parameter.add_(sign * step * direction)
                values.append(model.elbo(batch, torch.Generator().manual_seed(0)).bound)
                parameter.sub_(sign * step * direction)
            numeric = (values[0] - values[1]) / (2.0 * step)
        assert math.isclose(float((gradient * direction).sum()), float(numeric), rel_tol=1e-4, abs_tol=1e-5)


def test_control_variates_steady_gradients_and_change_nothing_on_average(rng, table):
    """Where q(h) is narrow, so that f is linear in h, and inducing points explain the data."""
    model = worlds.random_model(rng, features=table.num_features, num_outputs=4, latent_posterior="full")
    model.latents.set_variance(1e-4)
    batch = CellBatch.from_arrays(next(group_plan(model, table).epoch(rng)), torch.float64, worlds.CPU)
    with torch.no_grad():
        h = model.latents.means(batch.outputs)[batch.column]
        v, known = 10.0 * worlds.normal(rng, len(model.gp.Z)), 1e4 * torch.eye(len(model.gp.Z), dtype=torch.float64)
        model.gp.posterior.step(known @ v, known, 1.0)
        batch = replace(batch, y=model.explained(model.embed(batch.x, h)) @ v)
    q, rows, found = model.gp.posterior.moments(), [model.latents.mean, model.latents.scale], []
    for seed in range(300):
        evidence, h = model._evidence(batch, torch.Generator().manual_seed(seed))
        control = model._steadied(batch, evidence, h, q)
        assert control == 0.0
        parts = [torch.autograd.grad(term, rows, retain_graph=True) for term in (evidence.expected_log_lik(q), control)]
        found.append(torch.stack([torch.cat([part.to_dense().flatten() for part in each]) for each in parts]))
    plain, control = torch.stack(found, 1)
    assert (control.mean(0).abs() < 4.0 * control.std(0) / len(found) ** 0.5 + 1e-9).all()
    assert (plain + control).var(0).sum() < 0.1 * plain.var(0).sum()


# -- what is near, and what is taken for lost ----------------------------------------------------------------------


def test_near_means_correlated(rng):
    """Where nothing but rough functions is left: one unit of an input is as far as ρ² = exp(−1/2)."""
    table = worlds.random_grid(rng, num_inputs=60, num_outputs=5)
    model = two_scale_model(rng, table)
    model.gp.kernel.outputscale = 1e-9
    x = torch.as_tensor(table.X)
    kernel = model.terms[2].kernel
    for term in model.terms[:2]:
        for values in term.parameters():
            values.data.mul_(0.0).sub_(20.0 if isinstance(term, OwnPart) else 0.0)
    (reach, own), (lengthscales, none) = Nearness(model, x, 5).kinds()
    lengthscale = kernel.log_lengthscale.detach().exp()
    # A Matern kernel of smoothness 1/2: ρ² = exp(−2 r / ℓ)
    assert ((reach[: x.shape[1]] / (0.25 * lengthscale)).log().abs() < 0.4).all()
    h, row = model.latents.mean.detach(), torch.zeros(5, dtype=torch.long)
    points = Points(x[:1].expand(5, -1), torch.arange(5), row, h)
    S = model.terms.covariance(points, points).detach()
    share = S.square() / torch.outer(S.diagonal(), S.diagonal())
    places = torch.cat([h / reach[x.shape[1] :], torch.as_tensor(own)], 1)
    distance = torch.cdist(places, places)
    assert (share > 0.9).sum() > 5
    assert (share < 0.3).any()
    assert distance[share > 0.9].max() < distance[share < 0.3].min()
    assert_close(lengthscales, model.units * model.gp.kernel.base_kernel.lengthscale[0])
    assert not none.any()


@pytest.mark.parametrize("features", [1, 2])
def test_lost_stretches_know_their_outputs_from_outside_alone(rng, features):
    table = worlds.random_grid(rng, num_inputs=50, num_outputs=6, features=features)
    plan = GroupPlan(table, worlds.raw(table), 1000, 32, 24, np.random.default_rng(0))
    row, output, _ = table.cells(plan.places)
    z = np.concatenate([table.X[row], output[:, None]], axis=1)
    stretches = lose_stretches(z, output, features, 32, np.random.default_rng(1))
    assert stretches
    plan.grouping = grouping = group_cells(z, 32, 24, np.random.default_rng(0), stretches)
    assert sorted(grouping.cell) == list(range(len(row)))
    lost = np.concatenate([stretch.cells for stretch in stretches])
    assert not np.isin(grouping.given, lost).any()
    # They come last, each piece of one output, which stands on both sides of it where it has cells there.
    assert set(grouping.cell[-len(lost) :]) == set(lost)
    for stretch in stretches:
        assert len(set(output[stretch.cells])) == 1
        assert set(stretch.cells) | set(stretch.own) == set(np.flatnonzero(output == output[stretch.own[0]]))
    first = np.isin(grouping.cell[grouping.start[:-1]], lost)
    for group in np.flatnonzero(first):
        piece = grouping.cell[grouping.start[group] : grouping.start[group + 1]]
        own = grouping.given[group][output[grouping.given[group]] == output[piece[0]]]
        here = np.flatnonzero((output == output[piece[0]]) & ~np.isin(np.arange(len(output)), lost))
        is_below = z[here, 0] < z[piece, 0].mean()
        assert len(own) >= 8
        if features == 1 and min(is_below.sum(), (~is_below).sum()) >= 4:
            assert (z[own, 0] < z[piece, 0].mean()).sum() >= 4
            assert (z[own, 0] >= z[piece, 0].mean()).sum() >= 4
