"""Cells that come after a fit: q(u), latent vectors of their outputs and neighbours take them in, all else stays.

What the fit has left of q(v) and q(h) is the prior of what came since. With Gaussian noise and latent vectors held
fixed, the update is exact: natural parameters of q(v) are sums over cells,

    Λ = Λ₀ + Σᵢ E[aᵢ aᵢᵀ] / σᵢ²,   θ = θ₀ + Σᵢ E[aᵢ] yᵢ / σᵢ²

over draws of h, so that cells which are taken back leave nothing behind. With neighbours, whitened rows ã and values ỹ
of groups of all cells take the place of a and y: old cells and new ones tell about each other, and one pass over all of
them is a small part of a fit. With effects of single inputs, what the cells of an input have in common is divided out,
and tells about the effects there.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.errors import NumericalError
from manygp.likelihoods import Gaussian
from manygp.linalg import safe_cholesky, symmetrize
from manygp.models.adapt import NewCells, refine_latents
from manygp.models.group_update import natural_of_groups, step_latents
from manygp.models.neighbors import ObservedCells
from manygp.models.tlvmogp import TransformedLatentModel
from manygp.terms import Points, RowEffects, Term
from manygp.variational import CellBatch, CholeskyPosterior, NaturalPosterior
from manygp.variational.evidence import Natural

__all__ = [
    "Base",
    "Since",
    "assimilate",
    "base_of",
    "forgotten",
    "is_among",
    "restored",
    "with_cells",
    "without_cells",
]

# Draws of latent vectors for each cell; rounds over q(v) and q(h); natural steps where noise is not Gaussian.
_DRAWS, _ROUNDS, _STEPS = 8, 2, 25
# Cells whose statistics are computed at a time.
_CHUNK_CELLS = 20_000


@dataclass(frozen=True)
class Since:
    """Cells that came after a fit, in the units of the model; `outputs` are numbers of outputs.

    `surprise` are nats by which each was less likely than expected before it was known, NaN where nobody looked.
    """

    x: Float[Tensor, "c d"]
    outputs: Int[Tensor, " c"]
    y: Float[Tensor, " c"]
    exposure: Float[Tensor, " c"] | None = None
    surprise: Float[Tensor, " c"] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def at(self, chosen: Bool[Tensor, " c"] | Int[Tensor, " b"] | slice) -> "Since":
        """Some of the cells."""
        parts: dict[str, Any] = {name: None if part is None else part[chosen] for name, part in vars(self).items()}
        return Since(**parts)


@dataclass(frozen=True)
class Base:
    """What the fit had left of all that an update changes.

    Parameters
    ----------
    theta, precision
        Natural parameters of q(v).
    outputs, mean, covariance
        Outputs that cells came of, and q(h) of these.
    num_rows
        Inputs with effects of their own.
    """

    theta: Float[Tensor, " m"]
    precision: Float[Tensor, "m m"]
    outputs: Int[Tensor, " k"]
    mean: Float[Tensor, "k h"]
    covariance: Float[Tensor, "k h h"]
    num_rows: int


@torch.no_grad()
def base_of(model: TransformedLatentModel, outputs: Int[Tensor, " k"]) -> Base:
    """The base of a model before cells of some outputs come."""
    theta, precision = _natural(model)
    L, rows = model.latents.factor(outputs), [len(effects.inputs) for effects in model.terms.of(RowEffects)]
    return Base(theta, precision, outputs, model.latents.means(outputs).clone(), L @ L.mT, sum(rows))


@torch.no_grad()
def restored(model: TransformedLatentModel, base: Base, since: Since) -> TransformedLatentModel:
    """A copy of a model as it was before cells came."""
    model = copy.deepcopy(model)
    _put(model, (base.theta, base.precision))
    _set_latents(model, base.outputs, base.mean, base.covariance)
    for effects in model.terms.of(RowEffects):
        _set_rows(effects, effects.inputs[: base.num_rows], *(part[: base.num_rows] for part in _posterior(effects)))
    if model.observed is not None:
        model.observed = _without(model.observed, since)
    return model


@torch.no_grad()
def without_cells(model: TransformedLatentModel, wrong: Since, seed: int) -> None:
    """Take cells of the fit out of q(v), and from among the neighbours.

    Without neighbours, what they said is subtracted, and their values have to be those of the fit; with neighbours,
    q(v) is made anew of the cells that are left, in one pass over them.
    """
    if model.observed is None:
        theta, precision = _statistics(model, wrong, seed)
        old_θ, old_Λ = _natural(model)
        left = old_Λ - precision
        if bool(torch.linalg.cholesky_ex(left)[1]):
            raise NumericalError(
                "The fit knows less than the cells to be forgotten would have said: fit the model anew without them."
            )
        _put(model, (old_θ - theta, left))
        return
    model.observed = _without(model.observed, wrong)
    _put(model, natural_of_groups(model, seed))


@torch.no_grad()
def assimilate(model: TransformedLatentModel, since: Since, seed: int) -> None:
    """Let a model that is as its fit has left it take in cells; draws follow from the seed and the cells alone."""
    if not len(since):
        return
    if model.observed is not None:
        model.observed = model.observed.joined(since.x, since.outputs, since.y)
        moves = model.latents.posterior != "point"
        _put(model, step_latents(model, since.outputs.unique(), seed) if moves else natural_of_groups(model, seed))
        return
    base = base_of(model, since.outputs.unique())
    for _ in range(_ROUNDS if _moves_latents(model) else 1):
        if _moves_latents(model):
            number = torch.searchsorted(base.outputs, since.outputs)
            new = NewCells(since.x, since.y, number, since.exposure)
            found = refine_latents(model, new, base.outputs, base.mean, base.covariance)
            _set_latents(model, base.outputs, *found)
        _put(model, (base.theta, base.precision))
        if isinstance(model.likelihood, Gaussian):
            _add(model, _statistics(model, since, seed))
        else:
            _step_to(model, since, (base.theta, base.precision), seed)
    for effects in model.terms.of(RowEffects):
        _find_effects(model, effects, since)


def is_among(
    cells: tuple[Float[Tensor, "c d"], Int[Tensor, " c"]], others: tuple[Float[Tensor, "k d"], Int[Tensor, " k"]]
) -> Bool[Tensor, " c"]:
    """Which cells (inputs, outputs) are among others."""
    keys, c = torch.cat([torch.column_stack([x, outputs.to(x.dtype)]) for x, outputs in (cells, others)]), len(cells[0])
    number = keys.unique(dim=0, return_inverse=True)[1]
    return torch.isin(number[:c], number[c:])


# -- statistics --------------------------------------------------------------------------------------------------------


def _statistics(model: TransformedLatentModel, since: Since, seed: int) -> Natural:
    """Σ E[a] ω y and Σ E[a aᵀ] ω of cells with Gaussian noise, beside effects of single inputs."""
    assert isinstance(model.likelihood, Gaussian)
    generator, m = torch.Generator(since.y.device).manual_seed(seed), len(model.gp.Z)
    θ, Λ = since.y.new_zeros(m), since.y.new_zeros(m, m)
    # Cells of an input stand together, for what they have in common.
    row = since.x.unique(dim=0, return_inverse=True)[1]
    order = row.argsort(stable=True)
    for part in _chunks(row[order]):
        cells, at = since.at(order[part]), row[order[part]]
        present, column = cells.outputs.unique(return_inverse=True)
        weight = 1.0 / model.output_noise(cells.outputs)
        for _ in range(_DRAWS):
            h = model.latents.rsample(present, column, generator)
            points = Points(cells.x, cells.outputs, at, h)
            A, y = model.explained(model.embed(cells.x, h)), cells.y - model.terms.mean(points)
            WA, Wy = weight.unsqueeze(-1) * A, weight * y
            for effects in model.terms.of(RowEffects):
                WA, Wy = _beside_effects(effects, points, weight, A, y)
            θ += A.T @ Wy / _DRAWS
            Λ += A.T @ WA / _DRAWS
    return θ, symmetrize(Λ)


def _beside_effects(
    effects: RowEffects, points: Points, weight: Tensor, A: Float[Tensor, "b m"], y: Float[Tensor, " b"]
) -> tuple[Float[Tensor, "b m"], Float[Tensor, " b"]]:
    """Ω A and Ω y with Ω⁻¹ = D + B C Bᵀ, block by block of cells with the same input."""
    B, D, C = _effect_parts(effects, points, weight)
    WA, Wy = A / D.unsqueeze(-1), y / D
    for number in points.row.unique().tolist():
        at = (points.row == number).nonzero().squeeze(-1)
        b = B[at]
        WB = b / D[at].unsqueeze(-1)
        # Ω = D⁻¹ − D⁻¹B (C⁻¹ + BᵀD⁻¹B)⁻¹ BᵀD⁻¹
        inner = torch.linalg.inv(torch.linalg.inv(C[at[0]]) + b.T @ WB)
        WA[at] -= WB @ (inner @ (WB.T @ A[at]))
        Wy[at] -= WB @ (inner @ (WB.T @ y[at]))
    return WA, Wy


def _effect_parts(effects: RowEffects, points: Points, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loadings B of cells, variances D of what they have alone, and covariances C of the effects at their inputs."""
    row, B, is_known = effects._find(points)
    eye = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device)
    # A little keeps C invertible where an effect is known well.
    C = torch.where(is_known[:, None, None], effects.posterior_covariance[row] + 1e-9 * eye, eye)
    return B, 1.0 / weight + effects.unknown[points.outputs], C


