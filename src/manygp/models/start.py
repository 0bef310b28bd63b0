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
from manygp.models.evidence import evidence_lengthscales
from manygp.models.inducing import greedy_inducing, sample_cells
from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["choose_scaling", "choose_sizes", "start_from_data", "start_from_prior"]

# Latent vectors have unit spread and are divided by this before the network: outputs combine nearly linearly, so the
# kernel should start nearly linear in h.
_LATENT_UNIT = 12.0
_START_VARIANCE = 0.01
_MAX_RANK = 8
_MAX_INDUCING = 400
_SCALING_RANK = 3
_CANDIDATES_PER_POINT = 10


def choose_scaling(table: Table, kinds: tuple[str, ...], rng: np.random.Generator) -> tuple[Scaling, str]:
    """The scaling of the outputs under which a low-rank factorisation predicts held-out cells best.

    Parameters
    ----------
    table
        The observations.
    kinds
        Candidates among "output" (each by its own observed cells), "global" (one for all) and "completed" (each by its
        column, gaps filled by the factorisation).
    rng
        Source of randomness.
    """
    if not isinstance(table, Grid) or table.num_outputs < 2 or len(kinds) == 1:
        kind = kinds[0] if isinstance(table, Grid) or kinds[0] != "completed" else "output"
        return _fit_scaling(table, kind, rng), kind
    train, held = _held_out(table, rng)
    unit = Scaling.fit(table, outputs="output").y_scale
    errors = {}
    for kind in kinds:
        scaling = _fit_scaling(train, kind, rng)
        factors = factorise(train, scaling, _rank_limit(table, _SCALING_RANK), rng=rng)
        errors[kind] = factors.mean_squared_error(held, scaling, unit)
    kind = min(errors, key=errors.__getitem__)
    return _fit_scaling(table, kind, rng), kind


def _fit_scaling(table: Table, kind: str, rng: np.random.Generator) -> Scaling:
    if kind != "completed":
        return Scaling.fit(table, outputs=kind)  # type: ignore[arg-type]
    scaling = Scaling.fit(table, outputs="global")
    return completed_scaling(table, scaling, factorise(table, scaling, _rank_limit(table, _SCALING_RANK), rng=rng))


def _held_out(table: Grid, rng: np.random.Generator) -> tuple[Grid, Grid]:
    try:
        return pattern_split(table, rng)
    except DataError:
        # Too few cells to hold any out: every choice looks the same.
        return table, table


def _rank_limit(table: Table, rank: int) -> int:
    return max(1, min(rank, table.num_outputs - 1, table.num_inputs - 1))


def choose_sizes(
    table: Table, scaling: Scaling, latent_dim: int | str, num_inducing: int | str, rng: np.random.Generator
) -> tuple[int, int]:
    """Latent dimensions by held-out cells; inducing points by how many pieces the functions have.

    A function with lengthscale ℓ over a range r has about r / ℓ independent pieces along that input. The pieces of all
    inputs multiply, up to the number of distinct inputs; each needs a point for every latent direction and one more.
    """
    if isinstance(latent_dim, str):
        latent_dim = 1
        if isinstance(table, Grid) and table.num_outputs > 1:
            limit = _rank_limit(table, _MAX_RANK)
            ranks = [rank for rank in (1, 2, 3, 4, 6, 8) if rank <= limit]
            latent_dim = choose_rank(table, scaling, ranks, rng=rng).rank
        elif table.num_outputs > 1:
            latent_dim = _rank_limit(table, 3)
    if isinstance(num_inducing, str):
        found = evidence_lengthscales(table, scaling, rng)
        span = np.ptp(scaling.scale_x(table.X), axis=0)
        pieces = float(np.minimum(np.prod(1.0 + 2.0 * span / found.lengthscale), table.num_inputs))
        wanted = int(pieces * (latent_dim + 1)) if table.num_outputs > 1 else int(pieces)
        num_inducing = max(1, min(max(wanted, 32), _MAX_INDUCING, table.num_observed))
    return latent_dim, num_inducing


@torch.no_grad()
def start_from_prior(model: TransformedLatentModel, noise_std: float = 0.01) -> None:
    """The published start: latents at their prior, Z standard normal, kernel parameters at softplus(0)."""
    nn.init.normal_(model.gp.Z)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.noise = torch.tensor(noise_std**2)


@torch.no_grad()
def start_from_data(model: TransformedLatentModel, table: Table, scaling: Scaling, rng: np.random.Generator) -> None:
    """Lengthscale units, latents from a masked factorisation, Z from embedded cells, noise from its residual."""
    d, h = table.num_features, model.latents.dim
    found = evidence_lengthscales(table, scaling, rng)
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
