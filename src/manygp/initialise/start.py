"""Where a latent variable model begins: sizes, scaling and parameters from the data, or the paper's prior start."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import Factorisation, choose_rank, completed_scaling, factorise
from manygp.data.splits import pattern_split
from manygp.data.table import FloatArray
from manygp.embeddings import Residual
from manygp.errors import DataError
from manygp.initialise.evidence import Lengthscales, evidence_lengthscales
from manygp.initialise.inducing import greedy_inducing, sample_cells
from manygp.kernels import rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.linalg import safe_cholesky
from manygp.models.tlvmogp import TransformedLatentModel

__all__ = [
    "NoiseSpread",
    "ScalingChoice",
    "choose_latent_dim",
    "choose_num_inducing",
    "choose_scaling",
    "find_lengthscales",
    "find_noise_spread",
    "latent_dim_of",
    "start_from_data",
    "start_from_prior",
]

# Squared lengthscales of the latents, in spreads: from clearly curved to as good as linear. Where places tell signals
# from noise that are far smaller, they are as long as the noise asks for.
_SQUARED_LENGTHSCALES = (2.0**2, 30.0**2)
# Least relative jitter that a covariance among inducing points needs.
_LEAST_JITTER = 1e-12
_WEAKEST = 1e-6
_MIN_NOISE, _MIN_NOISE_SHARE = 1e-4, 0.1
# There, weights of the network start at such a share: its bends would be larger than those signals.
_QUIET = 0.01
# Differences of evidence, in nats a cell, that do not count, and how many times larger a noise is far larger.
_FLAT, _FAR_MORE = 0.01, 2.0
_RANKS, _LEAST_DIM = (1, 2, 3, 4, 6, 8, 12, 16), 3
# Choices need less than the start itself: fewer inputs and outputs, fewer factors, fewer passes.
_RANK_SIDE, _MAX_SCALING_RANK, _ROUGHLY, _SPLIT_CELLS = 1000, 8, 1e-3, 10_000
# Inducing points: at least so many, and at most so many, or up to the last where cells are so few that a pass over them
# stays cheap.
_MIN_INDUCING, _MAX_INDUCING, _MOST_INDUCING, _CHEAP_PASS = 100, 448, 800, 6e10
_CANDIDATES_PER_POINT = 10
# Noise of each output's own: least and most prior variance of its logarithm, and what it takes to tell.
_LEAST_SPREAD, _MOST_SPREAD = 0.1, 4.0
_OUTPUTS_PER_FACTOR, _LEAST_FREEDOM = 4, 4


def choose_latent_dim(
    table: Table, scaling: Scaling, rng: np.random.Generator, most: int = _RANKS[-1], tolerance: float = 0.02
) -> int:
    """Rank, `most` at most, whose factorisation predicts held-out cells best.

    `tolerance` is as in `choose_rank`.
    """
    if table.num_outputs == 1:
        return 1
    limit = min(most, _rank_limit(table))
    if not isinstance(table, Grid):
        return min(3, limit)
    ranks = [rank for rank in _RANKS if rank <= limit]
    return choose_rank(table, scaling, ranks, rng=rng, max_side=_RANK_SIDE, tolerance=tolerance).rank


def latent_dim_of(rank: int, table: Table) -> int:
    """Latent dimensions for a rank: a dimension too many is left unused, one too few makes predictions too sure."""
    return max(rank, min(_LEAST_DIM, _rank_limit(table)))


@dataclass(frozen=True)
class ScalingChoice:
    """A scaling, its name, and the mean squared error on held-out cells that it led to, in scaled units."""

    scaling: Scaling
    kind: str
    held_out_error: float


def choose_scaling(table: Table, kinds: tuple[str, ...], rank: int, rng: np.random.Generator) -> ScalingChoice:
    """The scaling of the outputs under which a factorisation predicts held-out cells best.

    Best is the largest log density of Gaussian errors whose variance is the same for all cells in scaled units, which
    is what the model assumes. Squared errors alone would not mind a scale that makes small errors look like large ones.

    Parameters
    ----------
    table
        The observations.
    kinds
        Candidates among "output" (each by its own observed cells), "global" (one for all), "completed" (each by its
        column, gaps filled by the factorisation) and "none".
    rank
        Rank of the factorisation; one that overfits would say little about the scaling.
    rng
        Source of randomness.
    """
    rank = min(rank, _rank_limit(table), _MAX_SCALING_RANK)
    if not isinstance(table, Grid) or table.num_outputs == 1:
        kind = "output" if kinds[0] == "completed" else kinds[0]
        return ScalingChoice(_fit_scaling(table, kind, rank, rng), kind, np.inf)
    errors: dict[str, list[float]] = {kind: [] for kind in kinds}
    surprise: dict[str, list[float]] = {kind: [] for kind in kinds}
    # In a small table the draw of the held-out cells decides, so several are averaged.
    for _ in range(int(np.clip(_SPLIT_CELLS // table.num_observed, 1, 8))):
        train, held = _held_out(table, rng)
        counts = held.count_per_output()
        for kind in kinds:
            scaling = _fit_scaling(train, kind, rank, rng)
            factors = factorise(train, scaling, rank, rng=rng, tolerance=_ROUGHLY)
            error = factors.mean_squared_error(held, scaling, scaling.y_scale)
            errors[kind].append(error)
            # −log N(e | 0, s²σ²) with σ² the mean of e²/s²: log s + ½ log σ², and a constant
            log_scale = float(counts @ np.log(scaling.y_scale)) / counts.sum()
            surprise[kind].append(log_scale + 0.5 * float(np.log(error + _MIN_NOISE)))
    kind = min(kinds, key=lambda kind: np.mean(surprise[kind]))
    return ScalingChoice(_fit_scaling(table, kind, rank, rng), kind, float(np.median(errors[kind])))


def _fit_scaling(table: Table, kind: str, rank: int, rng: np.random.Generator) -> Scaling:
    if kind != "completed":
        return Scaling.fit(table, inputs=kind != "none", outputs=kind)  # type: ignore[arg-type]
    scaling = Scaling.fit(table, outputs="global")
    factors = factorise(table, scaling, rank, rng=rng, tolerance=_ROUGHLY)
    return completed_scaling(table, scaling, factors)


def _held_out(table: Grid, rng: np.random.Generator) -> tuple[Grid, Grid]:
    try:
        return pattern_split(table, rng)
    except DataError:
        # Too few cells to hold any out: every choice looks the same.
        return table, table


def _rank_limit(table: Table) -> int:
    return max(1, min(_RANKS[-1], table.num_outputs - 1, table.num_inputs - 1))


def choose_num_inducing(
    table: Table, scaling: Scaling, latent_dim: int, found: Lengthscales, spare: float = 1.0
) -> int:
    """Inducing points by how many pieces the functions have.

    Each needs a point for every latent direction and one more, and `spare` times as many where hardly anything is
    noise.
    """
    cells = table.num_observed
    affordable = min(math.sqrt(_CHEAP_PASS / cells), _MOST_INDUCING)
    most = max(_MAX_INDUCING, int(affordable))
    pieces = found.num_pieces(scaling.scale_x(table.X))
    wanted = int(spare * pieces * (latent_dim + 1)) if table.num_outputs > 1 else int(pieces)
    return max(1, min(max(wanted, _MIN_INDUCING), most, cells))


def find_lengthscales(
    table: Table,
    scaling: Scaling,
    factors: Factorisation | None,
    held_out_error: float,
    rng: np.random.Generator,
    least_noise: float = _MIN_NOISE,
    has_effects: bool = False,
) -> Lengthscales:
    """Lengthscales of the inputs by evidence, with the noise that a factorisation leaves if there is one.

    The residual of a factorisation is too small where factors fit everything, so the noise is at least a share of its
    error on held-out cells. If the model will have effects of single inputs (`has_effects`), what outputs share at one
    input and at no other is for these to explain: where far more looks like noise to each output by itself than to a
    factorisation, the GP starts with the lengthscales and the noise of that view.
    """
    if factors is None:
        found = evidence_lengthscales(table, scaling, rng, held_out_error)
        return replace(found, noise=max(found.noise, least_noise))
    noise = max(factors.noise_variance, _MIN_NOISE_SHARE * held_out_error, least_noise)
    if has_effects:
        alone = evidence_lengthscales(table, scaling, rng, tolerance=_FLAT)
        if alone.noise > _FAR_MORE * max(noise, held_out_error):
            return alone
    return replace(evidence_lengthscales(table, scaling, rng, noise), noise=noise)


@dataclass(frozen=True)
class NoiseSpread:
    """How much the log noise of outputs differs: its prior variance, and a first guess of each output's deviation."""

    variance: float
    deviation: FloatArray

    @property
    def is_negligible(self) -> bool:
        """Whether one noise level serves all outputs."""
        return self.variance <= _LEAST_SPREAD


