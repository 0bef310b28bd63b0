"""q(h): storage, draws and starts, each touching no more rows than asked for."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t

from manygp.errors import SettingError
from manygp.variational import LATENT_POSTERIORS, Latents

from ...laws import worlds
from ...tolerances import assert_close, assert_monte_carlo

OUTPUTS = torch.tensor([4, 1, 3])


@pytest.fixture(params=[False, True], ids=["free", "relative"])
def relative(request):
    """Whether entries of the factors are stored as they are, or relative to their diagonals."""
    return request.param


def random_latents(rng, posterior, sparse=False, relative=False):
    latents = Latents(6, 3, posterior, worlds.normal(rng, 6, 3), 0.5, sparse, relative)
    return worlds.shake(latents, rng, 0.3)


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_they_start_at_the_prior(rng, posterior, relative):
    prior = worlds.normal(rng, 6, 3)
    latents = Latents(6, 3, posterior, prior, 0.5, relative=relative)
    assert torch.equal(latents.means(OUTPUTS), prior[OUTPUTS])
    variance = 0.0 if posterior == "point" else 0.5
    L = latents.factor(OUTPUTS)
    assert_close(L @ L.mT, variance * torch.eye(3, dtype=torch.float64).expand(3, 3, 3))
    assert latents.num_outputs == 6
    assert_close(Latents(6, 3, posterior).means(OUTPUTS), torch.zeros(3, 3))


def test_unknown_posteriors_are_refused_with_a_list_of_known_ones():
    with pytest.raises(SettingError, match="latent_posterior='spike' is unknown: use one of full, diagonal, point"):
        Latents(2, 2, "spike")


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_factors_are_lower_triangular(rng, posterior, relative):
    L = random_latents(rng, posterior, relative=relative).factor(OUTPUTS)
    assert L.shape == (3, 3, 3)
    assert torch.equal(L, L.tril())
    if posterior == "diagonal":
        assert torch.equal(L, torch.diag_embed(L.diagonal(dim1=-2, dim2=-1)))


@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_draws_have_the_moments_of_q(rng, posterior, relative):
    latents = random_latents(rng, posterior, relative=relative)
    mean, L = latents.means(OUTPUTS).detach(), latents.factor(OUTPUTS).detach()
    column = torch.arange(3).repeat(6_000)
    with torch.no_grad():
        cells = latents.rsample(OUTPUTS, column, worlds.generator()).view(6_000, 3, 3)
    for draws in (cells, latents.sample(OUTPUTS, 6_000, seed=3)):
        assert_monte_carlo(draws, mean)
        centered = draws - mean
        assert_monte_carlo(centered.unsqueeze(-1) * centered.unsqueeze(-2), L @ L.mT)


@pytest.mark.parametrize("num_samples", [2_000, 2_001])
def test_draws_of_a_student_have_its_quantiles_in_pairs(rng, num_samples):
    latents = Latents(40, 1, "full", worlds.normal(rng, 40, 1), 0.25)
    latents.freedom = 3.0
    with torch.no_grad():
        draws = latents.sample(torch.arange(40), num_samples, seed=1)[..., 0] - latents.mean[:, 0]
    half = num_samples // 2
    assert_close(draws[-half:], -draws[:half])
    levels = np.array([0.05, 0.25, 0.75, 0.95])
    found = np.quantile((draws / 0.5).numpy(), levels)
    assert np.allclose(found, student_t(3.0).ppf(levels), rtol=0.05)


def test_cells_of_one_output_have_draws_of_their_own(rng):
    latents = random_latents(rng, "full")
    draws = latents.rsample(OUTPUTS, torch.tensor([0, 0, 1]), worlds.generator())
    assert not torch.equal(draws[0], draws[1])


def test_cells_of_one_output_share_a_draw_where_they_are_told_to(rng):
    latents = random_latents(rng, "full")
    latents.shared_draws = True
    column = torch.tensor([0, 1, 0, 2, 1])
    draws = latents.rsample(OUTPUTS, column, worlds.generator())
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[4])
    assert not torch.equal(draws[0] - latents.mean[OUTPUTS[0]], draws[1] - latents.mean[OUTPUTS[1]])
    generator, L = worlds.generator(), latents.factor(OUTPUTS).detach()
    with torch.no_grad():
        many = torch.stack([latents.rsample(OUTPUTS, torch.arange(3), generator) for _ in range(2_000)])
    centered = many - latents.mean[OUTPUTS].detach()
    assert_monte_carlo(centered.unsqueeze(-1) * centered.unsqueeze(-2), L @ L.mT)


def test_a_point_is_always_itself(rng):
    latents = random_latents(rng, "point")
    assert torch.equal(latents.rsample(OUTPUTS, torch.tensor([2, 2]), worlds.generator()), latents.mean[[3, 3]])
    assert torch.equal(latents.sample(OUTPUTS, 4, 0), latents.mean[OUTPUTS].detach().expand(4, 3, 3))


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_draws_for_prediction_belong_to_their_output(rng, posterior):
    latents = worlds.shake(Latents(3000, 2, posterior), rng)
    every = latents.sample(torch.arange(3000), 4, seed=9)
    for chosen in ([7], [2999, 0, 1500], [1023, 1024], [5, 5]):
        outputs = torch.tensor(chosen)
        assert_close(latents.sample(outputs, 4, seed=9), every[:, outputs])
    if posterior != "point":
        assert not torch.equal(latents.sample(torch.tensor([7]), 4, seed=10), every[:, [7]])
        # Blocks of outputs must not repeat each other's noise, nor must neighbouring seeds.
        noise = (every - latents.mean.detach()) / latents.sample(torch.arange(3000), 1, 0).abs().mean()
        assert not torch.allclose(noise[:, :1000], noise[:, 1024:2024])


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_factors_that_are_set_are_kept(rng, posterior, relative):
    latents = random_latents(rng, posterior, relative=relative)
    before = latents.factor(torch.arange(6)).detach()
    L = torch.linalg.cholesky(torch.stack([worlds.positive_definite(rng, 3) for _ in range(3)]))
    latents.set_factor(L, OUTPUTS)
    expected = {"full": L, "diagonal": torch.diag_embed(L.diagonal(dim1=-2, dim2=-1)), "point": torch.zeros_like(L)}
    assert_close(latents.factor(OUTPUTS), expected[posterior])
    latents.set_variance(0.25, OUTPUTS[:1])
    variance = 0.0 if posterior == "point" else 0.5
    assert_close(latents.factor(OUTPUTS[:1])[0], variance * torch.eye(3))
    others = torch.tensor([0, 2, 5])
    assert torch.equal(latents.factor(others), before[others])


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_touch_only_the_rows_asked_for(rng, posterior, sparse, relative):
    latents = random_latents(rng, posterior, sparse, relative)
    draws = latents.rsample(OUTPUTS, torch.tensor([0, 2, 2]), worlds.generator())
    (draws.square().sum() + latents.kl(OUTPUTS).sum()).backward()
    for parameter in latents.parameters():
        if parameter.numel():
            assert parameter.grad.is_sparse == sparse
            gradient = parameter.grad.to_dense()
            assert np.flatnonzero(gradient.abs().sum(-1)).tolist() == [1, 3, 4]


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_sparse_and_dense_gradients_agree(posterior, relative):
    gradients = []
    for sparse in (False, True):
        latents = random_latents(np.random.default_rng(0), posterior, sparse, relative)
        draws = latents.rsample(OUTPUTS, torch.tensor([0, 2, 2]), worlds.generator())
        (draws.square().sum() + latents.kl(OUTPUTS).sum()).backward()
        gradients.append([p.grad.to_dense() for p in latents.parameters() if p.numel()])
    for dense, sparse in zip(*gradients, strict=True):
        assert_close(sparse, dense)


@pytest.mark.parametrize("posterior", ["full", "diagonal"])
def test_q_goes_along_with_its_prior_as_a_posterior_would(rng, posterior, relative):
    latents = Latents(6, 3, posterior, worlds.normal(rng, 6, 3), 0.5, relative=relative)
    # What observations say: precision A and pull b. The posterior under a prior N(m, s) is (1/s + A)⁻¹ (m/s + b).
    root = worlds.normal(rng, 6, 3, 3) if posterior == "full" else worlds.normal(rng, 6, 3).diag_embed()
    A, b = root @ root.mT, worlds.normal(rng, 6, 3)

    def set_posterior(mean, variance):
        covariance = torch.linalg.inv(A + (1.0 / variance).diag_embed())
        return (covariance @ (b + mean / variance).unsqueeze(-1)).squeeze(-1), covariance

    mean, covariance = set_posterior(latents.prior_mean, latents.prior_variances())
    with torch.no_grad():
        latents.mean.copy_(mean)
        latents.set_factor(torch.linalg.cholesky(covariance))
    prior = worlds.normal(rng, 6, 3), worlds.normal(rng, 6, 3).exp()
    latents.change_prior(*prior)
    mean, covariance = set_posterior(*prior)
    L = latents.factor(torch.arange(6))
    assert_close(latents.mean, mean)
    assert_close(L @ L.mT, covariance)
    assert_close(latents.prior_variances(), prior[1])


def test_a_q_that_knows_less_than_its_prior_becomes_the_new_prior(rng):
    latents = Latents(6, 3, "full", None, 0.5)
    latents.set_variance(0.7)
    prior = worlds.normal(rng, 6, 3), worlds.normal(rng, 6, 3).exp()
    latents.change_prior(*prior)
    L = latents.factor(torch.arange(6))
    assert_close(latents.mean, prior[0])
    assert_close(L @ L.mT, prior[1].diag_embed())


def test_many_draws_take_little_more_memory_than_they_need(rng, monkeypatch):
    sizes, draw, latents = [], torch.randn, random_latents(rng, "full")
    monkeypatch.setattr(torch, "randn", lambda *size, **given: sizes.append(math.prod(size)) or draw(*size, **given))
    many = latents.sample(OUTPUTS, 9_000, seed=5)
    assert max(sizes) <= 1024 * 1024 * 3
    assert len(many[:4_500].unique(dim=0)) == 4_500
    # Draws of other outputs are none of theirs, however many are drawn at a time.
    assert torch.equal(latents.sample(OUTPUTS[1:], 9_000, seed=5), many[:, 1:])
