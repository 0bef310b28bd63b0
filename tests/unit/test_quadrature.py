"""Gauss-Hermite quadrature is exact for polynomials and close for what is smooth."""

import math

import pytest
import torch

from manygp.quadrature import gauss_hermite, gaussian_expectation, gaussian_nodes, log_gaussian_expectation

from ..laws import worlds
from ..tolerances import assert_close


@pytest.mark.parametrize("num_points", [1, 2, 20, 100])
def test_weights_sum_to_one_and_nodes_are_symmetric(num_points):
    x, w = gauss_hermite(num_points, torch.zeros(1, dtype=torch.float64))
    assert x.shape == w.shape == (num_points,)
    assert_close(w.sum(), 1.0)
    assert_close(x, -x.flip(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nodes_follow_the_dtype(dtype):
    x, w = gauss_hermite(7, torch.zeros(1, dtype=dtype))
    assert x.dtype == w.dtype == dtype


@pytest.mark.parametrize("degree", range(10))
def test_moments_of_the_normal_distribution(degree):
    # E[εᵏ] = (k − 1)!! for even k, 0 for odd k; exact with 5 points up to degree 9
    moment = gaussian_expectation(
        lambda f: f**degree, torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64), 5
    )
    expected = 0.0 if degree % 2 else float(math.prod(range(degree - 1, 0, -2)))
    assert_close(moment[0], expected)


def test_element_by_element_in_any_shape(rng):
    mean, variance = worlds.normal(rng, 2, 3), worlds.normal(rng, 2, 3).square()
    # E[exp f] = exp(μ + v/2)
    assert_close(gaussian_expectation(torch.exp, mean, variance, 60), torch.exp(mean + 0.5 * variance))


def test_gradients_pass(rng):
    mean, variance = worlds.normal(rng, 4).requires_grad_(), worlds.normal(rng, 4).square().requires_grad_()
    total = gaussian_expectation(torch.sin, mean, variance, 60).sum()
    by_mean, by_variance = torch.autograd.grad(total, (mean, variance))
    # E[sin f] = sin μ exp(−v/2)
    assert_close(by_mean, torch.cos(mean) * torch.exp(-0.5 * variance))
    assert_close(by_variance, -0.5 * torch.sin(mean) * torch.exp(-0.5 * variance))


def test_nodes_make_room_for_tensors_of_higher_rank(rng):
    mean, variance, shift = worlds.normal(rng, 3), worlds.normal(rng, 3).square(), worlds.normal(rng, 5, 1)
    f, w = gaussian_nodes(mean, variance, 30, rank=2)
    assert (f.shape, w.shape) == ((30, 1, 3), (30, 1, 1))
    assert_close(gaussian_expectation(lambda f: f + shift, mean, variance, 30, rank=2), mean + shift)


@pytest.mark.parametrize("width", [1.0, 1e-2, 1e-5])
def test_nodes_around_a_peak_find_it_however_narrow(rng, width):
    mean, variance, y = worlds.normal(rng, 4), worlds.normal(rng, 4).square() + 0.1, worlds.normal(rng, 4)
    noise = torch.full_like(mean, width**2)

    def log_normal(f):
        return torch.distributions.Normal(f, noise.sqrt()).log_prob(y)

    precision = 1.0 / noise + 1.0 / variance
    around = (y / noise + mean / variance) / precision, 1.0 / precision
    # E[N(y | f, s²)] = N(y | μ, v + s²)
    exact = torch.distributions.Normal(mean, (variance + noise).sqrt()).log_prob(y)
    assert_close(log_gaussian_expectation(log_normal, mean, variance, 5, around=around), exact)
    if width == 1.0:
        assert_close(log_gaussian_expectation(log_normal, mean, variance, 100), exact)
