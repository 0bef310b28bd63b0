"""Where T-LVMOGP begins: sizes and parameters from the survey of a table, or the paper's prior start."""

import logging
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.embeddings import Residual, is_near_identity
from manygp.initialise.coarse import coarsen
from manygp.initialise.evidence import Lengthscales
from manygp.initialise.inducing import greedy_inducing, sample_cells
from manygp.initialise.latents import linear_latents
from manygp.initialise.likelihood import start_likelihood
from manygp.initialise.survey import NoiseSpread, Roughness, Survey
from manygp.initialise.trend import start_trend
from manygp.kernels import LatentKernel, kernel_diagonal, rescale_kernel
from manygp.likelihoods import Gaussian, Likelihood, PooledGaussian
from manygp.models.coordinates import choose_placed_dim, factorise_placed
from manygp.models.row_effects import has_row_effects
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Level, SharedPart, SharedShocks
from manygp.variational import GaussianEvidence, NaturalPosterior

__all__ = ["Sizes", "choose_num_inducing", "choose_sizes", "choose_spectral_bound", "initialise", "initialise_at_prior"]

logger = logging.getLogger("manygp")

# Squared lengthscales of the latents, in spreads: from clearly curved to as good as linear. Where places tell signals
# from noise that are far smaller, they are as long as the noise asks for.
_SQUARED_LENGTHSCALES = (2.0**2, 30.0**2)
# Least relative jitter that a covariance among inducing points needs.
_LEAST_JITTER = 1e-12
# There, weights of the network start at such a share: its bends would be larger than those signals.
_QUIET = 0.01
# Latent dimensions at least: one too many is left unused, one too few makes predictions too sure.
_LEAST_DIM, _MOST_DIM = 3, 16
# Inducing points: at least so many, and at most so many, or up to the last where cells are so few that a pass over them
# stays cheap.
_MIN_INDUCING, _MAX_INDUCING, _MOST_INDUCING, _CHEAP_PASS = 100, 448, 800, 6e10
# Cells that inducing points are chosen among, for each of them.
_CANDIDATES_PER_POINT = 10
# Spectral bounds of a network that hardly bends, and of one that does, which takes so many inputs for every weight, and
# so many features: inducing points cover fewer, and bending would only spoil what is said about gaps.
_STIFF, _FLEXIBLE, _INPUTS_PER_WEIGHT, _MANY_FEATURES = 0.1, 1.0, 20, 4
# Of outputs with coordinates: the least noise to start from, and how many inducing points for each that is needed. A
# kernel whose bends are below the noise σ² has a scale of 1/2σ², of which double precision keeps a share of 2σ⁴.
_PLACED_NOISE, _SPARE = 1e-6, 1.15
# Pseudo-values that q(u) begins with, and the least noise that they have.
_POSTERIOR_CELLS, _PSEUDO_NOISE = 8192, 1e-2
# Beside neighbours: inducing points at most, and the least noise to start from.
_MOST_BESIDE_NEIGHBORS, _NEIGHBOR_NOISE = 150, 1e-6


@dataclass(frozen=True, eq=False)
class Sizes:
    """What the settings of a model left open, as its table would have it.

    `factors` are those that latent vectors begin with, None where they begin at prior means or there is one output;
    `found` and `spread` say what is known of functions and noise; `is_placed` whether coordinates told it;
    `has_neighbors` whether cells are conditioned on neighbours beside the inducing points.
    """

    latent_dim: int
    num_inducing: int
    factors: Factorisation | None
    found: Lengthscales
    spread: NoiseSpread | None
    is_placed: bool
    has_neighbors: bool = False

    def likelihood(self, given: Likelihood) -> Likelihood:
        """Gaussian noise of each output's own, where it differs; otherwise as given."""
        if self.spread is None or self.spread.is_negligible:
            return given
        return PooledGaussian(len(self.spread.deviation))