def find_noise_spread(table: Table, scaling: Scaling, factors: Factorisation | None) -> NoiseSpread:
    """Spread of the log noise over outputs, by the residuals of a factorisation.

    The log of a variance that n cells tell varies by 2/n, so that is taken off what the residuals show, and each
    output's deviation shrinks to the share that is left. Where few outputs make many factors, residuals tell nothing,
    and any spread is possible; where outputs have few cells, nothing ever will.
    """
    none = np.zeros(table.num_outputs)
    if table.num_outputs == 1:
        return NoiseSpread(_LEAST_SPREAD, none)
    if factors is None or table.num_outputs < _OUTPUTS_PER_FACTOR * factors.rank:
        return NoiseSpread(1.0, none)
    freedom = table.count_per_output() - float(factors.rank)
    seen = freedom >= _LEAST_FREEDOM
    if seen.sum() < _OUTPUTS_PER_FACTOR:
        return NoiseSpread(_LEAST_SPREAD, none)
    residual = factors.squared_errors(table, scaling, scaling.y_scale) / np.maximum(freedom, 1.0)
    level = np.log(np.maximum(residual[seen], _MIN_NOISE))
    chance = 2.0 / freedom[seen]
    variance = float(np.clip(np.var(level) - chance.mean(), _LEAST_SPREAD, _MOST_SPREAD))
    deviation = none
    deviation[seen] = (level - level.mean()) * variance / (variance + chance)
    return NoiseSpread(variance, deviation)


