"""Tensor normals act like the dense Gaussians that they stand for."""

import functools

import pytest
import torch

from manygp.variational import TensorNormal

from ...laws import worlds
from ...tolerances import assert_close

SHAPE = (3, 2, 4)


def random_tensor_normal(rng, shape=SHAPE, natural=True):
    q = TensorNormal(shape, worlds.normal(rng, *shape), natural)
    for mode, size in enumerate(shape):
        q.set_covariance(mode, worlds.positive_definite(rng, size))
    return q


def dense_covariance(q, modes=None):
    modes = range(len(q.shape)) if modes is None else modes
    return functools.reduce(torch.kron, [q.covariance(mode) for mode in modes])


def test_divergence_from_the_prior(rng):
    q = random_tensor_normal(rng)
    dense = torch.distributions.MultivariateNormal(q.mean.flatten(), dense_covariance(q))
    prior = torch.distributions.MultivariateNormal(torch.zeros(24).double(), torch.eye(24).double())
    expected = torch.distributions.kl_divergence(dense, prior)
    assert_close(q.covariance_kl() + 0.5 * q.mean.square().sum(), expected)


def test_traces_and_diagonals(rng):
    q = random_tensor_normal(rng)
    assert_close(q.trace(), dense_covariance(q).trace())
    assert_close(q.trace(0, 2), dense_covariance(q, (0, 2)).trace())
    assert_close(q.spread(1, 2), dense_covariance(q, (1, 2)).diagonal())
    assert_close(q.precision(2), torch.linalg.inv(q.covariance(2)))


def test_blending_goes_a_share_of_the_way(rng):
    q, target = random_tensor_normal(rng), worlds.positive_definite(rng, 4)
    before = q.precision(2)
    q.blend(2, target, 0.3)
    assert_close(q.precision(2), 0.7 * before + 0.3 * target)


@pytest.mark.parametrize("natural", [True, False])
def test_gradients_move_it_only_if_natural_steps_do_not(natural):
    q = TensorNormal(SHAPE, torch.zeros(SHAPE), natural)
    assert len(list(q.parameters())) == (0 if natural else 4)
    assert set(q.state_dict()) == {"mean", "factor0", "factor1", "factor2"}
    assert q.num_parameters == 24 + 9 + 4 + 16
    assert_close(q.covariance_kl(), 0.0)