def _find_effects(model: TransformedLatentModel, effects: RowEffects, since: Since) -> None:
    """What cells tell about the effects of inputs that were not in the fit."""
    h, q = model.latents.means(since.outputs), model.gp.posterior.moments()
    x, row = since.x.unique(dim=0, return_inverse=True)
    points = Points(since.x, since.outputs, row, h)
    left = since.y - model.terms.mean(points) - model.explained(model.embed(since.x, h)) @ q.mean
    B, D, _ = _effect_parts(effects, points, 1.0 / model.output_noise(since.outputs))
    WB, k = B / D.unsqueeze(-1), B.shape[-1]
    precision = torch.eye(k, dtype=B.dtype, device=B.device).repeat(len(x), 1, 1)
    precision = precision.index_add(0, row, B.unsqueeze(-1) * WB.unsqueeze(-2))
    covariance = torch.linalg.inv(symmetrize(precision))
    pull = B.new_zeros(len(x), k).index_add(0, row, WB * left.unsqueeze(-1))
    mean = (covariance @ pull.unsqueeze(-1)).squeeze(-1)
    is_new = ~is_among((x, row.new_zeros(len(x))), (effects.inputs, row.new_zeros(len(effects.inputs))))
    old = (effects.inputs, *_posterior(effects))
    new = (x[is_new], mean[is_new], covariance[is_new])
    _set_rows(effects, *(torch.cat(pair) for pair in zip(old, new, strict=True)))


