"""Bounds of minibatches average exactly to the full bound, over inputs, outputs and cells, with gaps."""

import numpy as np
import pytest
import torch

from manygp.data import CellPlan, Cells, Grid, GridPlan
from manygp.variational import CellBatch

from ..tolerances import assert_close
from . import worlds
from .registry import GAUSSIAN_LIKELIHOODS, LATENT_POSTERIORS


def as_cells(grid):
    row, output = np.nonzero(~np.isnan(grid.Y))
    return Cells(grid.X[row], output, grid.Y[row, output], grid.output_names)


DRAWS = 100
PLANS = {
    "all at once": lambda table, s: GridPlan(table, s),
    "inputs": lambda table, s: GridPlan(table, s, batch_inputs=3),
    "outputs": lambda table, s: GridPlan(table, s, batch_outputs=2),
    "inputs and outputs": lambda table, s: GridPlan(table, s, batch_inputs=4, batch_outputs=3),
    "one cell of the grid": lambda table, s: GridPlan(table, s, batch_inputs=1, batch_outputs=1),
    "cells of a grid": lambda table, s: CellPlan(table, s, batch_cells=5),
    "cells of a list": lambda table, s: CellPlan(as_cells(table), s, batch_cells=4),
    "single cells": lambda table, s: CellPlan(as_cells(table), s, batch_cells=1),
}


@pytest.fixture
def table(rng):
    """Gaps at random, one input and one output without a cell."""
    grid = worlds.random_grid(rng, num_inputs=8, num_outputs=5)
    Y = grid.Y.copy()
    Y[3], Y[:, 2] = np.nan, np.nan
    return Grid(grid.X, Y)


def fix_draws(model, rng, monkeypatch):
    """One draw of the latent noise for each output, whichever batch it is in."""
    latents = model.latents
    noise = worlds.normal(rng, latents.num_outputs, latents.dim)

    def rsample(outputs, column, generator, key=None):
        draws = (latents.factor(outputs) @ noise[outputs].unsqueeze(-1)).squeeze(-1)
        return (latents.means(outputs) + draws)[column]

    monkeypatch.setattr(latents, "rsample", rsample)


PARTS = [(posterior, "gaussian") for posterior in LATENT_POSTERIORS]
PARTS += [("point", name) for name in GAUSSIAN_LIKELIHOODS]


@pytest.mark.parametrize(("latent_posterior", "likelihood"), dict.fromkeys(PARTS))
@pytest.mark.parametrize("plan", PLANS)
def test_an_epoch_averages_to_the_full_bound(rng, monkeypatch, table, plan, latent_posterior, likelihood):
    model = worlds.random_model(
        rng, num_outputs=5, latent_posterior=latent_posterior, likelihood=likelihood, given_prior=True
    )
    if latent_posterior != "point":
        fix_draws(model, rng, monkeypatch)
    full = model.elbo(worlds.whole_batch(table), worlds.generator())
    batches = PLANS[plan](table, worlds.raw(table)).epoch(rng)
    parts = [
        model.elbo(CellBatch.from_arrays(batch, torch.float64, worlds.CPU), worlds.generator()) for batch in batches
    ]
    for term in ("expected_log_lik", "kl_u", "kl_h", "bound"):
        assert_close(torch.stack([getattr(part, term) for part in parts]).mean(), getattr(full, term))


@pytest.mark.parametrize("plan", PLANS)
def test_gradients_of_an_epoch_average_too(rng, table, plan):
    model = worlds.random_model(rng, num_outputs=5)
    parameters = [parameter for parameter in model.parameters() if parameter.numel()]

    def gradients(batch):
        bound = model.elbo(CellBatch.from_arrays(batch, torch.float64, worlds.CPU), worlds.generator()).bound
        return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(bound, parameters)])

    (whole,) = GridPlan(table, worlds.raw(table)).epoch(rng)
    parts = [gradients(batch) for batch in PLANS[plan](table, worlds.raw(table)).epoch(rng)]
    assert_close(torch.stack(parts).mean(0), gradients(whole))


@pytest.mark.parametrize("latent_posterior", ["full", "diagonal"])
def test_estimates_with_fresh_draws_are_unbiased(rng, table, latent_posterior):
    """The average over many draws is the expectation over q(h), here by a dense sample of its own."""
    model = worlds.random_model(rng, num_outputs=5, latent_posterior=latent_posterior)
    batch = worlds.whole_batch(table)
    with torch.no_grad():
        draws = [model.elbo(batch, worlds.generator(seed)).expected_log_lik for seed in range(DRAWS)]
        h = model.latents.sample(torch.arange(5), DRAWS, seed=1)
        q = model.gp.posterior.moments()
        outputs = batch.outputs[batch.column]
        fixed = [
            model.gp.evidence(model.embed(batch.x, h[s][outputs]), batch.y, outputs, model.likelihood).expected_log_lik(
                q
            )
            for s in range(DRAWS)
        ]
    draws, fixed = torch.stack(draws), torch.stack(fixed)
    error = (draws.var() / DRAWS + fixed.var() / DRAWS).sqrt()
    assert abs(draws.mean() - fixed.mean()) < 4 * error
