"""Likelihoods of GPyTorch behind our interface."""

import gpytorch
import pytest
import torch

from manygp.errors import DataError, SettingError
from manygp.likelihoods import Bernoulli, Given, StudentT

from ...laws import worlds
from ...tolerances import EXACT_GP, assert_close

F = torch.linspace(-3, 3, 9, dtype=torch.float64)
OUTPUTS = torch.zeros(9, dtype=torch.int64)


def student_t():
    return gpytorch.likelihoods.StudentTLikelihood()


def test_bernoulli_is_ours(rng):
    given, ours = Given(gpytorch.likelihoods.BernoulliLikelihood()), Bernoulli()
    y, variance = torch.arange(9.0, dtype=torch.float64) % 2, torch.full_like(F, 0.7)
    given.num_points = 100
    assert given.is_discrete
    assert not given.is_affine
    assert_close(given.log_prob(F, y, OUTPUTS), ours.log_prob(F, y, OUTPUTS))
    assert_close(given.conditional_cdf(F, y, OUTPUTS), ours.conditional_cdf(F, y, OUTPUTS))
    for a, b in zip(
        given.predictive_moments(F, variance, OUTPUTS), ours.predictive_moments(F, variance, OUTPUTS), strict=True
    ):
        assert_close(a, b, EXACT_GP)


def test_student_t_is_ours():
    given = Given(student_t())
    with torch.no_grad():
        noise, ν = float(given.likelihood.noise), float(given.likelihood.deg_free)
        ours = StudentT(scale=(noise - 1e-6) ** 0.5, degrees_of_freedom=ν)
        assert given.is_affine
        assert_close(given.log_prob(F, F.flip(0), OUTPUTS), ours.log_prob(F, F.flip(0), OUTPUTS), EXACT_GP)
        assert_close(given.conditional_moments(F, OUTPUTS)[1], ours.conditional_moments(F, OUTPUTS)[1], EXACT_GP)


def test_the_original_is_not_touched():
    original = student_t()
    given = Given(original)
    (given.log_prob(F, F, OUTPUTS).sum()).backward()
    assert original.raw_noise.dtype == torch.float32
    assert original.raw_noise.grad is None
    assert given.likelihood.raw_noise.dtype == torch.float64
    assert given.likelihood.raw_noise.grad is not None
    assert list(given.row_parameters()) == []


def test_what_torch_does_not_know_is_refused_in_a_sentence():
    with pytest.raises(SettingError, match="StudentT of torch has no distribution function"):
        Given(student_t()).conditional_cdf(F, F, OUTPUTS)


def test_draws_follow_the_generator_and_leave_the_global_one_alone():
    given = Given(gpytorch.likelihoods.LaplaceLikelihood())
    state = torch.random.get_rng_state()
    a, b = given.sample(F, OUTPUTS, worlds.generator(3)), given.sample(F, OUTPUTS, worlds.generator(3))
    assert torch.equal(a, b)
    assert not torch.equal(a, given.sample(F, OUTPUTS, worlds.generator(4)))
    assert torch.equal(state, torch.random.get_rng_state())


def test_draws_leave_generators_of_other_devices_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded all devices"))
    assert Given(student_t()).sample(F, OUTPUTS, worlds.generator()).isfinite().all()


def test_values_outside_the_support_are_refused():
    given = Given(gpytorch.likelihoods.BetaLikelihood())
    with pytest.raises(DataError, match=r"Y holds 1\.5, but Given observations are of the support Interval"):
        given.check(torch.tensor([0.5, 1.5], dtype=torch.float64))
    given.check(torch.tensor([0.5, torch.nan], dtype=torch.float64))


def test_levels_and_guesses_without_a_known_link():
    given = Given(gpytorch.likelihoods.BetaLikelihood())
    y, outputs = torch.tensor([0.4, 0.5, 0.5, 0.8], dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    level = given.level(y, outputs, 2)
    assert_close(given.conditional_moments(level, OUTPUTS)[0], [1.45 / 3.0, 1.85 / 3.0])
    guess = given.guess(y, outputs, level)
    assert guess.isfinite().all()
    assert guess[0] < guess[1] < guess[2] < guess[3]


def test_likelihoods_of_whole_functions_are_refused():
    with pytest.raises(SettingError, match="GaussianLikelihood is not one-dimensional"):
        Given(gpytorch.likelihoods.GaussianLikelihood())
