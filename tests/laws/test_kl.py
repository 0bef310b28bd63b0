"""KL terms are those of torch.distributions."""

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal, kl_divergence

from ..tolerances import assert_close
from . import worlds
from .registry import LATENT_POSTERIORS, POSTERIORS

OUTPUTS = torch.tensor([3, 0, 4])


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_kl_of_the_inducing_variables(rng, posterior):
    q = worlds.random_posterior(posterior, 7, rng).moments()
    eye = torch.eye(7, dtype=torch.float64)
    expected = kl_divergence(
        MultivariateNormal(q.mean, q.covariance), MultivariateNormal(torch.zeros_like(q.mean), eye)
    )
    assert_close(q.kl(), expected)
    assert_close(q.logdet, torch.logdet(q.covariance))


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_q_of_u_starts_at_the_prior(posterior):
    assert_close(POSTERIORS[posterior](5).moments().kl(), 0.0)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("given_prior", [False, True])
@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_kl_of_the_latents(rng, posterior, given_prior, relative):
    latents = worlds.random_model(
        rng, num_outputs=5, latent_posterior=posterior, given_prior=given_prior, relative=relative
    ).latents
    mean, L = latents.means(OUTPUTS), latents.factor(OUTPUTS)
    prior_mean = torch.zeros_like(mean) if latents.prior_mean is None else latents.prior_mean[OUTPUTS]
    if posterior == "point":
        expected = -Normal(prior_mean, latents.prior_variance**0.5).log_prob(mean).sum(-1)
    else:
        eye = latents.prior_variance * torch.eye(latents.dim, dtype=torch.float64)
        expected = kl_divergence(MultivariateNormal(mean, L @ L.mT), MultivariateNormal(prior_mean, eye))
    assert_close(latents.kl(OUTPUTS), expected)


@pytest.mark.parametrize("posterior", LATENT_POSTERIORS)
def test_latents_at_the_prior_have_the_least_kl(rng, posterior):
    latents = worlds.random_model(rng, num_outputs=5, latent_posterior=posterior, given_prior=True).latents
    before = latents.kl(torch.arange(5))
    latents.set_to_prior(OUTPUTS)
    after = latents.kl(torch.arange(5))
    # A point has no entropy: what is left is −log p at the mode of the prior.
    mode = -Normal(0.0, 1.7**0.5).log_prob(torch.zeros(())) * latents.dim
    assert_close(after[OUTPUTS], (mode if posterior == "point" else torch.zeros(())).expand(3), dtype=torch.float32)
    untouched = torch.tensor([1, 2])
    assert torch.equal(after[untouched], before[untouched])
