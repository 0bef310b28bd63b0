"""Latent vectors whose prior is a smooth function of coordinates, plus a part of their own."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data import Grid, Scaling
from manygp.data.coordinates import CoordinateMap
from manygp.data.factorisation import Factorisation, factorise
from manygp.likelihoods import Likelihood
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.variational import CoordinatePrior

# The least that data say about an output, in precisions of its prior, or else nothing is known of it; the least share
# of a posterior's precision that counts as news; and the variance of what is not known.
_LEAST_NEWS, _LEAST_SHARE, _UNKNOWN = 1e-3, 0.1, 1e6
# A prior in training need not be as good as a prediction.
_FEWER_NEIGHBOURS = 24
# Latent dimensions to try, and the gain that is not worth more of them. Factors that look like noise by themselves are
# signal where neighbours share them, so that little counts as noise. And what to try them on.
_DIMS, _TOLERANCE, _MOST_NOISE, _NO_ERROR = (1, 2, 3, 4, 6, 8, 12, 16, 24), 0.02, 1e-6, 1e-8
# Inputs and outputs at most that latent dimensions are tried on, and outputs held out for it.
_MOST_INPUTS, _MOST_OUTPUTS, _HELD_OUTPUTS = 300, 5_000, 500


def with_coordinates(model: TransformedLatentModel, coordinates: CoordinateMap) -> None:
    """Give a model a prior over coordinates, which is nowhere yet."""
    latents = model.latents
    model.coordinates = CoordinatePrior(coordinates, latents.num_outputs, _news(model)[0].shape[1])
    latents.set_local_prior(torch.zeros_like(latents.mean), latents.prior_variances())


@torch.no_grad()
def place_outputs(model: TransformedLatentModel, features: Float[Tensor, "p f"], generator: torch.Generator) -> None:
    """Say where the outputs are, and let latents begin as some smooth functions of that."""
    assert model.coordinates is not None
    model.coordinates.features.copy_(features)
    weight = torch.randn(features.shape[1], model.latents.dim, dtype=features.dtype, generator=generator)
    mean = torch.tanh(features @ weight)
    model.latents.mean.copy_((mean - mean.mean(0)) / mean.std(0, unbiased=False).clamp(min=1e-6))
    model.latents.set_variance(min(0.01, model.latents.prior_variance))


def factorise_placed(table: Grid, scaling: Scaling, rank: int, rng: np.random.Generator) -> Factorisation:
    """Factors of outputs that have coordinates."""
    return factorise(table, scaling, rank, rng=rng, most_noise=_MOST_NOISE)


def choose_placed_dim(table: Grid, scaling: Scaling, rng: np.random.Generator) -> int:
    """The least number of factors with about the least error on outputs held out, known by their places alone."""
    assert table.coordinates is not None
    rows = np.sort(rng.permutation(np.flatnonzero(table.count_per_input()))[:_MOST_INPUTS])
    outputs = rng.permutation(np.flatnonzero(table.count_per_output()))[:_MOST_OUTPUTS]
    held, known = np.split(outputs, [min(len(outputs) // 5, _HELD_OUTPUTS)])
    held = held[np.isfinite(table.block(rows, held)).any(0)]
    limit = min(_DIMS[-1], len(rows), len(known) - 1)
    left = scaling.scale_y(table.block(rows, held), held)
    if limit < 2 or not len(held):
        return 1
    part = replace(scaling, y_center=scaling.y_center[known], y_scale=scaling.y_scale[known])
    factors = factorise_placed(Grid(table.X[rows], table.block(rows, known)), part, limit, rng)
    field = CoordinatePrior(table.coordinates.map, len(known), limit)
    features, loadings = torch.as_tensor(table.coordinates.features), torch.as_tensor(factors.loadings)
    field.features.copy_(features[known])
    field.learn(loadings, torch.zeros_like(loadings), int(rng.integers(2**31)))
    found = field.conditional(loadings, torch.zeros_like(loadings), features[held])[0].numpy()
    left = left - factors.row_mean[:, None]
    errors = {}
    for dim in (*(dim for dim in _DIMS if dim < limit), limit):
        each = np.nanmean(np.square(left - factors.row_factors[:, :dim] @ found[:, :dim].T), axis=0)
        # On a log scale, so that a few places unlike all others do not outvote the rest.
        errors[dim] = float(np.exp(np.log(each + _NO_ERROR).mean()))
    return min(dim for dim, error in errors.items() if error <= (1.0 + _TOLERANCE) * min(errors.values()))


@torch.no_grad()
def refresh_prior(model: TransformedLatentModel, empty: Int[Tensor, " e"], seed: int) -> None:
    """Give every output the prior that the others' latent vectors suggest: p(h_p | all that is known of the others).

    A GP over the coordinates is learned from what data alone say about latent vectors, and conditioned on that of all
    outputs but p. Nothing that the last prior said is left in it, so that no output is drawn to its neighbours twice.
    q(h) goes along with its prior. Outputs without observations are set to theirs.
    """
    assert model.coordinates is not None
    values, noise = _news(model)
    model.coordinates.learn(values, noise, seed)
    mean, variance = model.coordinates.conditional(values, noise, neighbours=_FEWER_NEIGHBOURS)
    h = model.latents.dim
    model.coordinates.learn_tails(values, noise, mean, variance, h)
    model.latents.change_prior(mean[:, :h], variance[:, :h])
    model.latents.set_to_prior(empty)
    for level in model.terms.constants():
        level[empty] = mean[empty, h : h + 1]
        h += 1
    set_parameters(model.likelihood, mean[empty, h:], model.likelihood.row_names(), empty)


@torch.no_grad()
def numbers_at(
    model: TransformedLatentModel, features: Float[Tensor, "k f"]
) -> tuple[Float[Tensor, "k c"], Float[Tensor, "k c"]]:
    """Means and variances of all numbers of outputs somewhere else: latent vector, level, parameters of likelihood."""
    assert model.coordinates is not None
    return model.coordinates.conditional(*_news(model), features)


@torch.no_grad()
def add_places(
    model: TransformedLatentModel,
    features: Float[Tensor, "k f"],
    mean: Float[Tensor, "k c"],
    variance: Float[Tensor, "k c"],
) -> None:
    """Say where outputs behind the others are, and what was known of them before their observations."""
    latents, h = model.latents, model.latents.dim
    assert model.coordinates is not None
    assert latents.prior_mean is not None
    model.coordinates.features = torch.cat([model.coordinates.features, features])
    old = latents.num_outputs - len(features)
    before = latents.prior_variances()[:old]
    latents.set_local_prior(torch.cat([latents.prior_mean[:old], mean[:, :h]]), torch.cat([before, variance[:, :h]]))


@torch.no_grad()
def _news(model: TransformedLatentModel) -> tuple[Float[Tensor, "p c"], Float[Tensor, "p c"]]:
    """What data alone say about the numbers of every output: values, and variances of their errors."""
    latents = model.latents
    prior = torch.full_like(latents.mean, latents.prior_variance)
    values: Tensor = latents.mean
    q = 1e-3 * prior
    if latents.posterior != "point":
        # Under a prior that all outputs share, neighbours have no say.
        values, covariance = latents.under_prior(torch.zeros_like(prior), prior)
        q = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=1e-12)
    news = 1.0 / q - 1.0 / prior
    is_news = news > _LEAST_NEWS / prior
    precision = torch.maximum(news, _LEAST_SHARE / q)
    if latents.posterior != "point":
        # N(v, 1/Λ) · N(0, s) has the mean v Λ / (Λ + 1/s).
        values = values / (q * precision)
    # Levels and the like are points, whose errors are left to the independent part.
    rest = [row[:, None] for row in model.likelihood.row_parameters()]
    values = torch.cat([values, *model.terms.constants(), *rest], -1)
    noise = torch.zeros_like(values)
    noise[:, : latents.dim] = 1.0 / precision
    noise[~is_news.any(-1)] = _UNKNOWN
    return values.detach(), noise


@torch.no_grad()
def set_parameters(
    likelihood: Likelihood,
    values: Float[Tensor, "k r"],
    names: list[str],
    outputs: Int[Tensor, " k"] | slice = slice(None),
) -> None:
    """Set the named parameters of a likelihood that belong to some outputs and are learned."""
    for column, name in zip(values.T, names, strict=True):
        row = getattr(likelihood, name)
        if row.requires_grad:
            row[outputs] = column
