"""q(u) in two forms of storage."""

import pytest
import torch

from manygp.variational import CholeskyPosterior, NaturalPosterior, PosteriorMoments

from ...laws import worlds
from ...tolerances import assert_close


def test_moments_go_in_and_come_out(rng):
    mean, S = worlds.normal(rng, 5), worlds.positive_definite(rng, 5)
    for posterior in (CholeskyPosterior(5), NaturalPosterior(5)):
        if isinstance(posterior, CholeskyPosterior):
            posterior.set_moments(mean, S)
        else:
            posterior.step(torch.linalg.solve(S, mean), torch.linalg.inv(S), 1.0)
        q = posterior.moments()
        assert isinstance(q, PosteriorMoments)
        assert_close(q.mean, mean)
        assert_close(q.covariance, S)
        assert_close(q.logdet, torch.logdet(S))


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_a_step_is_a_mixture_of_natural_parameters(rng, rate):
    posterior = worlds.random_posterior("natural", 4, rng)
    theta, precision = posterior.theta.clone(), posterior.precision.clone()
    target, target_precision = worlds.normal(rng, 4), worlds.positive_definite(rng, 4)
    posterior.step(target, target_precision, rate)
    assert_close(posterior.theta, (1 - rate) * theta + rate * target)
    assert_close(posterior.precision, (1 - rate) * precision + rate * target_precision)


def test_natural_parameters_are_saved_but_not_optimised():
    posterior = NaturalPosterior(3)
    assert not list(posterior.parameters())
    assert set(posterior.state_dict()) == {"theta", "precision"}


def test_only_the_lower_triangle_of_a_factor_counts(rng):
    posterior = CholeskyPosterior(4)
    with torch.no_grad():
        posterior.factor.copy_(worlds.normal(rng, 4, 4))
    L = posterior.factor.detach().tril()
    assert_close(posterior.moments().covariance, L @ L.T)
    assert_close(posterior.moments().logdet, torch.logdet(L @ L.T))
