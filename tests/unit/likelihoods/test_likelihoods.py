"""Likelihoods by name and by data, and the noise of the Gaussian."""

import gpytorch
import numpy as np
import pytest
import torch

from manygp.errors import DataError, SettingError
from manygp.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Gaussian,
    Given,
    NegativeBinomial,
    PooledGaussian,
    choose_likelihood,
    likelihood_name,
    make_likelihood,
)

from ...laws import worlds
from ...tolerances import assert_close

# -- by name -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihoods_by_name(name):
    likelihood = make_likelihood(name, 3)
    assert type(likelihood) is LIKELIHOODS[name]
    assert likelihood_name(likelihood) == name


def test_other_likelihoods_have_the_name_of_their_class():
    assert likelihood_name(Given(gpytorch.likelihoods.BernoulliLikelihood())) == "Given"


def test_options_of_named_likelihoods():
    likelihood = make_likelihood("zinb", 3, link="softplus", michaelis_constant=0.2, learn_michaelis_constant=False)
    assert [name for name, _ in likelihood.named_parameters()] == ["log_dispersion"]
    assert_close(likelihood.michaelis_constant, [0.2])
    assert not make_likelihood("gaussian", 3, per_output=True).is_shared


def test_unknown_likelihoods_are_refused_with_a_list_of_known_ones():
    with pytest.raises(SettingError, match="likelihood='poison' is unknown: use one of gaussian"):
        make_likelihood("poison", 3)


def test_unknown_options_are_refused_with_a_list_of_known_ones():
    with pytest.raises(SettingError, match="'poisson' has no option 'dispersion': it knows link, scale"):
        make_likelihood("poisson", 3, dispersion=0.1)
    with pytest.raises(SettingError, match="'bernoulli' has no option 'noise': it knows none"):
        make_likelihood("bernoulli", 3, noise=0.1)


# -- as given ----------------------------------------------------------------------------------------------------------


def test_given_likelihoods_are_copied():
    original = NegativeBinomial(3, dispersion=0.7)
    copied = make_likelihood(original, 3)
    assert copied is not original
    assert torch.equal(copied.log_dispersion, original.log_dispersion)
    assert type(make_likelihood(gpytorch.likelihoods.LaplaceLikelihood(), 3)) is Given


def test_given_likelihoods_must_fit():
    with pytest.raises(SettingError, match="made for 4 outputs, but there are 3"):
        make_likelihood(NegativeBinomial(4), 3)
    with pytest.raises(SettingError, match=r"Options \(link\) are for named likelihoods"):
        make_likelihood(NegativeBinomial(3), 3, link="exp")


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_rows_are_told_by_name_however_few_they_are(name):
    options = {"per_output": True} if name in ("gaussian", "student-t") else {}
    one, three = (make_likelihood(name, p, **options) for p in (1, 3))
    assert one.rows == three.rows == tuple(one.row_names())
    assert one.for_outputs(3).state_dict().keys() == three.state_dict().keys()
    for joined in (one.joined(three), make_likelihood(one, 4)):
        assert all(getattr(joined, row).shape == (4,) for row in joined.rows)


def test_what_all_outputs_share_is_no_row_and_constants_may_be():
    assert NegativeBinomial(3, per_output=False).rows == ()
    constant = NegativeBinomial(2, dispersion=0.7, learn_dispersion=False)
    assert constant.rows == ("log_dispersion",)
    assert constant.row_names() == []
    assert_close(constant.joined(NegativeBinomial(1, dispersion=0.1)).log_dispersion.exp(), [0.7, 0.7, 0.1])


# -- by data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "values"),
    {
        "gaussian": lambda rng: rng.standard_normal(1000),
        "bernoulli": lambda rng: rng.uniform(size=1000) < 0.1,
        "poisson": lambda rng: rng.poisson(3.0, size=1000),
        "negative-binomial": lambda rng: rng.negative_binomial(2, 0.2, size=(500, 4)),
        "zinb": lambda rng: rng.negative_binomial(0.3, 0.2, size=1000),
    }.items(),
)
def test_a_look_at_the_data(rng, expected, values):
    assert choose_likelihood(values(rng)) == expected


@pytest.mark.parametrize(
    "values", [[1013.0, 1008.0, 1001.0, 998.0], [-1.0, 0.0, 5.0], [0.0, 0.0, 0.5, 9.0], [7.0, 7.0, 7.0]]
)
def test_integers_need_not_be_counts(values):
    assert choose_likelihood(np.array(values)) == "gaussian"


