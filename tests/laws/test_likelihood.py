"""Likelihoods: closed form = quadrature = Monte Carlo; no variance gives log_prob; samples match moments."""

import pytest
import torch

from manygp.likelihoods import Likelihood, Noiseless

from ..tolerances import EXACT_GP, assert_close, assert_monte_carlo, assert_share
from . import worlds
from .registry import LIKELIHOODS, PREDICTION_LIKELIHOODS

P, CELLS, DRAWS = 3, 8, 200_000


@pytest.fixture
def cells(rng):
    """Marginals of f, values and outputs of a few cells."""
    mean, variance = worlds.normal(rng, CELLS), 0.05 + 0.3 * torch.as_tensor(rng.uniform(size=CELLS))
    return mean, variance, worlds.normal(rng, CELLS), torch.as_tensor(rng.integers(P, size=CELLS))


def make(name, rng):
    return worlds.shake(PREDICTION_LIKELIHOODS[name](P), rng).requires_grad_(False)


def draws_of_f(mean, variance):
    return mean + variance.sqrt() * torch.randn(DRAWS, CELLS, dtype=torch.float64, generator=worlds.generator())


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_closed_forms_equal_quadrature(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    likelihood.num_points = 100
    for method, arguments in {
        "expected_log_prob": (mean, variance, y, outputs),
        "predictive_log_prob": (mean, variance, y, outputs),
        "predictive_cdf": (mean, variance, y, outputs),
        "predictive_moments": (mean, variance, outputs),
    }.items():
        closed, quadrature = (
            getattr(likelihood, method)(*arguments),
            getattr(Likelihood, method)(likelihood, *arguments),
        )
        for a, b in zip(closed, quadrature, strict=True):
            assert_close(a, b, EXACT_GP)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_expectations_equal_monte_carlo(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    f = draws_of_f(mean, variance)
    assert_monte_carlo(likelihood.log_prob(f, y, outputs), likelihood.expected_log_prob(mean, variance, y, outputs))
    density = likelihood.predictive_log_prob(mean, variance, y, outputs).exp()
    assert_monte_carlo(likelihood.log_prob(f, y, outputs).exp(), density)


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_samples_match_the_predictive_distribution(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    draws = likelihood.sample(draws_of_f(mean, variance), outputs.expand(DRAWS, CELLS), worlds.generator(1))
    first, second = likelihood.predictive_moments(mean, variance, outputs)
    assert_monte_carlo(draws, first)
    assert_monte_carlo((draws - first).square(), second)
    assert_share(draws <= y, likelihood.predictive_cdf(mean, variance, y, outputs))


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_samples_match_the_conditional_distribution(rng, cells, name):
    likelihood, (f, _, _, outputs) = make(name, rng), cells
    f = f.expand(DRAWS, CELLS)
    draws = likelihood.sample(f, outputs.expand(DRAWS, CELLS), worlds.generator(1))
    first, second = likelihood.conditional_moments(f, outputs)
    assert_monte_carlo(draws, first[0])
    assert_monte_carlo((draws - first).square(), second[0])
    y = f[0] + 0.1
    assert_share(draws <= y, likelihood.conditional_cdf(f[0], y, outputs))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_variance_everything_is_conditional(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    none = torch.full_like(variance, 1e-14)
    exact = likelihood.log_prob(mean, y, outputs)
    assert_close(likelihood.expected_log_prob(mean, none, y, outputs), exact)
    assert_close(likelihood.predictive_log_prob(mean, none, y, outputs), exact)
    assert_close(likelihood.predictive_cdf(mean, none, y, outputs), likelihood.conditional_cdf(mean, y, outputs))
    for a, b in zip(
        likelihood.predictive_moments(mean, none, outputs), likelihood.conditional_moments(mean, outputs), strict=True
    ):
        assert_close(a, b)


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_the_density_is_the_slope_of_the_distribution_function(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    y = y.requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.predictive_cdf(mean, variance, y, outputs).sum(), y)
    assert_close(likelihood.predictive_log_prob(mean, variance, y, outputs).exp(), slope)


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_densities_integrate_to_one(rng, cells, name):
    likelihood, (mean, variance, _, outputs) = make(name, rng), cells
    y = torch.linspace(-15, 15, 20_001, dtype=torch.float64).unsqueeze(-1)
    density = likelihood.predictive_log_prob(mean, variance, y, outputs).exp()
    assert_close(torch.trapezoid(density, y[:, 0], dim=0), torch.ones(CELLS))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_an_output_has_parameters_of_its_own_or_shares_them(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    together = likelihood.expected_log_prob(mean, variance, y, outputs)
    for i in range(CELLS):
        one = slice(i, i + 1)
        alone = likelihood.expected_log_prob(mean[one], variance[one], y[one], outputs[one])
        assert torch.equal(alone, together[one])


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_components_of_a_mixture_broadcast(rng, cells, name):
    likelihood, (mean, variance, y, outputs) = make(name, rng), cells
    shifts = torch.arange(4.0, dtype=torch.float64).unsqueeze(-1)
    means, variances = mean + shifts, variance.expand(4, -1)
    for method in ("predictive_log_prob", "predictive_cdf"):
        stacked = torch.stack([getattr(likelihood, method)(row, variance, y, outputs) for row in means])
        assert_close(getattr(likelihood, method)(means, variances, y, outputs), stacked)


def test_the_function_itself_has_no_noise(rng, cells):
    f, _, y, outputs = cells
    noiseless = Noiseless()
    assert torch.equal(noiseless.sample(f, outputs, worlds.generator()), f)
    assert torch.equal(noiseless.log_prob(f, f, outputs), torch.full_like(f, torch.inf))
    assert torch.equal(noiseless.log_prob(f, y, outputs), torch.full_like(f, -torch.inf))
