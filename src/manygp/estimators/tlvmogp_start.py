"""Where a T-LVMOGP begins: all that its settings leave open follows from the survey of a table, or is as published."""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manygp.data import Scaling, Table
from manygp.estimators.cell_noise import sizes_of_cell_noise, start_cell_noise
from manygp.estimators.noise import typical_noise
from manygp.estimators.standardize import published_scaling
from manygp.estimators.trained import given
from manygp.initialise.priors import PriorMeans, prior_means
from manygp.initialise.tlvmogp import choose_sizes, choose_spectral_bound, initialise, initialise_at_prior
from manygp.likelihoods import Gaussian, Likelihood, likelihood_name
from manygp.models import TransformedLatentModel
from manygp.models.coordinates import place_outputs
from manygp.terms import Level, OwnPart, SharedPart, SharedShocks, Trend

if TYPE_CHECKING:
    from manygp.estimators.tlvmogp import TLVMOGP

__all__ = ["begin_at_data", "begin_at_prior"]

logger = logging.getLogger("manygp")

# What was published: sizes, and the bound of spectral norms.
_LATENT_DIM, _NUM_INDUCING, _SPECTRAL_BOUND = 3, 200, 0.1


def begin_at_data(
    settings: "TLVMOGP", table: Table, likelihood: Likelihood, rng: np.random.Generator, generator: torch.Generator
) -> tuple[TransformedLatentModel, Scaling]:
    """A model and scaling with all that is not given chosen from the data."""
    prior = prior_means(settings.latent_prior_mean, table, settings.latent_dim, likelihood, rng)
    is_told = settings.standardize is False or table.coordinates is not None or prior is not None
    survey = settings._look_at(
        table,
        likelihood,
        rng,
        # An output that is known by its place alone has no centre and scale of its own.
        "global" if settings.standardize is True and settings._knows_places(table) else settings.standardize,
        max_rank=None if isinstance(settings.latent_dim, str) else settings.latent_dim,
        looks_for_trend=settings.trend is not False and not is_told,
    )
    sizes = choose_sizes(
        survey,
        settings.latent_dim,
        settings.num_inducing,
        None if prior is None else prior.mean.shape[1],
        settings._looks_for_effects(table),
        typical_noise(settings.likelihood, survey.scaling),
        has_neighbors=settings._count_neighbors(table, likelihood) > 0,
    )
    if type(likelihood) is Gaussian and isinstance(settings.likelihood, str):
        likelihood = sizes.likelihood(likelihood)
    logger.info(
        "latent_dim=%d, num_inducing=%d, standardisation of outputs: %s, likelihood: %s, trend: %s",
        *(sizes.latent_dim, sizes.num_inducing, survey.choice.kind, likelihood_name(likelihood)),
        survey.slopes is not None,
    )
    has_trend, dims = settings.trend is True or survey.slopes is not None, (sizes.latent_dim, sizes.num_inducing)
    bound = choose_spectral_bound(table, sizes.latent_dim, settings.num_blocks)
    half_integer = survey.roughness(sizes.factors).half_integer if sizes.has_neighbors and sizes.factors else 3
    model = _untrained(settings, table, likelihood, dims, bound, prior, has_trend, generator, half_integer)
    initialise(model, survey, sizes, generator)
    start_cell_noise(model, table, survey.scaling, None if survey.slopes is not None else sizes.factors)
    return model, survey.scaling


def begin_at_prior(
    settings: "TLVMOGP", table: Table, likelihood: Likelihood, rng: np.random.Generator, generator: torch.Generator
) -> tuple[TransformedLatentModel, Scaling]:
    """A model and scaling after the published procedure."""
    h: Any = settings.latent_dim
    is_pca = isinstance(settings.latent_prior_mean, str)
    prior = prior_means(settings.latent_prior_mean, table, given(h, _LATENT_DIM) if is_pca else h, likelihood, rng)
    dims = (
        given(h, _LATENT_DIM if prior is None else prior.mean.shape[1]),
        given(settings.num_inducing, min(_NUM_INDUCING, table.num_observed)),
    )
    model = _untrained(settings, table, likelihood, dims, _SPECTRAL_BOUND, prior, settings.trend is True, generator)
    initialise_at_prior(model, generator)
    scaling = published_scaling(settings.standardize, table, likelihood.is_affine)
    start_cell_noise(model, table, scaling)
    return model, scaling


def _untrained(
    settings: "TLVMOGP",
    table: Table,
    likelihood: Likelihood,
    dims: tuple[int, int],
    spectral_bound: float,
    prior: PriorMeans | None,
    has_trend: bool,
    generator: torch.Generator,
    half_integer: int = 3,
) -> TransformedLatentModel:
    """A model of so many latent dimensions and inducing points, with its prior of latent vectors."""
    num_neighbors, terms = settings._count_neighbors(table, likelihood), list[list[Any]]()
    if not likelihood.is_affine and settings._preset.from_data:
        terms.append([Level.name])
    if has_trend:
        terms.append([Trend.name])
    if num_neighbors:
        # Neighbours tell these from f. Outputs share one function, and one for each latent dimension.
        rank = min(dims[0] + 1, table.num_outputs)
        terms += [[OwnPart.name, half_integer], [SharedShocks.name, rank], [SharedPart.name, rank, half_integer]]
    chosen = {
        "latent_dim": int(dims[0]),
        "num_inducing": int(dims[1]),
        "num_neighbors": num_neighbors,
        "spectral_bound": given(settings.spectral_bound, spectral_bound),
        "prior_mean": prior is not None,
        "terms": terms,
        "cell_noise": sizes_of_cell_noise(settings.noise, table),
        "coordinates": None if table.coordinates is None else table.coordinates.numbers(),
        "likelihood": likelihood_name(likelihood) if isinstance(settings.likelihood, str) else settings.likelihood,
    }
    model: TransformedLatentModel = settings._untrained(table, generator, **chosen)
    if prior is not None:
        prior.set(model.latents)
    if table.coordinates is not None:
        place_outputs(model, torch.as_tensor(table.coordinates.features), generator)
    return model