def choose_sizes(
    survey: Survey,
    latent_dim: int | str = "auto",
    num_inducing: int | str = "auto",
    prior_dim: int | None = None,
    looks_for_effects: bool = False,
    fixed_noise: float | None = None,
    has_neighbors: bool = False,
) -> Sizes:
    """Sizes and factors by the survey of a table.

    Parameters
    ----------
    survey
        The survey.
    latent_dim, num_inducing
        As given, or "auto".
    prior_dim
        Dimensions of prior means of the latent vectors, if there are some: then these begin there.
    looks_for_effects
        Whether effects of single inputs are looked for once training is over.
    fixed_noise
        Noise variance in scaled units that is typical of outputs, if it is given and not learned.
    has_neighbors
        Whether cells are conditioned on neighbours: then these see details that inducing points would leave to noise,
        so that functions are those of outputs by themselves, and few inducing points are enough.
    """
    table, values, scaling = survey.table, survey.values, survey.scaling
    is_open = isinstance(latent_dim, str) and prior_dim is None
    dim = max(survey.rank, min(_LEAST_DIM, _dim_limit(table))) if is_open else prior_dim or int(latent_dim)
    has_places = table.coordinates is not None and survey.levels is None and prior_dim is None
    is_placed = has_places and isinstance(table, Grid) and table.num_outputs > 1
    if is_placed and isinstance(table, Grid):
        if is_open:
            common = Scaling.fit(values, outputs="global")
            dim = max(dim, choose_placed_dim(table, common, survey.rng("placed dimensions")))
        factors: Factorisation | None = factorise_placed(table, scaling, dim, survey.rng("placed factors"))
        # Places have told what is noise better than cells could.
        found = survey.functions(factors, least_noise=_PLACED_NOISE, least_share=0.0)
    else:
        factors = survey.factors(dim) if prior_dim is None else None
        may_have_effects = looks_for_effects and survey.levels is None and factors is not None
        found = survey.functions(factors, may_have_effects and has_row_effects(table, scaling, dim))
    if has_neighbors:
        alone = survey.alone
        found = replace(alone, noise=max(min(found.noise, alone.noise), _NEIGHBOR_NOISE))
    if fixed_noise is not None:
        found = replace(found, noise=fixed_noise)
    spare = _SPARE if is_placed else 1.0
    m: int | str = num_inducing
    if isinstance(m, str):
        m = choose_num_inducing(table, scaling, dim, found, spare)
        m = min(m, _MOST_BESIDE_NEIGHBORS) if has_neighbors else m
    spread = survey.noise_spread(factors) if isinstance(survey.likelihood, Gaussian) else None
    return Sizes(dim, m, factors, found, spread, is_placed, has_neighbors)


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


def choose_spectral_bound(table: Table, latent_dim: int, num_blocks: int) -> float:
    """How far the network may bend, for as many inputs as tell about it."""
    dim = table.num_features + latent_dim
    can_bend = table.num_features >= _MANY_FEATURES
    return _FLEXIBLE if can_bend and table.num_inputs >= _INPUTS_PER_WEIGHT * num_blocks * dim * (dim + 1) else _STIFF


@torch.no_grad()
def initialise_at_prior(model: TransformedLatentModel, generator: torch.Generator, noise_std: float = 0.01) -> None:
    """The published start: latents at their prior, Z standard normal, kernel parameters at softplus(0)."""
    nn.init.normal_(model.gp.Z, generator=generator)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2, dtype=torch.float64)


def initialise(model: TransformedLatentModel, survey: Survey, sizes: Sizes, generator: torch.Generator) -> None:
    """Start in lengthscale units, with latents and noise from factors, Z from embedded cells, and levels and trend."""
    values, scaling, factors = survey.values, survey.scaling, sizes.factors
    _initialise_gp(model, survey, sizes, generator)
    is_fine = sizes.is_placed or sizes.has_neighbors
    if not is_fine and coarsen(model, values, scaling, survey.rng("coarse start")):
        logger.info(
            "%d inducing points leave far more open than the noise: a smoother start, by the bound", sizes.num_inducing
        )
    if survey.slopes is not None:
        start_trend(model, values, scaling, factors, survey.slopes)
    if isinstance(model.likelihood, PooledGaussian) and sizes.spread is not None:
        model.likelihood.set_deviation(torch.as_tensor(sizes.spread.deviation), sizes.spread.variance)
    for level in model.terms.of(Level):
        level.set(torch.as_tensor(survey.levels))
    is_whole = values.num_inputs == survey.table.num_inputs
    seen = values if survey.levels is None else survey.table
    start_likelihood(model, seen, scaling, factors if is_whole else None, survey.rng("likelihood"))
    if survey.levels is not None:
        _initialise_posterior(model, survey, sizes.found.noise)