@torch.no_grad()
def start_from_prior(model: TransformedLatentModel, noise_std: float = 0.01) -> None:
    """The published start: latents at their prior, Z standard normal, kernel parameters at softplus(0)."""
    nn.init.normal_(model.gp.Z)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2)


@torch.no_grad()
def start_from_data(
    model: TransformedLatentModel,
    table: Table,
    scaling: Scaling,
    found: Lengthscales,
    factors: Factorisation | None,
    rng: np.random.Generator,
) -> None:
    """Start in lengthscale units, with latents and noise from a factorisation and Z from embedded cells.

    Parameters
    ----------
    model
        The model to set.
    table, scaling
        The observations and their scaling.
    found
        What the evidence said about the inputs, and the noise.
    factors
        A factorisation whose loadings become the latent vectors; None if there is none, and for latents with a prior
        mean, which start there.
    rng
        Source of randomness.
    """
    d = table.num_features
    model.units[:d] = torch.as_tensor(found.lengthscale)
    noise, outputscale = found.noise, found.signal
    latent_lengthscale: Float[Tensor, " h"] | float = 1.0
    if factors is not None:
        latent_lengthscale, outputscale = _start_latents(model, table, factors, noise, found.signal)
        if model.coordinates is not None and isinstance(model.embedding, Residual):
            model.embedding.shrink(_QUIET)
    elif model.latents.prior_mean is not None:
        # Latents with a meaning of their own vary over their spread.
        model.units[d:] = model.latents.prior_mean.std(0).clamp(min=model.latents.prior_variance**0.5)
    else:
        nn.init.normal_(model.latents.mean)
        model.latents.set_variance(min(0.01, model.latents.prior_variance))
    lengthscale = torch.ones(model.gp.Z.shape[1])
    if len(lengthscale) == len(model.units):
        # The embedding starts near the identity, so its last dimensions are the latents.
        lengthscale[d:] = latent_lengthscale
    rescale_kernel(model.gp.kernel, lengthscale, outputscale)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise)
        # What jitter adds to variances of f should not exceed the noise.
        model.gp.jitter = min(model.gp.jitter, max(noise / outputscale, _LEAST_JITTER))
    model.latents.set_to_prior(torch.as_tensor(np.flatnonzero(table.count_per_output() == 0)))
    m = len(model.gp.Z)
    x, output, _ = sample_cells(table, scaling, max(1000, _CANDIDATES_PER_POINT * m), rng)
    e = model.embed(torch.as_tensor(x), model.latents.mean[torch.as_tensor(output)])
    model.gp.Z.copy_(greedy_inducing(model.gp.kernel, e, m))


def _start_latents(
    model: TransformedLatentModel, table: Table, factors: Factorisation, noise: float, signal: float
) -> tuple[Float[Tensor, " h"], float]:
    """Set the latents from a factorisation; returns the lengthscales and the output scale that go with them.

    Outputs combine nearly linearly, so the kernel should start nearly linear in h. With h of unit spread,
    σ² exp(−|h − h'|² / 2u²) has a linear part of variance v = σ² D / u² and a quadratic part of about v D / 2u², which
    should not exceed the noise. σ² is the variance of the signal at least, of which outputs that are much alike share
    all but v.
    """
    D = factors.rank
    power = np.square(factors.row_factors).mean(0)
    v = max(float(power.sum()), noise)
    shortest, longest = _SQUARED_LENGTHSCALES
    u2 = float(np.clip(0.5 * v * D / noise, shortest, longest if model.coordinates is None else np.inf))
    u2 = max(u2, signal * D / v)
    # Strong factors get more of the variance than weak ones, but less so than in the factorisation, which knows weak
    # ones only from the cells that it fits.
    weight = np.sqrt(np.maximum(power, _WEAKEST * v))
    lengthscale = np.sqrt(u2 * weight.mean() / weight)
    model.latents.mean.copy_(torch.as_tensor(factors.loadings))
    model.latents.set_factor(_linear_posterior(table, factors.row_factors, noise, model.latents.prior_variance))
    return torch.as_tensor(lengthscale), v * u2 / D


def _linear_posterior(
    table: Table, row_factors: FloatArray, noise: float, prior_variance: float
) -> Float[Tensor, "p h h"]:
    """Cholesky factors of Σ_p = (I / s + Σ_n u_n u_nᵀ / σ²)⁻¹, what cells leave open in a linear model."""
    assert isinstance(table, Grid)
    D = row_factors.shape[1]
    outer = (row_factors[:, :, None] * row_factors[:, None, :]).reshape(-1, D * D)
    gram = np.zeros((table.num_outputs, D * D))
    for rows in table.row_chunks():
        gram += table.observed(rows).T.astype(np.float64) @ outer[rows]
    precision = torch.as_tensor(gram).view(-1, D, D) / noise
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0 / prior_variance)

    return safe_cholesky(torch.cholesky_inverse(safe_cholesky(precision)))
