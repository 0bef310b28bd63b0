"""The natural step, and how far it may go on what the derivatives of a likelihood say at one q."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.exchange import ALONE, Exchange
from manygp.likelihoods import Likelihood
from manygp.linalg import sure_cholesky, symmetrize
from manygp.variational.posterior import NaturalPosterior, PosteriorMoments

# A step moves no mean of f farther than this: beyond, the tangent at which it aims says nothing.
_MAX_MOVE = 3.0
_MAX_HALVINGS = 20
# It sees no more of a marginal's variance than this: exp(f) of an f that is not yet known would dwarf all that is.
MAX_VARIANCE = 9.0
# A count of y tells f to about 1/√y. A mean of exp(f) far above all counts would seem to tell more, and be hard to
# forget.
_MAX_INFORMATION = 30.0
_TINY = 1e-8

#: From the rate of a step, and the precision that it leads to with its Cholesky factor, to θ̂.
Aim = Callable[[Float[Tensor, "*q"], Float[Tensor, "*r m m"], Float[Tensor, "*r m m"]], Float[Tensor, "*r m"]]
#: From changes of the means of v to those of the means of f at cells.
Moves = Callable[[Float[Tensor, "*r m"]], Float[Tensor, "*q c"]]


class Sites(NamedTuple):
    """What cells say about f around their marginals: ∂E/∂μᵢ and βᵢ ≥ 0, and whether any cell was held back."""

    slope: Float[Tensor, " b"]
    precision: Float[Tensor, " b"]
    is_held: bool


def precisions(curvature: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """βᵢ = −2 ∂E/∂vᵢ, held at zero where the likelihood is not log-concave."""
    return (-2.0 * curvature).clamp(min=0.0)


@torch.no_grad()
def trusted_sites(
    likelihood: Likelihood,
    mean: Float[Tensor, " b"],
    variance: Float[Tensor, " b"],
    y: Float[Tensor, " b"],
    outputs: Int[Tensor, " b"],
    exposure: Float[Tensor, " b"] | None = None,
    known: tuple[Float[Tensor, " b"], Float[Tensor, " b"]] | None = None,
    exchange: Exchange = ALONE,
) -> Sites:
    """Sites of cells at marginals N(μᵢ, vᵢ) of f, where those that would say too much are held back.

    `known` are ∂E/∂μᵢ and ∂E/∂vᵢ at these marginals, if they are at hand; `exchange` leads to other cells of the batch.
    """
    seen, most = variance.clamp(max=MAX_VARIANCE), _most_information(likelihood, y, exchange)
    slope, curvature = likelihood.site_derivatives(mean, seen, y, outputs, exposure) if known is None else known
    # One look at what the device has found.
    if not bool(_says_too_much(variance, curvature, most)):
        return Sites(slope, precisions(curvature), False)
    if known is not None:
        slope, curvature = likelihood.site_derivatives(mean, seen, y, outputs, exposure)
    β = precisions(curvature)
    # The same aim of the cell, μᵢ + slope / βᵢ, held with less certainty.
    share = (most / β.clamp(min=_TINY)).clamp(max=1.0)
    return Sites(slope * share, β * share, True)


@torch.no_grad()
def says_too_much(
    likelihood: Likelihood,
    variance: Float[Tensor, " b"],
    curvature: Float[Tensor, " b"],
    y: Float[Tensor, " b"],
    exchange: Exchange = ALONE,
) -> Bool[Tensor, ""]:
    """Whether `trusted_sites` would hold any cell back, for whoever looks later."""
    return _says_too_much(variance, curvature, _most_information(likelihood, y, exchange))


def _says_too_much(variance: Tensor, curvature: Tensor, most: Tensor) -> Bool[Tensor, ""]:
    return ((variance > MAX_VARIANCE) | (precisions(curvature) > most)).any()


def _most_information(likelihood: Likelihood, y: Tensor, exchange: Exchange) -> Float[Tensor, ""]:
    """The largest βᵢ that a cell of a batch may have."""
    if not likelihood.is_discrete:
        return y.new_full((), torch.inf)
    return _MAX_INFORMATION * (1.0 + exchange.largest(y.max() if len(y) else y.new_zeros(())))


def trusted_rate(moves: Float[Tensor, "*q c"], rate: float) -> Float[Tensor, "*q"]:
    """The share of a step, `rate` at most, that takes no mean of f too far; `moves` are those of the whole step."""
    if not moves.shape[-1]:
        return moves.new_full(moves.shape[:-1], rate)
    longest = moves.abs().amax(-1).clamp(min=torch.finfo(moves.dtype).tiny)
    return (_MAX_MOVE / longest).clamp(max=rate)


@torch.no_grad()
def natural_step(
    posterior: NaturalPosterior,
    q: PosteriorMoments,
    theta: Float[Tensor, "*q m"] | Aim,
    precision: Float[Tensor, "*q m m"],
    rate: float,
    moves: Moves | None = None,
    which: Int[Tensor, " r"] | None = None,
    exchange: Exchange = ALONE,
) -> None:
    """(θ, Λ) ← (1 − g)(θ, Λ) + g (θ̂, Λ̂), with g halved until no mean of f moves too far.

    Parameters
    ----------
    posterior
        What moves.
    q
        Its moments, at which the target was found.
    theta, precision
        The target; θ̂ may depend on g.
    rate
        The largest g.
    moves
        Tells how far cells move: by process, (*q, c), or with all processes together, (c,). None where the target holds
        everywhere, as it does with Gaussian noise.
    which
        Processes of a batch that move, all by default.
    exchange
        Leads to those who have other cells of the batch and come to the same target.
    """
    if moves is None and isinstance(theta, Tensor):
        posterior.step(theta, precision, rate, which)
        return
    old = (posterior.theta, posterior.precision)
    if which is not None:
        old = (old[0][which], old[1][which])
    g, is_far = torch.tensor(rate, dtype=precision.dtype, device=precision.device), None
    for _ in range(_MAX_HALVINGS):
        θ, Λ, is_far = tried_step(old, q, theta, precision, g, moves)
        if moves is None:
            break
        is_far = exchange.largest(is_far)
        if not bool(is_far.any()):
            break
        g = torch.where(is_far, 0.5 * g, g)
    else:
        assert is_far is not None
        # Whoever cannot be trusted at all stays.
        θ, Λ = torch.where(is_far[..., None], old[0], θ), torch.where(is_far[..., None, None], old[1], Λ)
    posterior.put(θ, Λ, which)


@torch.no_grad()
def tried_step(
    old: tuple[Float[Tensor, "*r m"], Float[Tensor, "*r m m"]],
    q: PosteriorMoments,
    theta: Float[Tensor, "*q m"] | Aim,
    precision: Float[Tensor, "*q m m"],
    g: Float[Tensor, "*g"],
    moves: Moves | None,
) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r m m"], Bool[Tensor, "*h"]]:
    """Where a natural step of rate g would lead from old natural parameters, and whether that is too far."""
    Λ = torch.lerp(old[1], symmetrize(precision), g[..., None, None])
    factor = sure_cholesky(Λ)
    θ = torch.lerp(old[0], theta if isinstance(theta, Tensor) else theta(g, Λ, factor), g[..., None])
    if moves is None:
        return θ, Λ, torch.zeros_like(g, dtype=torch.bool)
    distance = moves(torch.cholesky_solve(θ.unsqueeze(-1), factor).squeeze(-1) - q.mean).abs()
    # NaN is far.
    return θ, Λ, ~(distance <= _MAX_MOVE).all(-1)
