"""Where a latent variable model begins: sizes, scaling and parameters from the data, or the paper's prior start."""

import numpy as np
import torch
from torch import nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import choose_rank, completed_scaling, factorise
from manygp.data.splits import pattern_split
from manygp.errors import DataError
from manygp.kernels import rescale_kernel
from manygp.likelihoods import Gaussian
from manygp.models.evidence import Lengthscales
from manygp.models.inducing import greedy_inducing, sample_cells
from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["choose_latent_dim", "choose_num_inducing", "choose_scaling", "start_from_data", "start_from_prior"]

# Latent vectors have unit spread and are divided by this before the network: outputs combine nearly linearly, so the
# kernel should start nearly linear in h.
_LATENT_UNIT = 12.0
_START_VARIANCE = 0.01
_RANKS = (1, 2, 3, 4, 6, 8)
_MIN_INDUCING, _MAX_INDUCING = 32, 400
_CANDIDATES_PER_POINT = 10


def choose_latent_dim(table: Table, scaling: Scaling, rng: np.random.Generator) -> int:
    """Latent dimensions: the rank whose factorisation predicts held-out cells best."""
    if table.num_outputs == 1:
        return 1
    limit = _rank_limit(table)
    if not isinstance(table, Grid):
        return min(3, limit)
    return choose_rank(table, scaling, [rank for rank in _RANKS if rank <= limit], rng=rng).rank


def choose_scaling(
    table: Table, kinds: tuple[str, ...], latent_dim: int, rng: np.random.Generator
) -> tuple[Scaling, str]:
    """The scaling of the outputs under which a factorisation of rank `latent_dim` predicts held-out cells best.

    Parameters
    ----------
    table
        The observations.
    kinds
        Candidates among "output" (each by its own observed cells), "global" (one for all) and "completed" (each by its
        column, gaps filled by the factorisation).
    latent_dim
        Rank of the factorisation.
    rng
        Source of randomness.
    """
    rank = min(latent_dim, _rank_limit(table))
    if not isinstance(table, Grid):
        kinds = tuple(kind for kind in kinds if kind != "completed") or ("output",)
    if len(kinds) == 1 or not isinstance(table, Grid) or table.num_outputs == 1:
        return _fit_scaling(table, kinds[0], rank, rng), kinds[0]
    train, held = _held_out(table, rng)
    unit = Scaling.fit(table, outputs="output").y_scale
    errors = {}
    for kind in kinds:
        scaling = _fit_scaling(train, kind, rank, rng)
        errors[kind] = factorise(train, scaling, rank, rng=rng).mean_squared_error(held, scaling, unit)
    kind = min(errors, key=errors.__getitem__)
    return _fit_scaling(table, kind, rank, rng), kind


def _fit_scaling(table: Table, kind: str, rank: int, rng: np.random.Generator) -> Scaling:
    if kind != "completed":
        return Scaling.fit(table, outputs=kind)  # type: ignore[arg-type]
    scaling = Scaling.fit(table, outputs="global")
    return completed_scaling(table, scaling, factorise(table, scaling, rank, rng=rng))


def _held_out(table: Grid, rng: np.random.Generator) -> tuple[Grid, Grid]:
    try:
        return pattern_split(table, rng)
    except DataError:
        # Too few cells to hold any out: every choice looks the same.
        return table, table


def _rank_limit(table: Table) -> int:
    return max(1, min(_RANKS[-1], table.num_outputs - 1, table.num_inputs - 1))


def choose_num_inducing(table: Table, scaling: Scaling, latent_dim: int, found: Lengthscales) -> int:
    """Inducing points by how many pieces the functions have.

    A function with lengthscale ℓ over a range r has about r / ℓ independent pieces along that input. The pieces of all
    inputs multiply, up to the number of distinct inputs; each needs a point for every latent direction and one more.
    """
    span = np.ptp(scaling.scale_x(table.X), axis=0)
    pieces = float(np.minimum(np.prod(1.0 + 2.0 * span / found.lengthscale), table.num_inputs))
    wanted = int(pieces * (latent_dim + 1)) if table.num_outputs > 1 else int(pieces)
    return max(1, min(max(wanted, _MIN_INDUCING), _MAX_INDUCING, table.num_observed))


@torch.no_grad()
def start_from_prior(model: TransformedLatentModel, noise_std: float = 0.01) -> None:
    """The published start: latents at their prior, Z standard normal, kernel parameters at softplus(0)."""
    nn.init.normal_(model.gp.Z)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2)


@torch.no_grad()
def start_from_data(
    model: TransformedLatentModel, table: Table, scaling: Scaling, found: Lengthscales, rng: np.random.Generator
) -> None:
    """Lengthscale units, latents from a masked factorisation, Z from embedded cells, noise from its residual."""
    d, h = table.num_features, model.latents.dim
    model.units[:d] = torch.as_tensor(found.lengthscale)
    noise, between = found.noise, found.signal
    if model.latents.prior_mean is not None:
        # Latents with a meaning of their own: start where the prior says, and vary over their spread.
        model.units[d:] = model.latents.prior_mean.std(0).clamp(min=model.latents.prior_variance**0.5)
        outputscale = found.signal
    else:
        model.units[d:] = _LATENT_UNIT
        if isinstance(table, Grid) and table.num_outputs > 1:
            factors = factorise(table, scaling, h, rng=rng)
            model.latents.mean.copy_(torch.as_tensor(factors.loadings))
            noise = factors.noise_variance
            between = float(np.mean((factors.row_factors**2).sum(1)))
        else:
            nn.init.normal_(model.latents.mean)
        model.latents.set_variance(min(_START_VARIANCE, model.latents.prior_variance))
        # A kernel σ² k_x (1 − |h − h'|² / 2u²) gives differences between outputs a variance of σ² h / u².
        outputscale = max(found.signal, _LATENT_UNIT**2 * between / h)
    rescale_kernel(model.gp.kernel, 1.0, outputscale)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(max(noise, 1e-4))
    empty = np.flatnonzero(table.count_per_output() == 0)
    model.latents.set_to_prior(torch.as_tensor(empty))
    m = len(model.gp.Z)
    x, output, _ = sample_cells(table, scaling, max(1000, _CANDIDATES_PER_POINT * m), rng)
    e = model.embed(torch.as_tensor(x), model.latents.mean[torch.as_tensor(output)])
    model.gp.Z.copy_(greedy_inducing(model.gp.kernel, e, m))
