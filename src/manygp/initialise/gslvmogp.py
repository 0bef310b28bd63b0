"""Where a sum of separable kernels begins: from the data, or the published prior start."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.initialise.evidence import Lengthscales, evidence_lengthscales
from manygp.initialise.inducing import greedy_inducing
from manygp.initialise.latents import linear_latents
from manygp.initialise.likelihood import start_likelihood
from manygp.initialise.survey import Survey
from manygp.kernels import make_kernel, rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.terms import Level
from manygp.variational import CellBatch
from manygp.variational.kronecker import NaturalKronecker

__all__ = ["choose_inducing_sizes", "initialise", "initialise_at_prior"]

# Squared lengthscales of the latents, in spreads: from clearly curved to as good as linear.
_SQUARED_LENGTHSCALES = (4.0**2, 100.0**2)
# The least noise to start from, and the least spread of a factor that moves.
_MIN_NOISE, _WEAKEST = 1e-4, 1e-6
# Inducing inputs at least and at most, inducing latent vectors at most, and pairs of both at most.
_MIN_INPUTS, _MAX_INPUTS, _MAX_LATENTS, _MAX_PRODUCT = 10, 200, 32, 448
# Inputs and latent vectors that inducing points are chosen among.
_CANDIDATES = 2000
# Cells that starts are compared on, and rounds for q(u) and the noise to agree: of the chosen start, and of a trial.
_SETTLE_CELLS, _SETTLE_ROUNDS, _TRIAL_ROUNDS = 2000, 6, 4
# Multiples of lengthscales that are tried, of inputs and of latent vectors.
_INPUT_STRETCHES, _LATENT_STRETCHES = (1.0, 1.7, 3.0), (1.0, 0.5, 0.25)


def choose_inducing_sizes(
    table: Table, scaling: Scaling, latent_dim: int, num_components: int, found: Lengthscales
) -> tuple[int, int]:
    """Inducing points in latent and input space, by the latent directions and by the pieces of the functions.

    A function of all latent vectors together that is nearly linear needs a point for every direction and one more;
    twice as many leave room for curvature. With several components the product of both numbers counts, since its square
    does.
    """
    latents = min(2 * (latent_dim * num_components + 1), _MAX_LATENTS, max(table.num_outputs, 1))
    distinct = np.unique(table.X, axis=0)
    pieces = found.num_pieces(scaling.scale_x(distinct))
    most = _MAX_INPUTS if num_components == 1 else max(_MIN_INPUTS, _MAX_PRODUCT // latents)
    return latents, min(max(int(pieces), _MIN_INPUTS), most, len(distinct))


@torch.no_grad()
def initialise_at_prior(model: SeparableLatentModel, generator: torch.Generator, noise_std: float = 0.1) -> None:
    """The published start: latents at their prior, inducing points standard normal, kernels at softplus(0)."""
    nn.init.normal_(model.Z_X, generator=generator)
    nn.init.normal_(model.Z_H, generator=generator)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2, dtype=torch.float64)


@dataclass(frozen=True)
class _Component:
    """Latent means (p, h), factors of their covariances, lengthscales (h,) and (d,), scales of one component."""

    mean: Float[Tensor, "p h"]
    factor: Float[Tensor, "p h h"]
    latent_lengthscale: Float[Tensor, " h"]
    input_lengthscale: Float[Tensor, " d"]
    outputscale: float
    share: float = 1.0


@torch.no_grad()
def initialise(model: SeparableLatentModel, survey: Survey, found: Lengthscales, factors: Factorisation | None) -> None:
    """Start in lengthscale units, with latents and noise from a factorisation and inducing points among the data.

    The factors are dealt to the components in order of their strength, so that each component has input lengthscales
    of its own, those of its factors.

    Parameters
    ----------
    model
        The model to set.
    survey
        The survey of the table.
    found
        What the evidence said about the inputs, and the noise.
    factors
        A factorisation of rank at most Q times the latent dimensions; None if there is none, and for latents with a
        prior mean, which start there.
    """
    table, values, scaling, rng = survey.table, survey.values, survey.scaling, survey.rng("separable")
    Q = model.num_components
    for level in model.terms.of(Level):
        level.set(torch.as_tensor(survey.levels))
    model.units.copy_(torch.as_tensor(found.lengthscale))
    components = [
        _component_without_factors(model, q, found, rng)
        if factors is None
        else _component_of_factors(model, values, scaling, factors, q, found, rng)
        for q in range(Q)
    ]
    for q, component in enumerate(components):
        model.latents.mean[q::Q] = component.mean
        model.latents.set_factor(component.factor, slice(q, None, Q))
    empty = torch.as_tensor(np.flatnonzero(table.count_per_output() == 0))
    model.latents.set_to_prior(model.rows(empty))
    _place_latents(model, rng)
    start_likelihood(model, table, scaling, factors if values.num_inputs == table.num_inputs else None, rng)
    candidates, batch = _input_candidates(model, scaling.scale_x(table.X), rng), _sampled_batch(table, scaling, rng)
    points, bounds = {}, {}
    for stretch in _INPUT_STRETCHES:
        _set_kernels(model, components, stretch, 1.0)
        points[stretch] = greedy_inducing(model.input_kernels[0], candidates, len(model.Z_X))
    for stretches in itertools.product(_INPUT_STRETCHES, _LATENT_STRETCHES if table.num_outputs > 1 else (1.0,)):
        _set_kernels(model, components, *stretches)
        model.Z_X.copy_(points[stretches[0]])
        bounds[stretches] = _settle(model, batch, found.noise, _TRIAL_ROUNDS)
    best = max(bounds, key=bounds.__getitem__)
    _set_kernels(model, components, *best)
    model.Z_X.copy_(points[best[0]])
    _settle(model, batch, found.noise, _SETTLE_ROUNDS)


def _set_kernels(
    model: SeparableLatentModel,
    components: list[_Component],
    input_stretch: float,
    latent_stretch: float,
) -> None:
    """Set the kernels with all lengthscales stretched.

    Few inducing inputs want longer lengthscales than the functions have. A kernel that is nearly linear in h has a
    large constant part, whose error they have to pay for as well; shorter latent lengthscales with a smaller output
    scale have the same linear part.
    """
    for component, on_inputs, on_latents in zip(components, model.input_kernels, model.latent_kernels, strict=True):
        share = component.share / latent_stretch**2
        rescale_kernel(on_latents, component.latent_lengthscale * latent_stretch, 1.0, share)
        scale = component.outputscale * latent_stretch**2
        rescale_kernel(on_inputs, component.input_lengthscale * input_stretch, scale)


def _component_without_factors(
    model: SeparableLatentModel, q: int, found: Lengthscales, rng: np.random.Generator
) -> _Component:
    """Latents at their prior means, or else random; components differ by their input lengthscales."""
    latents, p, h = model.latents, model.num_outputs, model.latents.dim
    d, variance = model.units.shape[0], min(0.01, latents.prior_variance)
    lengthscale = torch.ones(h, dtype=torch.float64)
    if latents.prior_mean is None:
        mean = torch.as_tensor(rng.standard_normal((p, h)))
    else:
        mean = latents.prior_mean[q :: model.num_components]
        variance = latents.prior_variance
        if p > 1:
            # Latents with a meaning of their own vary over their spread.
            lengthscale = mean.std(0).clamp(min=latents.prior_variance**0.5)
    return _Component(
        mean,
        variance**0.5 * torch.eye(h, dtype=torch.float64).expand(p, h, h),
        lengthscale,
        torch.full((d,), 2.0 ** _alternating(q), dtype=torch.float64),
        found.signal / model.num_components,
    )


def _alternating(q: int) -> int:
    """0, 1, −1, 2, −2, …."""
    return (q + 1) // 2 * (1 if q % 2 else -1)


def _component_of_factors(
    model: SeparableLatentModel,
    table: Table,
    scaling: Scaling,
    factors: Factorisation,
    q: int,
    found: Lengthscales,
    rng: np.random.Generator,
) -> _Component:
    """Component q takes the q-th group of factors; what it lacks of them is filled with weak random directions."""
    D, p = model.latents.dim, model.num_outputs
    columns = slice(q * D, (q + 1) * D)
    row_factors, loadings = factors.row_factors[:, columns], factors.loadings[:, columns]
    missing = D - row_factors.shape[1]
    loadings = np.column_stack([loadings, 0.1 * rng.standard_normal((p, missing))])
    filled = np.column_stack([row_factors, np.zeros((len(row_factors), missing))])
    # What all outputs share goes to the first component.
    row_mean = factors.row_mean * (q == 0)
    prior_variance = model.latents.prior_variance
    start = linear_latents(table, row_mean, filled, found.noise, prior_variance, _SQUARED_LENGTHSCALES)
    input_lengthscale = found.lengthscale
    if model.num_components > 1:
        curves = row_factors if q else np.column_stack([row_factors, factors.row_mean])
        input_lengthscale = _curve_lengthscales(table, scaling, curves, found, rng)
    return _Component(
        torch.as_tensor(loadings),
        start.factor,
        start.lengthscale,
        torch.as_tensor(input_lengthscale / found.lengthscale),
        start.outputscale,
        start.share,
    )


def _curve_lengthscales(
    table: Table, scaling: Scaling, curves: FloatArray, found: Lengthscales, rng: np.random.Generator
) -> FloatArray:
    """Input lengthscales of some curves over the inputs, by their evidence; those of the outputs if they are flat."""
    moving = curves[:, curves.std(0) > _WEAKEST] if len(curves) > 1 else curves[:, :0]
    if moving.shape[1] == 0:
        return found.lengthscale
    own = Grid(table.X, np.ascontiguousarray(moving))
    units = replace(Scaling.fit(own, outputs="output"), x_center=scaling.x_center, x_scale=scaling.x_scale)
    return evidence_lengthscales(own, units, rng).lengthscale


def _input_candidates(model: SeparableLatentModel, x: FloatArray, rng: np.random.Generator) -> Float[Tensor, "c d"]:
    """Distinct inputs in units, among which inducing inputs are placed."""
    distinct = np.unique(x, axis=0)
    if len(distinct) > _CANDIDATES:
        distinct = distinct[rng.choice(len(distinct), _CANDIDATES, replace=False)]
    return _at_least(torch.as_tensor(distinct) / model.units, len(model.Z_X), 0.1, rng)


def _place_latents(model: SeparableLatentModel, rng: np.random.Generator) -> None:
    """Put inducing latent vectors at those of some outputs, well spread.

    The same outputs for every component: an inducing variable is the sum of all components at one place.
    """
    Q, j, h = model.Z_H.shape
    means = model.latents.mean.view(-1, Q * h)
    if len(means) > _CANDIDATES:
        means = means[torch.as_tensor(rng.choice(len(means), _CANDIDATES, replace=False))]
    candidates = _at_least(means, j, 0.5, rng)
    spread = candidates.std(0).clamp(min=1e-3) if len(candidates) > 1 else torch.ones(Q * h).to(candidates)
    together = make_kernel("rbf", Q * h)
    rescale_kernel(together, 4.0 * spread, 1.0)
    model.Z_H.copy_(greedy_inducing(together, candidates, j).view(j, Q, h).transpose(0, 1))


def _sampled_batch(table: Table, scaling: Scaling, rng: np.random.Generator) -> CellBatch:
    """Some cells that stand for all."""
    row, output, y = table.sample(_SETTLE_CELLS, rng)
    outputs, column = np.unique(output, return_inverse=True)
    return CellBatch(
        x=torch.as_tensor(scaling.scale_x(table.X[row])),
        y=torch.as_tensor(scaling.scale_y(y, output)),
        outputs=torch.as_tensor(outputs),
        column=torch.as_tensor(column),
        cell_weight=table.num_observed / len(y),
        output_weight=torch.zeros(len(outputs), dtype=torch.float64),
        row=torch.as_tensor(row),
        exposure=None if table.exposure is None else torch.as_tensor(table.exposure[row]),
    )


def _settle(model: SeparableLatentModel, batch: CellBatch, noise: float, rounds: int) -> float:
    """Bring q(u) and the noise into agreement and return the bound.

    Few inducing points leave more unexplained than the factors do, and all that counts as noise.
    """
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(max(noise, _MIN_NOISE), dtype=torch.float64)
    assert isinstance(model.posterior, NaturalKronecker)
    model.posterior.mean.zero_()
    for _ in range(rounds):
        # The same draws for all candidates.
        terms = model.natural_elbo(batch, torch.Generator().manual_seed(0), 1.0)
        if isinstance(model.likelihood, Gaussian) and not model.likelihood.is_fixed:
            # E[log N(y | f, σ²)] = −½ log 2πσ² − E(y − f)² / 2σ², and the best σ² is the mean of E(y − f)²
            now = model.likelihood.noise.detach()
            each = terms.expected_log_lik / (batch.cell_weight * len(batch.y)) + 0.5 * torch.log(2.0 * math.pi * now)
            model.likelihood.noise = (-2.0 * now * each).clamp(min=_MIN_NOISE)
    return float(terms.bound)


def _at_least(
    candidates: Float[Tensor, "c e"], size: int, scatter: float, rng: np.random.Generator
) -> Float[Tensor, "n e"]:
    """The candidates, and as many more around them as are needed for `size`."""
    lacking = size - len(candidates)
    if lacking <= 0:
        return candidates
    around = candidates[torch.as_tensor(rng.integers(len(candidates), size=lacking))]
    return torch.cat([candidates, around + scatter * torch.as_tensor(rng.standard_normal(around.shape))])
