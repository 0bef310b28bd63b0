"""Likelihoods by name, and the noise of the Gaussian."""

import pytest
import torch

from manygp.errors import SettingError
from manygp.likelihoods import LIKELIHOODS, Gaussian, make_likelihood

from ...tolerances import assert_close


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_by_name(name):
    assert type(make_likelihood(name, 3)) is LIKELIHOODS[name]


def test_unknown_likelihoods_are_refused_with_a_list_of_known_ones():
    with pytest.raises(SettingError, match="likelihood='poison' is unknown: use one of gaussian"):
        make_likelihood("poison", 3)


def test_one_noise_for_all_or_one_for_each():
    shared, own = Gaussian(4, 0.2), Gaussian(4, 0.2, per_output=True)
    assert shared.is_shared
    assert not own.is_shared
    assert_close(shared.noise, torch.full((1,), 0.2, dtype=torch.float64))
    assert_close(own.noise, torch.full((4,), 0.2, dtype=torch.float64))
    own.noise = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    f = torch.zeros(3, dtype=torch.float64)
    assert_close(
        own.conditional_moments(f, torch.tensor([3, 0, 3]))[1], torch.tensor([0.4, 0.1, 0.4], dtype=torch.float64)
    )


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-12])
def test_the_noise_stays_above_its_floor(value):
    likelihood = Gaussian()
    likelihood.noise = torch.tensor(value)
    assert 1e-6 < float(likelihood.noise.detach()) < 1e-5
    assert torch.isfinite(likelihood.raw_noise).all()


def test_a_noise_that_is_set_is_a_start_not_a_constant():
    likelihood = Gaussian(noise=0.1)
    assert likelihood.raw_noise.requires_grad
    (slope,) = torch.autograd.grad(likelihood.noise.sum(), likelihood.raw_noise)
    assert float(slope) > 0