@torch.no_grad()
def _initialise_gp(model: TransformedLatentModel, survey: Survey, sizes: Sizes, generator: torch.Generator) -> None:
    table, d, noise, outputscale = survey.values, survey.table.num_features, sizes.found.noise, sizes.found.signal
    model.units[:d] = torch.as_tensor(sizes.found.lengthscale)
    if model.box is not None:
        x = survey.scaling.scale_x(survey.table.X)
        model.box.copy_(torch.as_tensor(np.stack([x.min(0), x.max(0)])) / model.units[:d])
    latent_lengthscale: Float[Tensor, " h"] | float = 1.0
    share = 1.0
    if sizes.factors is not None:
        shortest, longest = _SQUARED_LENGTHSCALES
        bounds = (shortest, longest if model.coordinates is None else np.inf)
        prior_variance, factors = model.latents.prior_variance, sizes.factors
        unexplained = factors.noise_variance if sizes.has_neighbors else 0.0
        row_mean, row_factors = factors.row_mean, factors.row_factors
        signal = 0.0 if isinstance(model.gp.kernel, LatentKernel) else outputscale
        start = linear_latents(table, row_mean, row_factors, noise, prior_variance, bounds, unexplained, signal)
        if is_near_identity(model.embedding):
            latent_lengthscale, outputscale, share = start.lengthscale, start.outputscale, start.share
        model.latents.mean.copy_(torch.as_tensor(factors.loadings))
        model.latents.set_factor(start.factor)
        if model.coordinates is not None and isinstance(model.embedding, Residual):
            model.embedding.shrink(_QUIET)
    elif model.latents.prior_mean is not None:
        # Latents with a meaning of their own vary over their spread.
        model.units[d:] = model.latents.prior_mean.std(0).clamp(min=model.latents.prior_variance**0.5)
    else:
        nn.init.normal_(model.latents.mean, generator=generator)
        model.latents.set_variance(min(0.01, model.latents.prior_variance))
    lengthscale = torch.ones(model.gp.Z.shape[1], dtype=torch.float64)
    if len(lengthscale) == len(model.units):
        # The embedding starts near the identity, so its last dimensions are the latents.
        lengthscale[d:] = latent_lengthscale
    rescale_kernel(model.gp.kernel, lengthscale, outputscale, share)
    for term in model.terms:
        term.start(model.units[:d], noise)
    if sizes.has_neighbors and sizes.factors is not None:
        _start_terms(model, survey.roughness(sizes.factors))
    if sizes.has_neighbors:
        model.latents.take_small_steps()
    model.latents.set_to_prior(torch.as_tensor(np.flatnonzero(table.count_per_output() == 0)))
    m = len(model.gp.Z)
    rng, candidates = survey.rng("inducing points"), max(1000, _CANDIDATES_PER_POINT * m)
    x, output, _ = sample_cells(table, survey.scaling, candidates, rng)
    e = model.embed(torch.as_tensor(x), model.latents.mean[torch.as_tensor(output)])
    model.gp.Z.copy_(greedy_inducing(model.gp.kernel, e, m))
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise, dtype=torch.float64)
        # What jitter adds to variances of f should not exceed the noise.
        variance = float(kernel_diagonal(model.gp.kernel, e).mean())
        model.gp.jitter = min(model.gp.jitter, max(noise / variance, _LEAST_JITTER))


@torch.no_grad()
def _start_terms(model: TransformedLatentModel, found: Roughness) -> None:
    """Let what outputs share beside f begin with the loadings of factors."""
    for shocks in model.terms.of(SharedShocks):
        shocks.loading.follow_factors(torch.as_tensor(found.shocks))
    for part in model.terms.of(SharedPart):
        part.loading.follow_factors(torch.as_tensor(found.rough))
        part.kernel.set_lengthscale(torch.as_tensor(found.lengthscale))


@torch.no_grad()
def _initialise_posterior(model: TransformedLatentModel, survey: Survey, noise: float) -> None:
    """Let q(u) begin where pseudo-values put it: at the prior, exp(f) would be anything."""
    if not isinstance(model.gp.posterior, NaturalPosterior):
        return
    row, output, y = survey.values.sample(_POSTERIOR_CELLS, survey.rng("posterior"))
    x = torch.as_tensor(survey.scaling.scale_x(survey.values.X[row]))
    e = model.embed(x, model.latents.mean[torch.as_tensor(output)])
    variance = torch.tensor(max(noise, _PSEUDO_NOISE), dtype=torch.float64)
    gp = model.gp
    evidence = GaussianEvidence.from_batch(gp.kernel, e, gp.Z, torch.as_tensor(y), variance, gp.jitter)
    weight = survey.values.num_observed / len(y)
    model.gp.posterior.step(*evidence.natural_target(model.gp.posterior, weight), 1.0)


def _dim_limit(table: Table) -> int:
    return max(1, min(_MOST_DIM, table.num_outputs - 1, table.num_inputs - 1))
