"""Student-t noise against scipy, with outliers and with f much less certain than the noise."""

import math

import pytest
import torch
from scipy import stats

from manygp.likelihoods import StudentT

from ...laws import worlds
from ...tolerances import assert_close

FIRST = torch.zeros(1, dtype=torch.int64)
Y = torch.tensor([-300.0, -2.0, 0.1, 0.5, 4.0, 1e5], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("ν", [2.1, 4.0, 30.0, 100.0])
def test_it_is_that_of_scipy(ν):
    likelihood = StudentT(scale=0.3, degrees_of_freedom=ν)
    assert_close(likelihood.degrees_of_freedom, [ν])
    f, reference = torch.tensor(0.2, dtype=torch.float64), stats.t(ν, loc=0.2, scale=float(likelihood.scale))
    assert_close(likelihood.log_prob(f, Y, FIRST), reference.logpdf(Y.numpy()))
    assert_close(likelihood.conditional_cdf(f, Y, FIRST), reference.cdf(Y.numpy()))
    assert_close(likelihood.conditional_moments(f, FIRST)[1], reference.var())


@pytest.mark.parametrize("variance", [1e-8, 0.01, 1.0, 100.0])
def test_predictions_hold_at_any_ratio_of_variances(variance):
    likelihood = StudentT(scale=0.1, degrees_of_freedom=3.0)
    mean, v = torch.tensor(0.2, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64)
    y = torch.tensor([-3.0, 0.2, 0.25, 40.0], dtype=torch.float64)
    f = 0.2 + math.sqrt(variance) * torch.linspace(-12, 12, 400_001, dtype=torch.float64).unsqueeze(-1)
    weight = torch.distributions.Normal(mean, v.sqrt()).log_prob(f) + (f[1] - f[0]).log()
    exact = torch.logsumexp(weight + likelihood.log_prob(f, y, FIRST), 0)
    assert_close(likelihood.predictive_log_prob(mean, v, y, FIRST), exact)


def test_outliers_do_not_drown_the_start():
    likelihood, outputs = StudentT(2, per_output=True), torch.arange(2).repeat(2000)
    f = torch.linspace(0, 1, 4000, dtype=torch.float64)
    y = f + torch.tensor([0.1, 0.5], dtype=torch.float64)[outputs] * torch.randn(
        4000, generator=worlds.generator(), dtype=torch.float64
    )
    y[::500] += 5.0
    likelihood.start_from(y, outputs, f)
    scale = likelihood.scale
    assert 0.07 < scale[0] < 0.13
    assert 0.3 < scale[1] < 0.6
