"""Cells together: draws are functions, and their moments, covariances and sums are those of one joint distribution."""

import numpy as np
import pytest
import torch
from scipy import sparse

from manygp.functions import moments_of_sums
from manygp.models.neighbors import ObservedCells
from manygp.terms import OwnPart, Points, SharedPart, SharedShocks

from . import worlds
from .conftest import NAMES, fitted, observations
from .registry import ESTIMATORS

# One of each kind of joint distribution; the other registered settings differ in how they are fitted.
MODELS = (
    "tlvmogp",
    "tlvmogp, point latents, raw data",
    "lvmogp",
    "gs-lvmogp",
    "ind-gp",
    "ind-gp, sparse",
    "sv-lmc",
    "g-mogp, shared kernels, matern",
    "oilmm",
    "oilmm, sparse, fixed basis, matern",
    "sgprn",
)
NUM_DRAWS = 2000


def near(actual, expected, relative=1e-9):
    """Equal but for this share of the largest number."""
    scale = float(expected.abs().max()) + 1e-12
    torch.testing.assert_close(actual, expected, rtol=relative, atol=relative * scale)


def cells(estimator):
    """Some cells at inputs of the fit, some between, and the first ones once more, in scaled units."""
    X, _ = observations()
    X = np.r_[X[:3], X[:2] + 0.013, X[:1]]
    x = torch.as_tensor(estimator.scaling_.scale_x(np.repeat(X, len(NAMES), 0)))
    return x, torch.arange(len(NAMES)).repeat(len(X))


@pytest.fixture(params=MODELS)
def joint(request):
    """Name, predictor and joint of a fitted model, and cells to ask about."""
    assert request.param in ESTIMATORS
    estimator = fitted(request.param)
    model, size = estimator._model_for(False), min(int(estimator.num_samples), 4)
    with torch.no_grad():
        yield request.param, model.predictor(size, 0), model.joint(size, 0), *cells(estimator)


def total(mean, covariance):
    """Covariance of a mixture."""
    centered = mean - mean.mean(0)
    return covariance.mean(0) + centered.T @ centered / len(mean)


def test_moments_are_those_of_single_cells(joint):
    name, predictor, joint, x, outputs = joint
    view, (mean, variance) = joint(x, outputs), predictor(x, outputs)
    if name == "sgprn":
        # Its single cells are mixtures over draws of one factor of a product, whose moments are exact here.
        return
    near(view.mean, mean)
    near(view.variance(), variance, 1e-7)


def test_draws_have_the_moments(joint):
    _, _, joint, x, outputs = joint
    view, every = joint(x, outputs), torch.arange(len(x))
    draws = view.draw(torch.arange(NUM_DRAWS), 1)
    exact = total(view.mean, view.covariance(every, every))
    sd = exact.diagonal().clamp(min=1e-12).sqrt()
    # So many draws are off by this much, and random features by a little more.
    assert ((draws.mean(0) - view.mean.mean(0)) / sd).abs().max() < 0.25
    assert ((draws.T.cov() - exact) / (sd.unsqueeze(-1) * sd)).abs().mean() < 0.08


def test_a_draw_is_a_function(joint):
    _, _, joint, x, outputs = joint
    draws, some = torch.arange(3), torch.tensor([7, 2, 11])
    values = joint(x, outputs).draw(draws, 1)
    # The last cells are the first once more.
    near(values[:, -len(NAMES) :], values[:, : len(NAMES)], 1e-8)
    near(joint(x[some], outputs[some]).draw(draws, 1), values[:, some], 1e-8)
    near(joint(x, outputs).draw(draws[1:], 1), values[1:], 1e-8)
    assert not torch.allclose(joint(x, outputs).draw(draws, 2), values)


def test_sums_have_the_variance_of_all_pairs(joint):
    _, _, joint, x, outputs = joint
    rng, every = np.random.default_rng(0), torch.arange(len(x))
    W = rng.standard_normal((3, len(x))) * (rng.uniform(size=(3, len(x))) < 0.5)
    view, w = joint(x, outputs), torch.as_tensor(W)
    mean, variance = moments_of_sums(
        lambda chosen: joint(x[chosen], outputs[chosen]), sparse.csr_array(W), np.arange(len(x)), 50, len(view.mean)
    )
    near(mean, view.mean @ w.T)
    near(variance, torch.einsum("gi,sij,gj->sg", w, view.covariance(every, every), w), 1e-7)


def test_sums_of_rows_are_close_to_all_pairs(joint):
    _, _, joint, x, outputs = joint
    view, W = joint(x, outputs), torch.ones(1, len(x), dtype=torch.float64)
    if not view.is_linear:
        return
    exact = view.variance_of_sums(W.to_sparse())
    found = sum(block.row_sums(W.to_sparse())[1].square().sum((-2, -1)) for block in view.blocks)
    near(found, exact[:, 0], 0.15)


# -- against dense models ----------------------------------------------------------------------------------------------


@pytest.fixture
def table(rng):
    return worlds.random_grid(rng, num_inputs=8, num_outputs=4)


def two_scales(rng, table, noise=None):
    """A model with terms and neighbours, all cells of the table among them."""
    model = worlds.random_model(rng, features=table.num_features, num_outputs=table.num_outputs)
    p, h = table.num_outputs, model.latents.dim
    d = table.num_features
    terms = [OwnPart(p, h, d), SharedPart(p, h, d, 2, 3), SharedShocks(p, h, 2)]
    model.terms.extend(worlds.shake(term, rng) for term in terms)
    if noise is not None:
        model.likelihood.noise = torch.tensor(noise)
    row, output, y = table.cells(table.places())
    model.observed = ObservedCells.of(
        *(torch.as_tensor(part) for part in (table.X, row, output, y)), None, table.num_outputs
    )
    model.num_neighbors = 1000
    return model


