"""Natural steps: those of the textbook where they can be trusted, shorter ones where they cannot."""

import math

import pytest
import torch

from manygp.likelihoods import Gaussian, Poisson
from manygp.linalg import matvec
from manygp.variational import NaturalPosterior, natural_step, trusted_rate, trusted_sites
from manygp.variational.trust import Sites

from ...laws import worlds
from ...tolerances import PREDICTION, assert_close

SIZE, M, CELLS = 3, 4, 6
MOST = 3.0


def target(rng, *shape):
    return worlds.normal(rng, *shape, M), torch.eye(M) + worlds.positive_definite(rng, *shape, M)


def cells(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(), (SIZE,)])
@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_where_nothing_moves_far_a_step_is_a_mixture_of_natural_parameters(rng, shape, rate):
    posterior, plain = (NaturalPosterior(*shape, M) for _ in range(2))
    theta, precision = target(rng, *shape)
    A = 1e-3 * worlds.normal(rng, *shape, CELLS, M)
    natural_step(posterior, posterior.moments(), theta, precision, rate, lambda change: matvec(A, change))
    plain.step(theta, precision, rate)
    assert_close(posterior.theta, plain.theta)
    assert_close(posterior.precision, plain.precision)


def test_of_a_batch_only_those_that_would_go_too_far_are_held_back(rng):
    posterior, plain, which = NaturalPosterior(SIZE, M), NaturalPosterior(SIZE, M), torch.tensor([2, 0])
    theta, precision = target(rng, 2)
    far = 1e4 * theta[:1]
    q = posterior.moments(which)
    natural_step(posterior, q, torch.cat([far, 0.1 * theta[1:]]), precision, 1.0, lambda change: change, which)
    plain.step(0.1 * theta[1:], precision[1:], 1.0, which[1:])
    moved = posterior.moments().mean
    assert_close(moved[0], plain.moments().mean[0])
    assert not moved[1].any()
    # As far as halvings of the rate allow.
    assert 0.0 < float(moved[2].abs().max()) <= MOST


def test_processes_that_move_cells_together_are_held_back_together(rng):
    posterior = NaturalPosterior(SIZE, M)
    theta, precision = target(rng, SIZE)
    natural_step(posterior, posterior.moments(), 1e3 * theta, precision, 1.0, lambda change: change.sum(0))
    assert float(posterior.moments().mean.sum(0).abs().max()) <= MOST
    share = (posterior.precision - torch.eye(M)) / (precision - torch.eye(M))
    assert_close(share, torch.full_like(share, float(share[0, 0, 0])), PREDICTION)


def test_a_step_that_cannot_be_trusted_at_all_is_not_taken(rng):
    posterior = worlds.random_posterior("natural", M, rng)
    before = posterior.theta.clone(), posterior.precision.clone()
    natural_step(posterior, posterior.moments(), *target(rng), 1.0, lambda change: change * math.nan)
    assert torch.equal(posterior.theta, before[0])
    assert torch.equal(posterior.precision, before[1])


def test_the_share_of_a_step_by_how_far_it_would_go():
    moves = torch.tensor([[0.1, -0.2], [1.0, -30.0]], dtype=torch.float64)
    assert_close(trusted_rate(moves, 0.5), cells(0.5, MOST / 30.0))
    assert_close(trusted_rate(moves[:, :0], 0.5), cells(0.5, 0.5))


def test_sites_are_derivatives_where_they_can_be_trusted():
    likelihood, y, outputs = Poisson(1), cells(0.0, 3.0), torch.zeros(2, dtype=torch.int64)
    mean, variance = cells(0.1, 0.5), cells(0.2, 0.3)
    sites = trusted_sites(likelihood, mean, variance, y, outputs)
    assert isinstance(sites, Sites)
    rate = (mean + 0.5 * variance).exp()
    # E[log p] = y μ − exp(μ + v/2): slope y − rate, and −2 ∂/∂v = rate
    assert_close(sites.slope, y - rate)
    assert_close(sites.precision, rate)
    assert not sites.is_held
    known = likelihood.site_derivatives(mean, variance, y, outputs)
    assert trusted_sites(likelihood, mean, variance, y, outputs, None, known)[0] is known[0]


def test_cells_that_would_say_too_much_are_held_back_with_the_same_aim():
    likelihood, y, outputs = Poisson(1), cells(0.0, 3.0), torch.zeros(2, dtype=torch.int64)
    mean, variance = cells(20.0, 1.0), cells(0.1, 0.1)
    slope, β, is_held = trusted_sites(likelihood, mean, variance, y, outputs)
    by_mean, by_variance = likelihood.site_derivatives(mean, variance, y, outputs)
    assert is_held
    assert float(β[0]) < 1e-4 * float(-2.0 * by_variance[0])
    assert_close(slope / β, by_mean / (-2.0 * by_variance))


def test_a_marginal_that_is_hardly_known_counts_as_known_a_little():
    likelihood, y, outputs = Poisson(1), cells(3.0), torch.zeros(1, dtype=torch.int64)
    wide = trusted_sites(likelihood, cells(0.0), cells(400.0), y, outputs)
    assert wide.is_held
    assert_close(wide.precision, cells(math.exp(4.5)), PREDICTION)
    gaussian = trusted_sites(Gaussian(noise=0.5), cells(0.0), cells(400.0), y, outputs)
    assert_close(gaussian.slope, cells(6.0))
    assert_close(gaussian.precision, cells(2.0))
