"""What many problems of the same kind say together about the prior of their parameters."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.training.each import Problems

# Step of the finite differences, in logarithms of parameters.
_STEP = 1e-3
# Rounds in which the centre and the spread of many estimates are found.
_ROUNDS = 100
# Fewer problems than this cannot tell how much problems differ; a spread below the least makes no difference.
_LEAST_PROBLEMS, _LEAST_SPREAD = 3, 0.03
# So many problems tell the prior of any number.
_MOST_PROBLEMS = 500
# A problem whose evidence asks for a parameter so far away, in logarithms, has no maximum.
_FAR = 10.0


@torch.no_grad()
def pooled_prior(
    evidence: Problems, rows: Float[Tensor, "u k"], center: Float[Tensor, "1 k"], spread: float
) -> tuple[Float[Tensor, "1 k"], Float[Tensor, "1 k"]]:
    """Centre and standard deviation of the normal prior from which the parameters of all problems were drawn.

    The prior θ_p ~ N(c, diag τ²) that makes all data together most probable, with each log evidence a quadratic
    function around `rows` (Laplace), where each problem has about its maximum, by expectation maximisation. Where
    problems say much about a parameter and differ, its spread is as wide as they do. Where they differ by no more than
    chance would have them differ, all get about one value. Where they say nothing at all, the prior stays as it was;
    its centre counts as much as that of one problem. Problems without a maximum, such as the noise of a constant
    output, have no say.
    """
    variance, c = torch.full_like(center, spread**2), center
    chosen = torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_PROBLEMS), device=rows.device).round().long()
    rows = rows[chosen]
    gradient, H, is_bounded = _curvature(evidence, rows, chosen, spread)
    rows, gradient, H = rows[is_bounded], gradient[is_bounded], H[is_bounded]
    u = len(rows)
    if u < _LEAST_PROBLEMS:
        return center, variance.sqrt()
    for _ in range(_ROUNDS):
        # E step: q(θ_p) = N(m_p, S_p), S_p = (H_p + diag τ⁻²)⁻¹, m_p = θ̂_p + S_p (g_p + (c − θ̂_p) / τ²)
        S = torch.linalg.inv(H + torch.diag_embed(1.0 / variance))
        m = rows + (S @ (gradient + (c - rows) / variance).unsqueeze(-1)).squeeze(-1)
        # M step: τ² = mean of (m_p − c)² + diag S_p
        c = (center + m.sum(0)) / (u + 1)
        variance = ((m - c).square() + S.diagonal(dim1=-2, dim2=-1)).mean(0, keepdim=True)
        # Flat evidence would let it grow for ever.
        variance.clamp_(min=_LEAST_SPREAD**2, max=_FAR**2)
    return c, variance.sqrt()


def _curvature(
    evidence: Problems, rows: Float[Tensor, "u k"], which: Int[Tensor, " u"], spread: float
) -> tuple[Float[Tensor, "u k"], Float[Tensor, "u k k"], Bool[Tensor, " u"]]:
    """Gradients, minus the Hessians by central differences (positive semi-definite), and where a maximum is near."""
    columns = []
    for step in _STEP * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device):
        columns.append((evidence(rows - step, which)[1] - evidence(rows + step, which)[1]) / (2.0 * _STEP))
    gradient, H = evidence(rows, which)[1], torch.stack(columns, -1)
    values, vectors = torch.linalg.eigh(0.5 * (H + H.mT))
    values = values.clamp(min=0.0)
    slope = (vectors.mT @ gradient.unsqueeze(-1)).squeeze(-1).abs()
    # Slopes that matter, and that the curvature does not bring to rest nearby.
    runs_off = (slope * spread > 1.0) & (slope > _FAR * values)
    return gradient, (vectors * values.unsqueeze(-2)) @ vectors.mT, ~runs_off.any(-1)
