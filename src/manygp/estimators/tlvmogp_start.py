"""Where a T-LVMOGP begins: all that its settings leave open is chosen here, from the data or as published."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import Factorisation, factorise
from manygp.data.table import FloatArray
from manygp.estimators.noise import with_fixed_noise
from manygp.estimators.standardize import published_scaling, scaling_kinds
from manygp.initialise import (
    choose_latent_dim,
    choose_num_inducing,
    choose_scaling,
    find_lengthscales,
    find_noise_spread,
    latent_dim_of,
    start_from_data,
    start_from_prior,
)
from manygp.initialise.coarse import coarsen
from manygp.initialise.priors import PriorMeans, prior_means
from manygp.initialise.pseudo_values import GUESS_TOLERANCE, guess_table, start_likelihood, start_posterior
from manygp.initialise.start import ScalingChoice
from manygp.initialise.trend import find_slopes, start_trend, without_slopes
from manygp.likelihoods import Gaussian, Likelihood, PooledGaussian, likelihood_name
from manygp.models import TransformedLatentModel
from manygp.models.coordinates import choose_placed_dim, factorise_placed
from manygp.models.row_effects import has_row_effects

if TYPE_CHECKING:
    from manygp.estimators.tlvmogp import TLVMOGP

__all__ = ["begin_at_data", "begin_at_prior", "choose_spectral_bound"]

logger = logging.getLogger("manygp")

_PAPER = {"latent_dim": 3, "num_inducing": 200}
# Spectral bounds of a network that hardly bends, and of one that does, which takes so many inputs for every weight, and
# so many features: inducing points cover fewer, and bending would only spoil what is said about gaps.
_STIFF, _FLEXIBLE, _INPUTS_PER_WEIGHT, _MANY_FEATURES = 0.1, 1.0, 20, 4
# Of outputs with coordinates: the least noise to start from, and how many inducing points for each that is needed. A
# kernel whose bends are below the noise σ² has a scale of 1/2σ², of which double precision keeps a share of 2σ⁴.
_PLACED_NOISE, _SPARE = 1e-6, 1.15


def begin_at_prior(
    settings: "TLVMOGP", table: Table, likelihood: Likelihood, rng: np.random.Generator
) -> tuple[TransformedLatentModel, Scaling]:
    """A model and scaling after the published procedure."""
    scaling = published_scaling(settings.standardize, table, likelihood.is_affine)
    is_open = settings.latent_dim == "auto"
    published = _PAPER["latent_dim"] if is_open and isinstance(settings.latent_prior_mean, str) else settings.latent_dim
    prior = prior_means(settings.latent_prior_mean, table, published, likelihood, rng)
    default = _PAPER["latent_dim"] if prior is None else prior.mean.shape[1]
    latent_dim = default if is_open else settings.latent_dim
    automatic = min(_PAPER["num_inducing"], table.num_observed)
    num_inducing = automatic if settings.num_inducing == "auto" else settings.num_inducing
    model = settings._untrained(table, likelihood, latent_dim, num_inducing, prior, settings.trend is True)
    start_from_prior(model)
    return model, scaling


def begin_at_data(
    settings: "TLVMOGP", table: Table, likelihood: Likelihood, rng: np.random.Generator
) -> tuple[TransformedLatentModel, Scaling]:
    """A model and scaling with all that is not given chosen from the data, or from guesses of f behind counts."""
    values, level = (table, None) if likelihood.is_affine else guess_table(likelihood, table, rng)
    prior = prior_means(settings.latent_prior_mean, table, settings.latent_dim, likelihood, rng)
    slopes = _find_slopes(settings, table) if level is None and prior is None else None
    if slopes is not None:
        logger.info("a linear trend along %d inputs beside the GP", table.num_features)
        values = without_slopes(table, slopes, rng)
    look = _look_at_values if level is None else _look_at_guesses
    choice, latent_dim, factors = look(settings, table, values, prior, rng)
    scaling = choice.scaling
    is_placed = table.coordinates is not None and level is None and factors is not None
    if is_placed:
        # Places have told what is noise better than cells could.
        found = find_lengthscales(values, scaling, factors, 0.0, rng, least_noise=_PLACED_NOISE)
    else:
        has_effects = level is None and _has_effects(settings, table, scaling, factors)
        found = find_lengthscales(values, scaling, factors, choice.held_out_error, rng, has_effects=has_effects)
    found = with_fixed_noise(found, settings.likelihood, scaling)
    num_inducing: Any = settings.num_inducing
    if num_inducing == "auto":
        num_inducing = choose_num_inducing(table, scaling, latent_dim, found, _SPARE if is_placed else 1.0)
    spread = find_noise_spread(values, scaling, factors) if isinstance(likelihood, Gaussian) else None
    is_named = type(likelihood) is Gaussian and isinstance(settings.likelihood, str)
    if is_named and spread is not None and not spread.is_negligible:
        likelihood = PooledGaussian(table.num_outputs)
    logger.info(
        "latent_dim=%d, num_inducing=%d, standardisation of outputs: %s, likelihood: %s",
        *(latent_dim, num_inducing, choice.kind, likelihood_name(likelihood)),
    )
    has_trend = settings.trend is True or slopes is not None
    model = settings._untrained(table, likelihood, latent_dim, num_inducing, prior, has_trend)
    start_from_data(model, values, scaling, found, factors, rng)
    if not is_placed and coarsen(model, values, scaling, rng):
        logger.info(
            "%d inducing points leave far more open than the noise: a smoother start, by the bound", num_inducing
        )
    if slopes is not None:
        start_trend(model, values, scaling, factors, slopes)
    if isinstance(model.likelihood, PooledGaussian) and spread is not None:
        model.likelihood.set_deviation(torch.as_tensor(spread.deviation), spread.variance)
    if level is not None:
        model.set_levels(torch.as_tensor(level))
    is_whole = values.num_inputs == table.num_inputs
    start_likelihood(model, table if level is not None else values, scaling, factors if is_whole else None, rng)
    if level is not None:
        start_posterior(model, values, scaling, found, rng)
    return model, scaling


def choose_spectral_bound(settings: "TLVMOGP", table: Table, latent_dim: int) -> float:
    """How far the network may bend, for as many inputs as tell about it."""
    dim = table.num_features + latent_dim
    weights = settings.num_blocks * dim * (dim + 1)
    can_bend = table.num_features >= _MANY_FEATURES and table.num_inputs >= _INPUTS_PER_WEIGHT * weights
    return _FLEXIBLE if can_bend and settings.preset != "paper" else _STIFF


def _has_effects(settings: "TLVMOGP", table: Table, scaling: Scaling, factors: Factorisation | None) -> bool:
    """Whether effects of single inputs may explain, once training is over, all that factors do."""
    return factors is not None and settings._looks_for_effects(table) and has_row_effects(table, scaling, factors.rank)


def _find_slopes(settings: "TLVMOGP", table: Table) -> FloatArray | None:
    """Slopes of a trend: none where inputs are left as they are, nor where places tell what an output does."""
    if settings.trend is False or settings.standardize is False or table.coordinates is not None:
        return None
    return find_slopes(table)


def _look_at_values(
    settings: "TLVMOGP", table: Table, values: Table, prior: PriorMeans | None, rng: np.random.Generator
) -> tuple[ScalingChoice, int, Factorisation | None]:
    """Scaling of the table, latent dimensions and factors, if there are some."""
    common = Scaling.fit(values, outputs="global")
    rank, latent_dim = _dims(settings, values, common, prior, rng)
    is_placed = table.coordinates is not None and table.num_outputs > 1
    placed = table if is_placed and isinstance(table, Grid) else None
    if placed is not None and settings.latent_dim == "auto":
        latent_dim = max(latent_dim, choose_placed_dim(placed, common, rng))
    kinds = scaling_kinds(settings.standardize)
    if settings.standardize is True and settings._knows_places(table):
        # An output that is known by its place alone has no centre and scale of its own.
        kinds = ("global",)
    choice = choose_scaling(values, kinds, rank, rng)
    if placed is not None:
        return choice, latent_dim, factorise_placed(placed, choice.scaling, latent_dim, rng)
    if choice.kind in ("completed", "output"):
        # A rank that was found in one unit for all is that of the outputs whose numbers are largest.
        latent_dim = _dims(settings, values, choice.scaling, prior, rng)[1]
    return choice, latent_dim, _factors(values, choice.scaling, latent_dim, prior, rng)


def _look_at_guesses(
    settings: "TLVMOGP", table: Table, values: Table, prior: PriorMeans | None, rng: np.random.Generator
) -> tuple[ScalingChoice, int, Factorisation | None]:
    """As `_look_at_values`, with outputs that stay as they are."""
    scaling = Scaling.fit(table, inputs=settings.standardize is not False, outputs="none")
    rank, latent_dim = _dims(settings, values, scaling, prior, rng, tolerance=GUESS_TOLERANCE)
    factors = _factors(values, scaling, latent_dim, prior, rng)
    return replace(choose_scaling(values, ("none",), rank, rng), scaling=scaling), latent_dim, factors


def _dims(
    settings: "TLVMOGP",
    table: Table,
    scaling: Scaling,
    prior: PriorMeans | None,
    rng: np.random.Generator,
    tolerance: float = 0.02,
) -> tuple[int, int]:
    """The rank of the data, as far as latent vectors could show it, and the latent dimensions."""
    given: Any = settings.latent_dim if prior is None else prior.mean.shape[1]
    known = {} if given == "auto" else {"most": given}
    rank = choose_latent_dim(table, scaling, rng, **known, tolerance=tolerance)
    return rank, latent_dim_of(rank, table) if given == "auto" else given


def _factors(
    table: Table, scaling: Scaling, latent_dim: int, prior: PriorMeans | None, rng: np.random.Generator
) -> Factorisation | None:
    """Factors that latent vectors can start from: none for lists of cells, nor where a prior says where they are."""
    if not isinstance(table, Grid) or table.num_outputs == 1 or prior is not None:
        return None
    return factorise(table, scaling, latent_dim, rng=rng)
