"""Likelihoods: closed form = quadrature = Monte Carlo; no variance gives log_prob; samples match moments; masses sum
to one and densities integrate to one; gradients are finite wherever data and f can be."""

import pytest
import torch

from manygp.likelihoods import CountLikelihood, Likelihood

from ..tolerances import EXACT_GP, ONE_CELL_MORE, SAME_FORMULA, assert_close, assert_monte_carlo, assert_share
from . import worlds
from .registry import COUNT_LIKELIHOODS, LIKELIHOODS, PREDICTION_LIKELIHOODS

P, CELLS, DRAWS = 3, 8, 50_000
DISCRETE = [name for name, make in LIKELIHOODS.items() if make(P).is_discrete]
CONTINUOUS = [name for name in PREDICTION_LIKELIHOODS if name not in DISCRETE]
WITH_EXPOSURE = [name for name, make in LIKELIHOODS.items() if make(P).takes_exposure]


def make(name, rng):
    return worlds.shake(PREDICTION_LIKELIHOODS[name](P), rng).requires_grad_(False)


def setting(name, rng):
    """A likelihood; marginals of f, values and outputs of a few cells."""
    likelihood = make(name, rng)
    mean, variance = worlds.normal(rng, CELLS), 0.05 + 0.3 * torch.as_tensor(rng.uniform(size=CELLS))
    outputs = torch.as_tensor(rng.integers(P, size=CELLS))
    y = likelihood.sample(mean + variance.sqrt() * worlds.normal(rng, CELLS), outputs, worlds.generator(7))
    return likelihood, mean, variance, y, outputs


def draws_of_f(mean, variance):
    return mean + variance.sqrt() * torch.randn(DRAWS, CELLS, dtype=torch.float64, generator=worlds.generator())


def is_replaced(likelihood, method):
    return getattr(type(likelihood), method) is not getattr(Likelihood, method)


REPLACED = [
    (name, method)
    for name, make_one in LIKELIHOODS.items()
    for method in (
        *("expected_log_prob", "site_derivatives", "predictive_log_prob", "predictive_cdf"),
        *("predictive_moments", "zero_probability"),
    )
    if is_replaced(make_one(P), method)
]


