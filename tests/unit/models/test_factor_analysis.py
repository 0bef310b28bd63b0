"""Factor analysis with precisions of cells: against conditioning, regression and data with known factors."""

import numpy as np
import pytest
import torch

from manygp.models.factor_analysis import Factors

from ...laws import worlds
from ...tolerances import assert_close


def random_cells(rng, n=30, p=5, k=2):
    """Pulls and weights of cells, some of them missing, and factors."""
    weight = worlds.normal(rng, n, p).square() * torch.as_tensor(rng.random((n, p)) < 0.7)
    pull = weight * worlds.normal(rng, n, p)
    row = torch.arange(n)
    coefficients = worlds.normal(rng, p, k + 1)
    return pull, weight, row, Factors.at(pull, weight, row, coefficients, torch.zeros(p, k + 1, k + 1).double())


def test_effects_of_a_row_are_those_of_a_gaussian(rng):
    """Cell i observes a + bᵀr as γ/β with variance 1/β."""
    pull, weight, _, factors = random_cells(rng)
    seen = weight[0] > 0.0
    B, a = factors.loadings[seen], factors.coefficients[seen, -1]
    z, variance = (pull[0] / weight[0])[seen], 1.0 / weight[0][seen]
    gain = B.T @ torch.linalg.inv(B @ B.T + variance.diag())
    assert_close(factors.mean[0], gain @ (z - a))
    assert_close(factors.covariance[0], torch.eye(2, dtype=torch.float64) - gain @ B)
    g, open_ = factors.effects(torch.tensor([0]))
    assert_close(g[0], factors.coefficients[:, -1] + factors.loadings @ factors.mean[0])
    assert_close(open_[0], (factors.loadings @ factors.covariance[0] @ factors.loadings.T).diagonal())


def test_rows_with_the_same_input_have_the_same_effects(rng):
    """Two rows are as good as one row with the cells of both."""
    pull, weight, row, factors = random_cells(rng, n=2)
    both = Factors.at(pull, weight, torch.zeros_like(row), factors.coefficients, factors.covariance_of)
    together = torch.cat([factors.coefficients] * 2)
    flat = pull.reshape(1, -1), weight.reshape(1, -1)
    one = Factors.at(*flat, row[:1], together, torch.cat([factors.covariance_of] * 2))
    assert_close(both.mean, one.mean)
    assert_close(both.covariance, one.covariance)


@pytest.mark.parametrize("has_levels", [True, False])
def test_coefficients_are_a_weighted_ridge_regression(rng, has_levels):
    pull, weight, row, factors = random_cells(rng)
    known = Factors(factors.mean, torch.zeros_like(factors.covariance), factors.coefficients, factors.covariance_of)
    found, covariance = known.regressed(pull, weight, row, has_levels)
    u = torch.cat([factors.mean, torch.ones(len(pull), 1).double()], -1)[:, : 3 if has_levels else 2]
    spread = known.coefficients.square().mean(0)[: u.shape[1]].clamp(min=0.01)
    precision = (u * weight[:, :1]).T @ u + (1.0 / spread).diag()
    assert_close(found[0, : u.shape[1]], torch.linalg.solve(precision, u.T @ pull[:, 0]))
    assert_close(covariance[0, : u.shape[1], : u.shape[1]], torch.linalg.inv(precision))
    if not has_levels:
        assert not found[:, -1].any()
        assert not covariance[:, -1].any()


def test_variances_are_those_of_products_of_gaussians(rng):
    """Against draws of q(r) and q([b, a])."""
    pull, weight, row, factors = random_cells(rng)
    factors = factors.improved(pull, weight, row, has_levels=True)
    C, L = torch.linalg.cholesky(factors.covariance[0]), torch.linalg.cholesky(factors.covariance_of[0])
    r = factors.mean[0] + worlds.normal(rng, 200_000, 2) @ C.T
    c = factors.coefficients[0] + worlds.normal(rng, 200_000, 3) @ L.T
    draws = (c[:, :2] * r).sum(-1) + c[:, 2]
    assert float(draws.var()) == pytest.approx(float(factors.variances(row[:1])[0, 0]), rel=0.03)
    assert float(draws.mean()) == pytest.approx(float(factors.effects(row[:1])[0][0, 0]), abs=0.03)


def test_an_output_of_which_nothing_is_known_is_like_any_other(rng):
    B, r = 0.2 * worlds.normal(rng, 40, 2), worlds.normal(rng, 300, 2)
    seen = torch.ones(300, 40).double()
    seen[:, 0] = 0.0
    pull, weight, row = seen * (r @ B.T + 0.1 * worlds.normal(rng, 300, 40)) / 0.01, seen / 0.01, torch.arange(300)
    factors = Factors.first(pull, weight, row, 2, np.random.default_rng(0))
    for _ in range(20):
        factors = factors.improved(pull, weight, row, has_levels=False)
    assert not factors.effects(row)[0][:, 0].any()
    assert float(factors.own_variance()[0]) == pytest.approx(float(B[1:].square().sum(-1).mean()), rel=0.3)


def test_known_factors_are_found(rng):
    B, r = worlds.normal(rng, 8, 2), worlds.normal(rng, 2000, 2)
    truth = r @ B.T
    seen = torch.as_tensor(rng.random(truth.shape) < 0.6).double()
    pull, weight = seen * (truth + 0.3 * worlds.normal(rng, *truth.shape)) / 0.09, seen / 0.09
    row = torch.arange(len(r))
    factors = Factors.first(pull, weight, row, 2, np.random.default_rng(0))
    for _ in range(20):
        factors = factors.improved(pull, weight, row, has_levels=False)
    missing = seen == 0.0
    error = (factors.effects(row)[0] - truth)[missing]
    # Nearly as good as with the loadings themselves, and variances say how large the errors are.
    exact = torch.cat([B, torch.zeros_like(B[:, :1])], -1)
    ideal = Factors.at(pull, weight, row, exact, torch.zeros(8, 3, 3).double()).effects(row)[0] - truth
    assert error.square().mean() < 1.1 * ideal[missing].square().mean()
    assert 0.8 < (error.square() / factors.variances(row)[missing]).mean() < 1.25
