"""Kronecker posteriors: factored quantities equal those written out, and natural steps find optima of the bound."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from manygp.variational.kronecker import (
    CholeskyKronecker,
    Curvature,
    DenseCurvature,
    DenseFeatures,
    DenseStatistics,
    FactoredCurvature,
    FactoredFeatures,
    FactoredStatistics,
    Features,
    KroneckerMoments,
    KroneckerPosterior,
    NaturalKronecker,
    Statistics,
)

from ...laws import worlds
from ...tolerances import EXACT_GP, assert_close

J, K, B = 3, 4, 11


def moments(rng):
    left, right = worlds.positive_definite(rng, J), worlds.positive_definite(rng, K)
    return KroneckerMoments(worlds.normal(rng, J, K), left, right, torch.kron(left, right).logdet())


def both_features(rng):
    """The same features by their factors and written out."""
    left, right = worlds.normal(rng, B, J), worlds.normal(rng, B, K)
    return FactoredFeatures(left, right), DenseFeatures(left.unsqueeze(-1) * right.unsqueeze(-2))


def both_statistics(rng):
    pull, weight = worlds.normal(rng, B), worlds.normal(rng, B).abs()
    return tuple(features.statistics(pull, weight) for features in both_features(rng))


def test_kl_is_that_of_the_written_out_gaussian(rng):
    q = moments(rng)
    dense = MultivariateNormal(q.mean.flatten(), torch.kron(q.left, q.right))
    prior = MultivariateNormal(torch.zeros(J * K).double(), torch.eye(J * K).double())
    assert_close(q.kl(), kl_divergence(dense, prior))


def test_factored_features_are_the_dense_ones(rng):
    factored, dense = both_features(rng)
    assert isinstance(factored, Features)
    q, diagonal = moments(rng), 50.0 + worlds.normal(rng, B).abs()
    for mine, theirs in zip(factored.marginals(diagonal, q), dense.marginals(diagonal, q), strict=True):
        assert_close(mine, theirs)
    rows = dense.values.flatten(1)
    mean, variance = dense.marginals(diagonal, q)
    assert_close(mean, rows @ q.mean.flatten())
    S = torch.kron(q.left, q.right)
    assert_close(variance, diagonal - rows.square().sum(-1) + (rows @ S * rows).sum(-1))


def test_factored_statistics_are_the_dense_ones(rng):
    factored, dense = both_statistics(rng)
    assert isinstance(factored, FactoredStatistics)
    assert isinstance(factored, Statistics)
    assert isinstance(dense, DenseStatistics)
    M, q = worlds.normal(rng, J, K), moments(rng)
    assert_close(factored.gradient(M), dense.gradient(M))
    assert_close(factored.bend(M), dense.bend(M))
    assert_close(factored.left_gram(q.right), dense.left_gram(q.right))
    assert_close(factored.right_gram(q.left), dense.right_gram(q.left))


def test_curvature_is_exact_where_weights_and_features_are_a_grid(rng):
    left, right = worlds.normal(rng, 5, J), worlds.normal(rng, 6, K)
    features = FactoredFeatures(left.repeat_interleave(6, 0), right.repeat(5, 1))
    dense = DenseFeatures(features.left.unsqueeze(-1) * features.right.unsqueeze(-2))
    weight, G = torch.full((30,), 2.5).double(), worlds.normal(rng, J, K)
    solved = []
    for curvature, cells in ((FactoredCurvature(J, K), features), (DenseCurvature(J, K), dense)):
        assert isinstance(curvature, Curvature)
        curvature.update(cells.statistics(torch.zeros(30).double(), weight), 1.0)
        solved.append(curvature.solve(G))
    assert_close(*solved)
    rows = dense.values.flatten(1)
    H = torch.eye(J * K).double() + 2.5 * rows.T @ rows
    assert_close(solved[1].flatten(), torch.linalg.solve(H, G.flatten()))


@pytest.mark.parametrize("kind", [0, 1], ids=["factored", "dense"])
def test_steps_find_the_optimum_of_the_quadratic(rng, kind):
    """max of θᵀm − ½ tr(H (mmᵀ + S)) − KL over m and S = S_H ⊗ S_X."""
    statistics = both_statistics(rng)[kind]
    posterior = NaturalKronecker(J, K, (FactoredCurvature if kind == 0 else DenseCurvature)(J, K))
    assert isinstance(posterior, KroneckerPosterior)
    for _ in range(200):
        posterior.step(statistics, 1.0)
    q = posterior.moments()
    dense = statistics if isinstance(statistics, DenseStatistics) else _written_out(statistics)
    optimum = torch.linalg.solve(torch.eye(J * K).double() + dense.gram, dense.pull.flatten())
    assert_close(q.mean.flatten(), optimum, EXACT_GP)
    free = CholeskyKronecker(J, K)
    with torch.no_grad():
        free.mean.copy_(q.mean)
        free.left_factor.copy_(torch.linalg.cholesky(q.left))
        free.right_factor.copy_(torch.linalg.cholesky(q.right))
    moved = free.moments()
    assert_close(moved.kl(), q.kl())
    S = torch.kron(moved.left, moved.right)
    value = -0.5 * (dense.gram * S).sum() - moved.kl()
    for gradient in torch.autograd.grad(value, [free.left_factor, free.right_factor]):
        assert_close(gradient.tril(), torch.zeros_like(gradient))


def _written_out(statistics):
    features = statistics.features
    dense = DenseFeatures(features.left.unsqueeze(-1) * features.right.unsqueeze(-2))
    return dense.statistics(statistics.pull, statistics.weight)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_step_goes_a_share_of_the_way(rng, rate):
    _, statistics = both_statistics(rng)
    posterior = NaturalKronecker(J, K, DenseCurvature(J, K))
    posterior.step(statistics, rate)
    target = (statistics.left_gram(torch.eye(K).double()) + K * torch.eye(J).double()) / K
    assert_close(posterior.left_precision, (1.0 - rate) * torch.eye(J).double() + rate * target)
    if rate == 0.0:
        assert_close(posterior.mean, torch.zeros(J, K))


def test_it_starts_at_the_prior():
    for posterior in (CholeskyKronecker(J, K), NaturalKronecker(J, K, FactoredCurvature(J, K))):
        assert_close(posterior.moments().kl(), 0.0)
