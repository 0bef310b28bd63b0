"""Where a sum of separable kernels begins: from the data, or the published prior start."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.kernels import make_kernel, rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.models.evidence import Lengthscales, evidence_lengthscales
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.models.inducing import greedy_inducing

__all__ = ["choose_inducing_sizes", "start_separable_from_data", "start_separable_from_prior"]

# Squared lengthscales of the latents, in spreads: from clearly curved to as good as linear.
_SQUARED_LENGTHSCALES = (4.0**2, 100.0**2)
_MIN_NOISE, _WEAKEST = 1e-4, 1e-6
_MIN_INPUTS, _MAX_INPUTS, _MAX_LATENTS, _MAX_PRODUCT = 10, 200, 32, 448
_CANDIDATES = 2000


def choose_inducing_sizes(
    table: Table, scaling: Scaling, latent_dim: int, num_components: int, found: Lengthscales
) -> tuple[int, int]:
    """Inducing points in latent and input space, by the latent directions and by the pieces of the functions.

    A function of all latent vectors together that is nearly linear needs a point for every direction and one more;
    twice as many leave room for curvature. A function with lengthscale ℓ over a range r has about r / ℓ pieces along an
    input. With several components the product of both numbers counts, since its square does.
    """
    latents = min(2 * (latent_dim * num_components + 1), _MAX_LATENTS, max(table.num_outputs, 1))
    span = np.ptp(scaling.scale_x(table.X), axis=0)
    distinct = len(np.unique(table.X, axis=0))
    pieces = float(np.minimum(np.prod(1.0 + 2.0 * span / found.lengthscale), distinct))
    most = _MAX_INPUTS if num_components == 1 else max(_MIN_INPUTS, _MAX_PRODUCT // latents)
    return latents, min(max(int(pieces), _MIN_INPUTS), most, distinct)


@torch.no_grad()
def start_separable_from_prior(model: SeparableLatentModel, noise_std: float = 0.1) -> None:
    """The published start: latents at their prior, inducing points standard normal, kernels at softplus(0)."""
    nn.init.normal_(model.Z_X)
    nn.init.normal_(model.Z_H)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2)


@dataclass(frozen=True)
class _Component:
    """Latent means (p, h) and variances (p, h), lengthscales (h,) and (d,), and output scale of one component."""

    mean: Float[Tensor, "p h"]
    variance: Float[Tensor, "p h"]
    latent_lengthscale: Float[Tensor, " h"]
    input_lengthscale: Float[Tensor, " d"]
    outputscale: float


@torch.no_grad()
def start_separable_from_data(
    model: SeparableLatentModel,
    table: Table,
    scaling: Scaling,
    found: Lengthscales,
    factors: Factorisation | None,
    rng: np.random.Generator,
) -> None:
    """Start in lengthscale units, with latents and noise from a factorisation and inducing points among the data.

    The factors are dealt to the components in order of their strength, so that each component has input lengthscales
    of its own, those of its factors.

    Parameters
    ----------
    model
        The model to set.
    table, scaling
        The observations and their scaling.
    found
        What the evidence said about the inputs, and the noise.
    factors
        A factorisation of rank at most Q times the latent dimensions; None if there is none, and for latents with a
        prior mean, which start there.
    rng
        Source of randomness.
    """
    Q = model.num_components
    model.units.copy_(torch.as_tensor(found.lengthscale))
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(max(found.noise, _MIN_NOISE))
    for q in range(Q):
        if factors is None:
            component = _component_without_factors(model, q, found, rng)
        else:
            component = _component_of_factors(model, table, factors, q, found, rng)
        model.latents.mean[q::Q] = component.mean
        model.latents.set_factor(torch.diag_embed(component.variance.sqrt()), slice(q, None, Q))
        rescale_kernel(model.latent_kernels[q], component.latent_lengthscale, 1.0)
        rescale_kernel(model.input_kernels[q], component.input_lengthscale, component.outputscale)
    empty = torch.as_tensor(np.flatnonzero(table.count_per_output() == 0))
    model.latents.set_to_prior(model.rows(empty))
    _place_inducing(model, scaling.scale_x(table.X), rng)


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
        torch.full((p, h), variance, dtype=torch.float64),
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
    factors: Factorisation,
    q: int,
    found: Lengthscales,
    rng: np.random.Generator,
) -> _Component:
    """Component q takes the q-th group of factors; what it lacks of them is filled with weak random directions.

    Outputs combine nearly linearly, so the kernel should start nearly linear in h. With h of unit spread,
    σ² exp(−|h − h'|² / 2u²) has a linear part of variance v = σ² D / u² and a quadratic part of about v D / 2u², which
    should not exceed the noise.
    """
    D, noise, p = model.latents.dim, found.noise, model.num_outputs
    columns = slice(q * D, (q + 1) * D)
    row_factors, loadings = factors.row_factors[:, columns], factors.loadings[:, columns]
    power = np.square(row_factors).mean(0)
    missing = D - row_factors.shape[1]
    loadings = np.column_stack([loadings, 0.1 * rng.standard_normal((p, missing))])
    power = np.concatenate([power, np.zeros(missing)])
    v = max(float(power.sum()), noise)
    u2 = float(np.clip(0.5 * v * D / noise, *_SQUARED_LENGTHSCALES))
    # Strong factors get more of the variance than weak ones, but less so than in the factorisation.
    weight = np.sqrt(np.maximum(power, _WEAKEST * v))
    lengthscale = np.sqrt(u2 * weight.mean() / weight)
    assert isinstance(table, Grid)
    seen = np.zeros((p, row_factors.shape[1]))
    for rows in table.row_chunks():
        seen += table.observed(rows).T.astype(np.float64) @ np.square(row_factors[rows])
    # 1 / Σ = 1/s + Σ_n u_n² / σ², what cells leave open in a linear model
    precision = 1.0 / model.latents.prior_variance + np.column_stack([seen, np.zeros((p, missing))]) / noise
    curves = row_factors if q else np.column_stack([row_factors, factors.row_mean])
    return _Component(
        torch.as_tensor(loadings),
        torch.as_tensor(1.0 / precision),
        torch.as_tensor(lengthscale),
        torch.as_tensor(_curve_lengthscales(table, curves, found, rng) / found.lengthscale),
        max(v * u2 / D, found.signal / model.num_components),
    )


def _curve_lengthscales(table: Grid, curves: FloatArray, found: Lengthscales, rng: np.random.Generator) -> FloatArray:
    """Input lengthscales of some curves over the inputs, by their evidence; those of the outputs if they are flat."""
    moving = curves[:, curves.std(0) > _WEAKEST] if len(curves) > 1 else curves[:, :0]
    if moving.shape[1] == 0:
        return found.lengthscale
    own = Grid(table.X, np.ascontiguousarray(moving))
    return evidence_lengthscales(own, Scaling.fit(own, outputs="output"), rng).lengthscale


def _place_inducing(model: SeparableLatentModel, x: FloatArray, rng: np.random.Generator) -> None:
    """Inducing inputs among the inputs and inducing latent vectors among those of outputs, well spread."""
    distinct = np.unique(x, axis=0)
    if len(distinct) > _CANDIDATES:
        distinct = distinct[rng.choice(len(distinct), _CANDIDATES, replace=False)]
    k, (Q, j, h) = len(model.Z_X), model.Z_H.shape
    candidates = torch.as_tensor(distinct) / model.units
    model.Z_X.copy_(greedy_inducing(model.input_kernels[0], _at_least(candidates, k, 0.1, rng), k))
    # The same outputs for every component: an inducing variable is the sum of all components at one place.
    means = model.latents.mean.view(-1, Q * h)
    if len(means) > _CANDIDATES:
        means = means[torch.as_tensor(rng.choice(len(means), _CANDIDATES, replace=False))]
    together = make_kernel("rbf", Q * h)
    spread = _at_least(means, j, 0.5, rng)
    rescale_kernel(together, 4.0 * spread.std(0).clamp(min=1e-3) if len(spread) > 1 else torch.ones(Q * h), 1.0)
    model.Z_H.copy_(greedy_inducing(together, spread, j).view(j, Q, h).transpose(0, 1))


def _at_least(
    candidates: Float[Tensor, "c e"], size: int, scatter: float, rng: np.random.Generator
) -> Float[Tensor, "n e"]:
    """The candidates, and as many more around them as are needed for `size`."""
    lacking = size - len(candidates)
    if lacking <= 0:
        return candidates
    around = candidates[torch.as_tensor(rng.integers(len(candidates), size=lacking))]
    return torch.cat([candidates, around + scatter * torch.as_tensor(rng.standard_normal(around.shape))])
