"""Which likelihood a table has, and where it begins: around the factors of the table."""

import logging
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.initialise.inducing import sample_cells
from manygp.initialise.pseudo_values import exposure_at
from manygp.likelihoods import Gaussian, Likelihood, choose_likelihood, make_likelihood
from manygp.models.latent_variable import LatentVariableModel
from manygp.terms import Level

__all__ = ["likelihood_for", "start_alone", "start_likelihood"]

logger = logging.getLogger("manygp")

# Values that a likelihood is chosen by.
_SAMPLE_CELLS = 100_000

# Cells that parameters of the likelihood start from: so many for each output, within limits for all.
_CELLS_PER_OUTPUT, _LEAST_SAMPLE, _MOST_SAMPLE = 1_000, 100_000, 4_000_000


def likelihood_for(given: Any, table: Table, rng: np.random.Generator) -> Likelihood:
    """The likelihood that was given, chosen by the values of the table if it is "auto"."""
    if given != "auto":
        return make_likelihood(given, table.num_outputs)
    _, _, y = table.sample(_SAMPLE_CELLS, rng)
    chosen = choose_likelihood(y)
    logger.info(
        "likelihood='auto' chose %r: of %d values %.0f%% are zero and %.0f%% whole; mean %.3g, variance %.3g",
        *(chosen, len(y), 100 * np.mean(y == 0), 100 * np.mean(y == np.floor(y)), y.mean(), y.var()),
    )
    return make_likelihood(chosen, table.num_outputs)


@torch.no_grad()
def start_likelihood(
    model: LatentVariableModel,
    table: Table,
    scaling: Scaling,
    factors: Factorisation | None,
    rng: np.random.Generator,
) -> None:
    """Set the parameters of the likelihood from a sample of cells, around the factors if there are some.

    `factors` describe the rows of `table`, in the units of f less its levels.
    """
    if isinstance(model.likelihood, Gaussian) and model.likelihood.noise.numel() == 1:
        # The noise is known from the start of the rest.
        return
    size = int(np.clip(_CELLS_PER_OUTPUT * table.num_outputs, _LEAST_SAMPLE, _MOST_SAMPLE))
    row, output, y = table.sample(size, rng)
    outputs = torch.as_tensor(output)
    known: list[Tensor] = [level.value[outputs, 0] for level in model.terms.of(Level)]
    if factors is not None:
        known.append(torch.as_tensor(factors.at(row, output)))
    f = torch.stack(known).sum(0) if known else None
    y = np.asarray(scaling.scale_y(y, output), dtype=np.float64)
    model.likelihood.start_from(torch.as_tensor(y), outputs, f, exposure_at(table, row))


@torch.no_grad()
def start_alone(
    likelihood: Likelihood, table: Table, scaling: Scaling, noise: float, rng: np.random.Generator
) -> Float[Tensor, " p"] | None:
    """Set the parameters of a likelihood around constants; returns levels of outputs that cannot be centred."""
    if isinstance(likelihood, Gaussian):
        likelihood.noise = torch.tensor(noise, dtype=torch.float64)
        return None
    _, output, y = (torch.as_tensor(part) for part in sample_cells(table, scaling, _LEAST_SAMPLE, rng))
    likelihood.start_from(y, output)
    return None if likelihood.is_affine else likelihood.level(y, output, table.num_outputs)