def _step_to(model: TransformedLatentModel, since: Since, prior: Natural, seed: int) -> None:
    """Natural steps of q(v) from its prior to where cells under any likelihood have it."""
    generator = torch.Generator(since.y.device).manual_seed(seed)
    present, column = since.outputs.unique(return_inverse=True)
    exposure = None if since.exposure is None else since.exposure.repeat(_DRAWS)
    batch = CellBatch(
        x=since.x.repeat(_DRAWS, 1),
        y=since.y.repeat(_DRAWS),
        outputs=present,
        column=column.repeat(_DRAWS),
        cell_weight=1.0,
        output_weight=torch.ones_like(present, dtype=torch.float64),
        row=torch.zeros(_DRAWS * len(since), dtype=torch.int64, device=present.device),
        exposure=exposure,
    )
    (evidence, _), posterior = model._evidence(batch, generator), _natural_posterior(model)
    for _ in range(_STEPS):
        evidence.natural_step(posterior, 1.0 / _DRAWS, 1.0, prior)
    _put(model, (posterior.theta, posterior.precision))


def _chunks(row: Int[Tensor, " c"]) -> list[Tensor]:
    """Places of cells, some at a time, those of an input always together."""
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    begin = first.nonzero().squeeze(-1)
    # The beginning of a chunk is that of the first input behind a multiple of its size.
    number = begin // _CHUNK_CELLS
    cuts = begin[1:][number[1:] != number[:-1]]
    return list(torch.tensor_split(torch.arange(len(row), device=row.device), cuts.cpu()))


