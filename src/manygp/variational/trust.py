"""How far a natural step may go on what the derivatives of a likelihood say at one q(v)."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["MAX_MOVE", "MAX_VARIANCE", "precisions", "trusted_sites"]

# A step moves no mean of f farther than this: beyond, the tangent at which it aims says nothing.
MAX_MOVE = 3.0
# It sees no more of a marginal's variance than this: exp(f) of an f that is not yet known would dwarf all that is.
MAX_VARIANCE = 9.0
# A count of y tells f to about 1/√y. A mean of exp(f) far above all counts would seem to tell more, and be hard to
# forget.
_MAX_INFORMATION = 30.0
_TINY = 1e-8


def precisions(curvature: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """βᵢ = −2 ∂E/∂vᵢ, held at zero where the likelihood is not log-concave."""
    return (-2.0 * curvature).clamp(min=0.0)


@torch.no_grad()
def trusted_sites(
    variance: Float[Tensor, " b"],
    y: Float[Tensor, " b"],
    slope: Float[Tensor, " b"],
    curvature: Float[Tensor, " b"],
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    is_discrete: bool,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]] | None:
    """∂E/∂μᵢ and βᵢ with cells that would say too much held back; None if there is no such cell.

    Parameters
    ----------
    variance, y
        Variances of the marginals, and values, of the cells.
    slope, curvature
        ∂E/∂μᵢ and ∂E/∂vᵢ there.
    derivatives
        From variances to both derivatives.
    is_discrete
        Whether y are counts or labels.
    """
    if not len(y):
        return None
    most = torch.inf
    is_wide = bool(variance.max() > MAX_VARIANCE)
    if is_wide:
        slope, curvature = derivatives(variance.clamp(max=MAX_VARIANCE))
    β = precisions(curvature)
    if is_discrete:
        most = float(_MAX_INFORMATION * (1.0 + y.max()))
    if not is_wide and float(β.max()) <= most:
        return None
    # The same aim of the cell, μᵢ + slope / βᵢ, held with less certainty.
    share = (most / β.clamp(min=_TINY)).clamp(max=1.0)
    return slope * share, β * share
