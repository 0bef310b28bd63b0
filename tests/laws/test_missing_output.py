"""An output without a single observation changes nothing but its own KL and the prior of its own noise."""

import numpy as np
import pytest
import torch

from manygp.data import Grid

from ..tolerances import assert_close
from . import worlds
from .registry import GAUSSIAN_LIKELIHOODS, LATENT_POSTERIORS


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
@pytest.mark.parametrize("latent_posterior", LATENT_POSTERIORS)
def test_a_missing_output_adds_its_own_kl_only(rng, latent_posterior, likelihood):
    table = worlds.random_grid(rng, num_outputs=4)
    model = worlds.random_model(rng, num_outputs=5, latent_posterior=latent_posterior, likelihood=likelihood)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    with torch.no_grad():
        without = model.elbo(worlds.whole_batch(table), worlds.generator())
        with_it = model.elbo(worlds.whole_batch(wider), worlds.generator())
        own = (model.latents.kl(torch.tensor([4])) + model.likelihood.negative_log_prior(torch.tensor([4])))[0]
    assert torch.equal(with_it.expected_log_lik, without.expected_log_lik)
    assert torch.equal(with_it.kl_u, without.kl_u)
    assert_close(with_it.kl_h - without.kl_h, own)


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
def test_it_does_not_move_the_natural_step(rng, likelihood):
    table = worlds.random_grid(rng, num_outputs=4)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    moments = []
    for observed in (table, wider):
        model = worlds.random_model(np.random.default_rng(1), num_outputs=5, likelihood=likelihood)
        model.natural_elbo(worlds.whole_batch(observed), worlds.generator(), 0.7)
        moments.append(model.gp.posterior.moments())
    assert torch.equal(moments[0].mean, moments[1].mean)
    assert torch.equal(moments[0].covariance, moments[1].covariance)


def test_its_latent_feels_only_its_prior(rng):
    table = worlds.random_grid(rng, num_outputs=4)
    wider = Grid(table.X, np.column_stack([table.Y, np.full(table.num_inputs, np.nan)]))
    model = worlds.random_model(rng, num_outputs=5, latent_posterior="full", given_prior=True)
    with torch.no_grad():
        model.latents.set_to_prior(torch.tensor([4]))
    model.elbo(worlds.whole_batch(wider), worlds.generator()).bound.backward()
    # At the prior, where its KL is least, nothing pulls.
    assert_close(model.latents.mean.grad[4], torch.zeros(2))
    assert_close(model.latents.scale.grad[4], torch.zeros(3))