@pytest.mark.parametrize(("name", "method"), REPLACED)
def test_closed_forms_equal_quadrature(rng, name, method):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    likelihood.num_points = 100
    values = () if method in ("predictive_moments", "zero_probability") else (y,)
    own = getattr(likelihood, method)(mean, variance, *values, outputs)
    quadrature = getattr(Likelihood, method)(likelihood, mean, variance, *values, outputs)
    for a, b in zip(own, quadrature, strict=True):
        assert_close(a, b, EXACT_GP)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_expectations_equal_monte_carlo(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    log_prob = likelihood.log_prob(draws_of_f(mean, variance), y, outputs)
    expected = likelihood.expected_log_prob(mean, variance, y, outputs)
    assert_monte_carlo(log_prob, expected)
    assert_monte_carlo(log_prob.exp(), likelihood.predictive_log_prob(mean, variance, y, outputs).exp())
    own = likelihood.monte_carlo_expected_log_prob(mean, variance, y, outputs, DRAWS, worlds.generator())
    assert_close(own, log_prob.mean(0))


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_samples_match_the_predictive_distribution(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    draws = likelihood.sample(draws_of_f(mean, variance), outputs.expand(DRAWS, CELLS), worlds.generator(1))
    first, second = likelihood.predictive_moments(mean, variance, outputs)
    assert_monte_carlo(draws, first)
    assert_monte_carlo((draws - first).square(), second)
    assert_share(draws <= y, likelihood.predictive_cdf(mean, variance, y, outputs))
    assert_share(draws == 0.0, likelihood.zero_probability(mean, variance, outputs))
    assert likelihood.in_support(draws).all()


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_samples_match_the_conditional_distribution(rng, name):
    likelihood, f, _, y, outputs = setting(name, rng)
    f = f.expand(DRAWS, CELLS)
    draws = likelihood.sample(f, outputs.expand(DRAWS, CELLS), worlds.generator(1))
    first, second = likelihood.conditional_moments(f[0], outputs)
    assert_monte_carlo(draws, first)
    assert_monte_carlo((draws - first).square(), second)
    assert_share(draws <= y, likelihood.conditional_cdf(f[0], y, outputs))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_variance_everything_is_conditional(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    none = torch.full_like(variance, 1e-14)
    exact = likelihood.log_prob(mean, y, outputs)
    assert torch.equal(likelihood.plug_in_log_prob(mean, y, outputs), exact)
    assert_close(likelihood.expected_log_prob(mean, none, y, outputs), exact)
    assert_close(likelihood.predictive_log_prob(mean, none, y, outputs), exact)
    assert_close(likelihood.predictive_cdf(mean, none, y, outputs), likelihood.conditional_cdf(mean, y, outputs))
    for a, b in zip(
        likelihood.predictive_moments(mean, none, outputs), likelihood.conditional_moments(mean, outputs), strict=True
    ):
        assert_close(a, b)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_density_is_the_slope_of_the_distribution_function(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    y = y.requires_grad_()
    (slope,) = torch.autograd.grad(likelihood.predictive_cdf(mean, variance, y, outputs).sum(), y)
    assert_close(likelihood.predictive_log_prob(mean, variance, y, outputs).exp(), slope)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_densities_integrate_to_one(rng, name):
    likelihood, mean, variance, _, outputs = setting(name, rng)
    # y = sinh u reaches far into the tails
    u = torch.linspace(-20, 20, 4_001, dtype=torch.float64)
    y = torch.sinh(u).unsqueeze(-1)
    density = likelihood.predictive_log_prob(mean, variance, y, outputs).exp() * torch.cosh(u).unsqueeze(-1)
    assert_close(torch.trapezoid(density, u, dim=0), torch.ones(CELLS))


@pytest.mark.parametrize("name", DISCRETE)
def test_masses_sum_to_one_and_to_the_distribution_function(rng, name):
    likelihood, mean, variance, _, outputs = setting(name, rng)
    y = torch.arange(1000.0, dtype=torch.float64)
    y = y[likelihood.in_support(y)].unsqueeze(-1)
    conditional = likelihood.log_prob(mean, y, outputs).exp().cumsum(0)
    assert_close(conditional[-1], torch.ones(CELLS))
    likelihood.num_points = 40
    predictive = likelihood.predictive_log_prob(mean, variance, y, outputs).exp().cumsum(0)
    assert_close(predictive[-1], torch.ones(CELLS), EXACT_GP)
    some = [0, 1] if len(y) == 2 else [0, 1, 2, 5, 20, 63, 64, 65, 80, 300]
    assert_close(likelihood.conditional_cdf(mean, y[some], outputs), conditional[some])
    for shift in (0.0, 0.5):
        assert_close(likelihood.predictive_cdf(mean, variance, y[some] + shift, outputs), predictive[some], EXACT_GP)
    assert_close(likelihood.predictive_cdf(mean, variance, -torch.ones_like(mean), outputs), torch.zeros(CELLS))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_an_output_has_parameters_of_its_own_or_shares_them(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    together = likelihood.expected_log_prob(mean, variance, y, outputs)
    for i in range(CELLS):
        one = slice(i, i + 1)
        alone = likelihood.expected_log_prob(mean[one], variance[one], y[one], outputs[one])
        assert_close(alone, together[one])
    rows = list(likelihood.row_parameters())
    for p in range(P):
        with torch.no_grad():
            for row in rows:
                row[p] += 0.1
        moved = likelihood.expected_log_prob(mean, variance, y, outputs)
        with torch.no_grad():
            for row in rows:
                row[p] -= 0.1
        assert torch.equal(moved != together, (outputs == p) & bool(rows))


@pytest.mark.parametrize("name", PREDICTION_LIKELIHOODS)
def test_components_of_a_mixture_broadcast(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    shifts = torch.arange(4.0, dtype=torch.float64).unsqueeze(-1)
    means, variances = mean + shifts, variance.expand(4, -1)
    for method in ("predictive_log_prob", "predictive_cdf"):
        stacked = torch.stack([getattr(likelihood, method)(row, variance, y, outputs) for row in means])
        assert_close(getattr(likelihood, method)(means, variances, y, outputs), stacked)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_gradients_of_rows_hold_the_outputs_of_the_cells(rng, name, sparse):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    likelihood.requires_grad_(True)
    likelihood.sparse_rows = sparse
    if not list(likelihood.parameters()):
        return
    outputs = outputs.clamp(max=1)
    likelihood.expected_log_prob(mean, variance, y, outputs).sum().backward()
    rows = list(likelihood.row_parameters())
    for parameter in likelihood.parameters():
        is_row = any(parameter is row for row in rows)
        assert parameter.grad.is_sparse == (sparse and is_row)
        assert (parameter.grad.to_dense() != 0).tolist() == ([True, True, False] if is_row else [True])


FAR = torch.linspace(-50, 50, 101, dtype=torch.float64)


def far_cells(likelihood):
    y = torch.tensor([0.0, 1.0, 1e5], dtype=torch.float64)
    y = y[likelihood.in_support(y)]
    f, y = (part.reshape(-1) for part in torch.meshgrid(FAR, y, indexing="ij"))
    return f, y, torch.arange(len(f)) % P


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_everything_is_finite_far_out(rng, name, dtype):
    likelihood = make(name, rng).requires_grad_(True)
    f, y, outputs = far_cells(likelihood)
    f, y = f.to(dtype).requires_grad_(), y.to(dtype)
    variance = torch.full_like(f, 0.5).requires_grad_()
    sites = likelihood.site_derivatives(f, variance, y, outputs)
    parts = [likelihood.log_prob(f, y, outputs), likelihood.expected_log_prob(f, variance, y, outputs)]
    parts.append(likelihood.predictive_log_prob(f, variance, y, outputs))
    for part in (*parts, *sites):
        assert part.dtype == dtype
        assert part.isfinite().all()
    learned = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    for part in parts:
        for grad in torch.autograd.grad(part.sum(), (f, variance, *learned), retain_graph=True, allow_unused=True):
            assert grad is None or grad.isfinite().all()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_single_precision_is_close(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    wide = likelihood.expected_log_prob(mean, variance, y, outputs)
    narrow = likelihood.expected_log_prob(mean.float(), variance.float(), y.float(), outputs)
    assert_close(narrow, wide, SAME_FORMULA, torch.float32)


@pytest.mark.parametrize("name", COUNT_LIKELIHOODS)
def test_slopes_are_derivatives(rng, name):
    likelihood = make(name, rng)
    f, y, outputs = far_cells(likelihood)
    f, y, outputs = f[99:210], y[99:210], outputs[99:210]
    f = f.requires_grad_()
    (first,) = torch.autograd.grad(likelihood.log_prob(f, y, outputs).sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), f)
    own_first, own_second = likelihood.log_prob_slopes(f.detach(), y, outputs)
    assert_close(own_first, first, EXACT_GP)
    assert_close(own_second, second, EXACT_GP)


@pytest.mark.parametrize("name", WITH_EXPOSURE)
def test_exposure_multiplies_the_mean(rng, name):
    likelihood, mean, _, y, outputs = setting(name, rng)
    assert isinstance(likelihood, CountLikelihood)
    exposure = 0.2 + 3.0 * torch.as_tensor(rng.uniform(size=CELLS))
    # The f that has the mean already.
    f = likelihood.link.inverse(likelihood.link.log_mean(mean) + exposure.log())
    assert_close(likelihood.log_prob(mean, y, outputs, exposure), likelihood.log_prob(f, y, outputs))
    assert_close(likelihood.conditional_cdf(mean, y, outputs, exposure), likelihood.conditional_cdf(f, y, outputs))
    for a, b in zip(
        likelihood.conditional_moments(mean, outputs, exposure), likelihood.conditional_moments(f, outputs), strict=True
    ):
        assert_close(a, b)
    drawn = likelihood.sample(mean, outputs, worlds.generator(), exposure)
    assert torch.equal(drawn, likelihood.sample(f, outputs, worlds.generator()))


@pytest.mark.parametrize("name", WITH_EXPOSURE)
def test_predictions_with_exposure_average_over_f(rng, name):
    likelihood, mean, variance, y, outputs = setting(name, rng)
    exposure = 0.2 + 3.0 * torch.as_tensor(rng.uniform(size=CELLS))
    f = draws_of_f(mean, variance)
    log_prob = likelihood.log_prob(f, y, outputs, exposure)
    assert_monte_carlo(log_prob, likelihood.expected_log_prob(mean, variance, y, outputs, exposure))
    assert_monte_carlo(log_prob.exp(), likelihood.predictive_log_prob(mean, variance, y, outputs, exposure).exp())
    by_mean, by_variance = likelihood.site_derivatives(mean, variance, y, outputs, exposure)
    first, second = likelihood.log_prob_slopes(f, y, outputs, exposure)
    assert_monte_carlo(first, by_mean)
    assert_monte_carlo(0.5 * second, by_variance)
    mean_y, variance_y = likelihood.conditional_moments(f, outputs, exposure)
    predictive_mean, predictive_variance = likelihood.predictive_moments(mean, variance, outputs, exposure)
    assert_monte_carlo(mean_y, predictive_mean)
    assert_monte_carlo(variance_y + (mean_y - predictive_mean).square(), predictive_variance)
    zero = likelihood.log_prob(f, torch.zeros_like(y), outputs, exposure).exp()
    assert_monte_carlo(zero, likelihood.zero_probability(mean, variance, outputs, exposure))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_start_suits_the_data(rng, name):
    """At its level an output's mean is that of its data; guesses lie around the level and rise with y."""
    likelihood = make(name, rng)
    f = torch.tensor([-0.5, 0.3, 1.2], dtype=torch.float64)
    outputs = torch.arange(3).repeat(20_000)
    y = likelihood.sample(f[outputs], outputs, worlds.generator())
    level = likelihood.level(y, outputs, P + 1)
    mean, _ = likelihood.conditional_moments(level[:P], torch.arange(P))
    assert_close(mean, [float(y[outputs == p].mean()) for p in range(P)], ONE_CELL_MORE)
    assert level.isfinite().all()
    guess = likelihood.guess(y, outputs, level)
    assert guess.isfinite().all()
    for p in range(P):
        own, values = guess[outputs == p], y[outputs == p]
        assert (own[values.argsort()].diff() >= -1e-12).all()
        assert own.min() <= level[p] <= own.max()


def test_the_function_itself_has_no_noise(rng):
    noiseless, f, _, _, outputs = setting("noiseless", rng)
    assert torch.equal(noiseless.sample(f, outputs, worlds.generator()), f)
    assert torch.equal(noiseless.log_prob(f, f, outputs), torch.full_like(f, torch.inf))
    assert torch.equal(noiseless.log_prob(f, f + 1.0, outputs), torch.full_like(f, -torch.inf))