@torch.no_grad()
def test_two_scales_have_the_covariance_of_the_dense_posterior(rng, table):
    model = two_scales(rng, table)
    seen = model.observed
    x = torch.as_tensor(np.r_[table.X[:3], table.X[:2] + 0.3])
    outputs = torch.tensor([2, 0, 1, 3, 3])
    view = model.joint(1, 0)(x, outputs)
    every = torch.arange(len(x))
    found = view.covariance(every, every)[0]
    # Dense: all cells of the table and those asked about, given v
    row = torch.cat([seen.row.long(), torch.tensor([0, 1, 2, -1, -2])])
    which, inputs = torch.cat([seen.output.long(), outputs]), torch.cat([seen.inputs[seen.row.long()], x])
    points = Points(inputs, which, row, model.latents.mean[which])
    e = model.embed(points.x, points.h)
    A, R = model.explained(e), model.covariance(points, e)
    n = len(seen.y)
    S = R - A @ A.T
    S_NN = S[:n, :n] + model.output_noise(which[:n]).diag()
    b = torch.linalg.solve(S_NN, S[:n, n:]).T
    rest = S[n:, n:] - b @ S[:n, n:]
    rows = A[n:] - b @ A[:n]
    near(found, rest + rows @ model.gp.posterior.moments().covariance @ rows.T, 1e-6)
    mean, variance = model.predictor(1, 0)(x, outputs)
    near(view.mean, mean)
    near(found.diagonal(), variance[0], 1e-7)
    draws = view.draw(torch.arange(2000), 0)
    sd = found.diagonal().sqrt()
    near(draws.std(0), sd, 0.08)
    assert ((draws.T.cov() - found) / (sd.unsqueeze(-1) * sd)).abs().max() < 0.2
    some = torch.tensor([3, 0])
    near(model.joint(1, 0)(x[some], outputs[some]).draw(torch.arange(3), 0), draws[:3, some], 1e-7)
    # Rows of features have the variances of single cells, and nearly those of sums.
    W = torch.cat([torch.eye(len(x)), torch.ones(1, len(x))]).double()
    by_rows = sum(
        torch.zeros(len(W)).double().index_add(0, pairs[0], sums[0].square().sum(-1))
        for _, (pairs, sums) in view.row_sums(W.to_sparse())
    )
    near(by_rows[:-1], variance[0], 1e-7)
    near(by_rows[-1], found.sum(), 0.15)


@torch.no_grad()
def test_cells_without_noise_are_met(rng, table):
    model = two_scales(rng, table, noise=1e-8)
    seen = model.observed
    view = model.joint(1, 0)(seen.inputs[seen.row[:5].long()], seen.output[:5].long())
    near(view.draw(torch.arange(4), 0), seen.y[:5].expand(4, -1), 1e-2)


@torch.no_grad()
def test_an_exact_gp_has_the_covariance_of_the_dense_posterior():
    estimator = fitted("ind-gp")
    model, (x, outputs) = estimator.model_, cells(estimator)
    chosen = outputs == 1
    x, outputs = x[chosen], outputs[chosen]
    every = torch.arange(len(x))
    found = model.joint(1, 0)(x, outputs).covariance(every, every)[0]
    X = model.x[model.index[1][model.seen[1]]]
    k = model.kernels.rows(torch.tensor([1]))
    K, Kx, Kxx = (model.kernels.covariance(k, a, b)[0] for a, b in ((X, X), (x, X), (x, x)))
    noisy = K + model.likelihood.noise_of(torch.tensor([1])) * torch.eye(len(X), dtype=torch.float64)
    near(found, Kxx - Kx @ torch.linalg.solve(noisy, Kx.T), 1e-6)


# -- the public face ---------------------------------------------------------------------------------------------------


def test_a_prediction_draws_sums_and_tells_of_events():
    X, Y = observations()
    dist = fitted("ind-gp").predict_dist(X[:6])
    draws = dist.sample(400, random_state=3)
    assert draws.shape == (400, 6, 5)
    near(torch.as_tensor(draws.std(0)), torch.as_tensor(dist.std), 0.2)
    weights = np.random.default_rng(0).standard_normal((2, *dist.shape))
    sums, C = dist.aggregate(weights), dist.covariance(np.arange(30))
    flat = weights.reshape(2, -1)
    np.testing.assert_allclose(sums.variance, np.einsum("gi,ij,gj->g", flat, C, flat), rtol=1e-8)
    np.testing.assert_allclose(sums.mean, (weights * dist.mean).sum((1, 2)))
    np.testing.assert_allclose(sums.sample(400, 3), np.einsum("gnp,knp->kg", weights, draws))
    lower, upper = sums.interval(0.9)
    np.testing.assert_allclose(sums.cdf(upper) - sums.cdf(lower), 0.9, atol=1e-6)
    without = dist.aggregate(weights, observation_noise=False)
    assert (without.std < sums.std).all()
    any_above = dist.probability(above=99.0, any_over="output", num_draws=400, random_state=3)
    np.testing.assert_allclose(any_above.value, (draws > 99.0).any(2).mean(0))
    assert dist.energy_score(Y[:6], num_draws=100) > 0
    np.testing.assert_allclose(np.diagonal(dist.correlation([(0, "a"), (1, ("c", 1))])), 1.0)