# -- parts of a model --------------------------------------------------------------------------------------------------


def _moves_latents(model: TransformedLatentModel) -> bool:
    """Whether latent vectors follow: they are no points, and cells have nothing in common but f."""
    is_plain = all(type(term).covariance is Term.covariance for term in model.terms)
    return is_plain and model.latents.posterior != "point"


def _natural(model: TransformedLatentModel) -> Natural:
    """Copies of the natural parameters of q(v)."""
    posterior = model.gp.posterior
    if isinstance(posterior, NaturalPosterior):
        return posterior.theta.clone(), posterior.precision.clone()
    q = posterior.moments()
    precision = torch.cholesky_inverse(safe_cholesky(q.covariance))
    return precision @ q.mean, symmetrize(precision)


def _natural_posterior(model: TransformedLatentModel) -> NaturalPosterior:
    """A q(v) like that of a model, for natural steps."""
    theta, precision = _natural(model)
    posterior = NaturalPosterior(len(theta)).to(theta.device)
    posterior.put(theta, precision)
    return posterior


def _put(model: TransformedLatentModel, natural: Natural) -> None:
    posterior, (theta, precision) = model.gp.posterior, natural
    if isinstance(posterior, NaturalPosterior):
        posterior.put(theta, precision)
    elif isinstance(posterior, CholeskyPosterior):
        covariance = torch.cholesky_inverse(safe_cholesky(precision))
        posterior.set_moments(covariance @ theta, symmetrize(covariance))


def _add(model: TransformedLatentModel, statistics: Natural) -> None:
    θ, Λ = _natural(model)
    _put(model, (θ + statistics[0], Λ + statistics[1]))


def _set_latents(model: TransformedLatentModel, outputs: Tensor, mean: Tensor, covariance: Tensor) -> None:
    model.latents.mean[outputs] = mean
    if model.latents.posterior != "point":
        model.latents.set_factor(safe_cholesky(covariance), outputs)


def _posterior(effects: RowEffects) -> tuple[Tensor, Tensor]:
    return effects.posterior_mean, effects.posterior_covariance


def _set_rows(effects: RowEffects, inputs: Tensor, mean: Tensor, covariance: Tensor) -> None:
    effects.inputs, effects.posterior_mean, effects.posterior_covariance = (
        part.clone() for part in (inputs, mean, covariance)
    )
    effects._known = None


def _without(cells: ObservedCells, gone: Since) -> ObservedCells:
    """Observed cells without some."""
    return cells.without(is_among((cells.inputs[cells.row.long()], cells.output.long()), (gone.x, gone.outputs)))


def forgotten(since: Since, wrong: Since) -> Since:
    """Cells without some of them."""
    return since.at(~is_among((since.x, since.outputs), (wrong.x, wrong.outputs)))


def with_cells(since: Since, more: Since) -> Since:
    """Cells with others, which take the place of those that they correct."""
    rest, joined = forgotten(since, more), dict[str, Any]()
    for name, unknown in (("exposure", 1.0), ("surprise", math.nan)):
        parts = [getattr(cells, name) for cells in (rest, more)]
        if any(part is not None for part in parts):
            filled = (torch.full_like(cells.y, unknown) for cells in (rest, more))
            parts = [other if part is None else part for part, other in zip(parts, filled, strict=True)]
            joined[name] = torch.cat(parts)
    for name in ("x", "outputs", "y"):
        joined[name] = torch.cat([getattr(rest, name), getattr(more, name)])
    return Since(**joined)
