"""Counts against scipy and the formulas of the paper, limits, counts that are large, and starting values."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from manygp.errors import DataError, SettingError
from manygp.likelihoods import NegativeBinomial, Poisson, ZeroInflatedNegativeBinomial, ZeroInflatedPoisson
from manygp.likelihoods.links import LINKS, bounded_exp

from ...laws import worlds
from ...tolerances import EXACT_GP, STEPS, assert_close

Y = torch.tensor([0.0, 1.0, 2.0, 7.0, 60.0, 64.0, 65.0, 900.0], dtype=torch.float64)
F = torch.tensor([-8.0, -1.0, 0.0, 2.0, 4.0, 7.0], dtype=torch.float64).unsqueeze(-1)
FIRST = torch.zeros(1, dtype=torch.int64)


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


# -- against scipy and the paper ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dispersion", [1e-6, 0.01, 0.03, 0.1, 1.0, 30.0])
def test_negative_binomial_is_that_of_scipy(dispersion):
    likelihood = NegativeBinomial(dispersion=dispersion)
    size = float(1.0 / likelihood.dispersion)
    reference = stats.nbinom(size, 1.0 / (1.0 + F.exp().numpy() / size))
    # scipy's own log mass loses digits at large sizes.
    assert_close(likelihood.log_prob(F, Y, FIRST), reference.logpmf(Y.numpy()), EXACT_GP)
    assert_close(likelihood.conditional_cdf(F, Y, FIRST), reference.cdf(Y.numpy()), EXACT_GP)
    mean, variance = likelihood.conditional_moments(F, FIRST)
    assert_close(mean, reference.mean())
    assert_close(variance, reference.var())


@pytest.mark.parametrize("link", LINKS)
def test_poisson_is_that_of_scipy(link):
    likelihood = Poisson(link=link, scale=1.5)
    m = 1.5 * (F.exp() if link == "exp" else torch.log1p(F.exp()))
    reference = stats.poisson(m.numpy())
    assert_close(likelihood.log_prob(F, Y, FIRST), reference.logpmf(Y.numpy()))
    assert_close(likelihood.conditional_cdf(F, Y, FIRST), reference.cdf(Y.numpy()))


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("k", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("dispersion", [0.01, 0.7])
def test_zero_inflated_negative_binomial_is_that_of_the_paper(dispersion, k, link):
    likelihood = ZeroInflatedNegativeBinomial(dispersion=dispersion, michaelis_constant=k, link=link)
    α, m = float(likelihood.dispersion), F.exp() if link == "exp" else torch.log1p(F.exp())
    ψ = 1.0 - m / (k + m)
    plain = NegativeBinomial(dispersion=dispersion, link=link).log_prob(F, Y, FIRST)
    zero = torch.log(ψ + (1.0 - ψ) * (1.0 + α * m) ** (-1.0 / α))
    assert_close(likelihood.log_prob(F, Y, FIRST), torch.where(Y == 0, zero, torch.log(1.0 - ψ) + plain), EXACT_GP)
    mean, variance = likelihood.conditional_moments(F, FIRST)
    assert_close(mean, (1.0 - ψ) * m)
    assert_close(variance, m * (1.0 - ψ) * (1.0 + m * (α + ψ)))
    assert_close(likelihood.conditional_cdf(F, double(0.0), FIRST), zero.exp())


def test_zero_inflated_poisson():
    likelihood = ZeroInflatedPoisson(michaelis_constant=0.4)
    ψ = 0.4 / (0.4 + F.exp())
    mass = stats.poisson(F.exp().numpy()).pmf(Y.numpy())
    assert_close(likelihood.log_prob(F, Y, FIRST).exp(), (1.0 - ψ) * torch.as_tensor(mass) + ψ * (Y == 0))
    mean, variance = likelihood.conditional_moments(F, FIRST)
    assert_close(mean, (1.0 - ψ) * F.exp())
    assert_close(variance, mean * (1.0 + F.exp() * ψ))


# -- limits ------------------------------------------------------------------------------------------------------------


def test_without_dispersion_negative_binomial_is_poisson():
    y, f = torch.arange(11.0, dtype=torch.float64), F[:4]
    poisson = Poisson().log_prob(f, y, FIRST)
    gaps = [
        float((NegativeBinomial(dispersion=α).log_prob(f, y, FIRST) - poisson).abs().max())
        for α in (1e-2, 1e-4, 1e-6, 1e-300)
    ]
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2] > 100 * gaps[3]
    assert gaps[3] < 1e-6


def test_without_a_michaelis_constant_no_zeros_are_added():
    plain, inflated = NegativeBinomial(dispersion=0.3), ZeroInflatedNegativeBinomial(1, 0.3, michaelis_constant=1e-200)
    assert_close(inflated.log_prob(F, Y, FIRST), plain.log_prob(F, Y, FIRST))
    # At the largest mean a Poisson has its zero less often than that.
    plain, inflated, f = Poisson(), ZeroInflatedPoisson(michaelis_constant=1e-200), F[:-1]
    assert_close(inflated.log_prob(f, Y, FIRST), plain.log_prob(f, Y, FIRST))


@pytest.mark.parametrize("make", [NegativeBinomial, ZeroInflatedNegativeBinomial])
def test_one_dispersion_is_the_same_for_each(make):
    outputs = torch.arange(8) % 3
    shared, own = make(3, 0.4, per_output=False), make(3, 0.4, per_output=True)
    assert (shared.log_dispersion.shape, own.log_dispersion.shape) == ((1,), (3,))
    before = own.log_prob(F, Y, outputs)
    assert_close(shared.log_prob(F, Y, outputs), before)
    own.log_dispersion[1] += 1.0
    assert torch.equal((own.log_prob(F, Y, outputs) != before).any(0), outputs == 1)


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKS)
def test_links_are_inverted(name):
    link, f = LINKS[name](), torch.linspace(-60, 60, 121, dtype=torch.float64)
    assert_close(link.inverse(link.log_mean(f)), f)
    ones, zeros = torch.ones_like(f), torch.zeros_like(f)
    with torch.enable_grad():
        f = f.requires_grad_()
        (slope,) = torch.autograd.grad(link.log_mean(f).sum(), f, create_graph=True)
        bend = torch.zeros_like(f) if name == "exp" else torch.autograd.grad(slope.sum(), f)[0]
    assert_close(link.chain(f, ones, zeros)[0], slope)
    assert_close(link.chain(f, ones, zeros)[1], bend)


def test_unknown_links_and_scales_are_refused():
    with pytest.raises(SettingError, match="link='log' is unknown: use one of exp, softplus"):
        Poisson(link="log")
    with pytest.raises(SettingError, match=r"scale=0\.0 is out of range: use a positive number"):
        Poisson(scale=0.0)


def test_the_mean_grows_linearly_where_it_would_overflow():
    x = double(79.0, 80.0, 81.0, 1e4)
    top = math.exp(80.0)
    assert_close(bounded_exp(x), [math.exp(79.0), top, 2.0 * top, top * (1e4 - 79.0)])


# -- large counts ------------------------------------------------------------------------------------------------------


LARGE = {
    "poisson": Poisson(),
    "negative binomial": NegativeBinomial(dispersion=1e-3),
    "zero-inflated negative binomial": ZeroInflatedNegativeBinomial(dispersion=1e-3, michaelis_constant=0.5),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("y", [0.0, 3.0, 30.0, 1e3, 1e5])
def test_quadrature_finds_narrow_peaks(name, y):
    """A count fixes f to 1/√y, far less than the distance of nodes that are spread over N(μ, v)."""
    likelihood, mean, variance, y = LARGE[name], double(math.log(y + 1.0) + 0.5), double(0.7), double(y)
    f = torch.linspace(float(mean) - 8, float(mean) + 8, 100_001, dtype=torch.float64)
    normal = torch.distributions.Normal(mean, variance.sqrt()).log_prob(f).exp() * (f[1] - f[0])
    mass = (normal * likelihood.log_prob(f, y, FIRST).exp()).sum()
    assert_close(likelihood.predictive_log_prob(mean, variance, y, FIRST), mass.log(), EXACT_GP)
    below = (normal * likelihood.conditional_cdf(f, y, FIRST)).sum()
    assert_close(likelihood.predictive_cdf(mean, variance, y, FIRST), below, STEPS)


# -- data and starting values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("y", "shown"), [([0.0, -3.0], "-3"), ([2.5], "2.5"), ([math.inf, 1.0], "inf")])
def test_what_is_no_count_is_refused(y, shown):
    with pytest.raises(DataError, match=rf"Y holds {shown}, but Poisson observations are counts \(0, 1, 2, \.\.\.\)"):
        Poisson().check(np.array(y))


def test_missing_values_are_not_checked():
    Poisson().check(np.array([[0.0, math.nan], [3.0, 1e9]]))


def test_levels_of_outputs_without_counts():
    y, outputs = double(4.0, 6.0, 0.0, 0.0), torch.tensor([0, 0, 1, 1])
    level = Poisson().level(y, outputs, 3)
    # Nothing but zeros: below one count in two cells, but finite; no cells at all: the rate of all.
    assert level[1] < math.log(0.5)
    assert_close(level[2].exp(), 10.5 / 4.0)


def test_levels_and_guesses_are_per_unit_of_exposure():
    exposure, outputs = double(0.5, 2.0, 8.0).repeat(1000), torch.zeros(3000, dtype=torch.int64)
    y = Poisson().sample(torch.full_like(exposure, 1.5), outputs, worlds.generator(), exposure)
    level = Poisson().level(y, outputs, 1, exposure)
    assert abs(float(level) - 1.5) < 0.05
    guess = Poisson().guess(y, outputs, level, exposure)
    spread = [float((guess[exposure == e] - 1.5).std()) for e in (0.5, 2.0, 8.0)]
    assert spread == sorted(spread, reverse=True)
    assert abs(float(guess.mean()) - 1.5) < 0.1


@pytest.mark.parametrize("make", [NegativeBinomial, ZeroInflatedNegativeBinomial])
@pytest.mark.parametrize("given_f", [False, True])
def test_dispersions_start_at_their_moments(rng, make, given_f):
    truth = double(0.1, 1.0)
    likelihood = make(2)
    likelihood.log_dispersion.copy_(truth.log())
    outputs = torch.arange(2).repeat(50_000)
    f = double(1.0, 2.0)[outputs]
    if given_f:
        f = f + 0.5 * worlds.normal(rng, len(f))
    exposure = 0.5 + torch.as_tensor(rng.uniform(size=len(f)))
    y = likelihood.sample(f, outputs, worlds.generator(), exposure)
    likelihood.log_dispersion.zero_()
    likelihood.start_from(y, outputs, f if given_f else None, exposure)
    assert (likelihood.dispersion / truth - 1.0).abs().max() < 0.15
    shared = make(2, per_output=False)
    shared.start_from(y, outputs, f, exposure)
    assert 0.1 < float(shared.dispersion) < 1.0


def test_a_start_leaves_constants_alone():
    likelihood = ZeroInflatedNegativeBinomial(2, 0.01, learn_dispersion=False, learn_michaelis_constant=False)
    likelihood.start_from(double(0.0, 50.0, 3.0), torch.tensor([0, 0, 1]))
    assert list(likelihood.parameters()) == []
    assert_close(likelihood.dispersion, [0.01, 0.01], EXACT_GP)


def test_a_start_survives_outputs_of_zeros():
    likelihood = NegativeBinomial(3)
    likelihood.start_from(torch.zeros(6, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert likelihood.dispersion.isfinite().all()


@pytest.mark.parametrize("make", [ZeroInflatedPoisson, ZeroInflatedNegativeBinomial])
def test_large_counts_tell_how_many_are_lost(rng, make):
    m, outputs = double(1e6, 2e6), torch.arange(2).repeat(2_000)
    y = torch.as_tensor(rng.poisson(m[outputs]) * (rng.random(4_000) > 0.3), dtype=torch.float64)
    likelihood = make(2)
    level = likelihood.level(y, outputs, 2)
    # A zero says nothing about a rate of a million: it was lost.
    assert_close(likelihood.guess(y, outputs, level)[y == 0], level[outputs[y == 0]])
    likelihood.start_from(y, outputs, m.log()[outputs])
    ψ = likelihood.extra_zeros(m)
    assert abs(float(ψ.mean()) - 0.3) < 0.02
    if make is ZeroInflatedNegativeBinomial:
        assert float(likelihood.dispersion.max()) < 0.05
    small = make(2)
    small.start_from(double(0.0, 1.0, 2.0, 1.0, 3.0, 0.0), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert_close(small.michaelis_constant, make(2).michaelis_constant)