def test_missing_values_do_not_count():
    assert choose_likelihood(np.array([np.nan, 0.0, 1.0, np.nan])) == "bernoulli"
    with pytest.raises(DataError, match="no observed values to choose a likelihood by: name one"):
        choose_likelihood(np.array([np.nan]))


def test_labels_other_than_0_and_1_are_refused():
    with pytest.raises(DataError, match="Y holds 2, but Bernoulli observations are 0 or 1"):
        Bernoulli().check(np.array([0, 1, 2]))


# -- Gaussian noise ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("per_output", [True, False])
def test_noise_is_a_level_and_a_deviation(rng, per_output):
    own = worlds.shake(Gaussian(4, 0.2, per_output=True) if per_output else PooledGaussian(4, 0.2), rng)
    outputs = torch.tensor([3, 0, 3, 1])
    level, deviation = own.split_noise(outputs)
    assert_close(level * deviation.exp(), own.conditional_moments(torch.zeros(4, dtype=torch.float64), outputs)[1])


def test_pooled_noise_has_a_prior(rng):
    pooled = PooledGaussian(3, 0.2)
    pooled.set_deviation(torch.tensor([0.0, 1.0, -2.0]), 4.0)
    prior = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 2.0)
    value = pooled.negative_log_prior(torch.tensor([2, 1]))
    assert_close(value[0] - value[1], prior.log_prob(pooled.deviation[1]) - prior.log_prob(pooled.deviation[2]))


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


def test_a_noise_that_is_not_learned_stays_and_is_one_for_each_output_of_a_model():
    for fixed in (Gaussian(noise=0.2, learn_noise=False), Gaussian(noise=0.2).requires_grad_(False)):
        assert fixed.is_fixed
        fixed.start_from(torch.zeros(5, dtype=torch.float64), torch.zeros(5, dtype=torch.int64))
        own = make_likelihood(fixed, 3)
        assert own.is_fixed
        assert own.rows == ("raw_noise",)
        assert_close(own.noise, torch.full((3,), 0.2, dtype=torch.float64))
        assert own.for_outputs(2).is_fixed
    assert not Gaussian(noise=0.2).is_fixed
    assert_close(Gaussian(2, noise=[0.1, 3e-12], per_output=True, learn_noise=False).variances(2), [0.1, 3e-12])


def test_the_noise_starts_at_the_residuals():
    outputs = torch.arange(2).repeat(20_000)
    f = torch.linspace(0, 5, len(outputs), dtype=torch.float64)
    y = Gaussian(2, per_output=True)
    y.noise = torch.tensor([0.1, 0.6], dtype=torch.float64)
    y = y.sample(f, outputs, worlds.generator()).detach()
    own, shared, flat = (Gaussian(2, per_output=own) for own in (True, False, False))
    own.start_from(y, outputs, f)
    shared.start_from(y, outputs, f)
    flat.start_from(y, outputs)
    for likelihood in (own, shared, flat):
        likelihood.requires_grad_(False)
    assert (own.noise / torch.tensor([0.1, 0.6]) - 1.0).abs().max() < 0.05
    assert abs(float(shared.noise) - 0.35) < 0.02
    assert abs(float(flat.noise) - 0.35 - float(f.var())) < 0.1


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_rows_learn_with_sparse_gradients(name):
    """A step of a sparse optimiser moves the outputs of the cells and no others."""
    options = {"per_output": True} if name in ("gaussian", "student-t") else {}
    likelihood = make_likelihood(name, 5, **options)
    likelihood.sparse_rows = True
    rows = list(likelihood.row_parameters())
    assert len(rows) == (name in ("gaussian", "pooled-gaussian", "student-t", "negative-binomial", "zinb"))
    if not rows:
        return
    before = [row.detach().clone() for row in rows]
    y, outputs = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64), torch.tensor([1, 3, 3])
    mean = torch.zeros(3, dtype=torch.float64)
    (-likelihood.expected_log_prob(mean, mean + 0.2, y, outputs).sum()).backward()
    torch.optim.SparseAdam(rows, lr=0.1).step()
    for row, old in zip(rows, before, strict=True):
        assert (row != old).tolist() == [False, True, False, True, False]
