"""Tables seen through an orthogonal basis: rows of observations as independent observations of latent processes."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from gpytorch.constraints import Positive
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.linalg import safe_cholesky, triangular_inverse
from manygp.variational import CellBatch
from manygp.variational.layout import CellGrid, distinct_inputs

PROJECTIONS = ("matched", "pseudo-inverse")
# Least precision of a site, as a share of that of the prior: below it a row says nothing about a process.
_LEAST_PRECISION = 1e-10
# Products of pairs of columns of U that are made at a time, in numbers.
_CHUNK_NUMBERS = 4_000_000


class Basis(nn.Module):
    """H = U S^½ with orthonormal columns U (p, q), positive diagonals S and D (q,), as exponentials or softplus.

    U is orthonormalised from a free matrix W: with WᵀW = L Lᵀ, U = W L⁻ᵀ.
    """

    seen: Tensor

    def __init__(self, num_outputs: int, num_latents: int, log_parameters: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(num_outputs, num_latents, dtype=torch.float64))
        self.raw_scale = nn.Parameter(torch.zeros(num_latents, dtype=torch.float64))
        self.raw_noise = nn.Parameter(torch.zeros(num_latents, dtype=torch.float64))
        positive = Positive(transform=torch.exp, inv_transform=torch.log) if log_parameters else Positive()
        self.constraint = positive.double()
        # Which outputs have observations; of the others nothing is known.
        self.register_buffer("seen", torch.ones(num_outputs, dtype=torch.bool))

    @property
    def U(self) -> Float[Tensor, "p q"]:
        """The orthonormal basis."""
        W = self.weight
        return torch.linalg.solve_triangular(safe_cholesky(W.T @ W), W.T, upper=False).T

    @property
    def S(self) -> Float[Tensor, " q"]:
        """Squared lengths of the columns of H."""
        return self.constraint.transform(self.raw_scale)

    @property
    def D(self) -> Float[Tensor, " q"]:
        """Variances of the white noise of the latent processes."""
        return self.constraint.transform(self.raw_noise)

    @property
    def H(self) -> Float[Tensor, "p q"]:
        """The mixing matrix."""
        return self.U * self.S.sqrt()

    @torch.no_grad()
    def start(self, weight: Float[Tensor, "p q"], S: Float[Tensor, " q"], D: Float[Tensor, " q"]) -> None:
        """Set U to the orthonormalised `weight`, and S and D."""
        self.weight.copy_(weight)
        self.weight.copy_(self.U)
        self.raw_scale.copy_(self.constraint.inverse_transform(S.to(self.raw_scale)))
        self.raw_noise.copy_(self.constraint.inverse_transform(D.to(self.raw_noise)))


@dataclass(frozen=True)
class Rows:
    """What the observations at n inputs say, through a given U: rows with the same gaps share the Gram matrix."""

    #: The inputs, shape (n, d).
    x: Float[Tensor, "n d"]
    #: U_oᵀ U_o for every pattern o of observed outputs, shape (u, q, q).
    gram: Float[Tensor, "u q q"]
    #: The pattern of every input, shape (n,).
    pattern: Int[Tensor, " n"]
    #: U_oᵀ y of every input, shape (n, q).
    pull: Float[Tensor, "n q"]
    #: yᵀy and the number of observations of every input, shape (n,).
    power: Float[Tensor, " n"]
    count: Float[Tensor, " n"]

    @classmethod
    def gather(cls, U: Float[Tensor, "p q"], batch: CellBatch) -> "Rows":
        """The rows of a batch that holds all outputs of its inputs."""
        x, row = distinct_inputs(batch.x)
        y, U = batch.y.to(U.dtype), U.index_select(0, batch.outputs)
        cells = CellGrid(row, batch.column, len(x), len(U))
        gram, pattern = _grams(cells, U)
        power = y.new_zeros(len(x)).index_add(0, row, y.square())
        count = torch.bincount(row, minlength=len(x)).to(y.dtype)
        return cls(x, gram, pattern, cells.collect(y, U), power, count)

    @classmethod
    def join(cls, parts: Iterable["Rows"]) -> "Rows":
        """Several lots of rows as one."""
        lots = list(parts)
        first = itertools.accumulate((len(rows.gram) for rows in lots), initial=0)
        return cls(
            torch.cat([rows.x for rows in lots]),
            torch.cat([rows.gram for rows in lots]),
            torch.cat([rows.pattern + start for rows, start in zip(lots, first, strict=False)]),
            torch.cat([rows.pull for rows in lots]),
            torch.cat([rows.power for rows in lots]),
            torch.cat([rows.count for rows in lots]),
        )


def _grams(cells: CellGrid, U: Float[Tensor, "p q"]) -> tuple[Float[Tensor, "u q q"], Int[Tensor, " n"]]:
    """U_oᵀ U_o for the patterns of rows, and the pattern of every row; half of each is computed."""
    p, q = U.shape
    ones = U.new_ones(len(cells.row))
    if cells.is_filled:
        counts = ones.new_zeros(cells.num_rows * p).index_add(0, cells.place, ones).view(-1, p)
        counts, pattern = _distinct_rows(counts)
    else:
        pattern = torch.arange(cells.num_rows, device=U.device)
    i, j = torch.triu_indices(q, q, device=U.device)
    parts = []
    for chosen in torch.split(torch.arange(len(i), device=U.device), max(1, _CHUNK_NUMBERS // p)):
        pairs = U[:, i[chosen]] * U[:, j[chosen]]
        parts.append(counts @ pairs if cells.is_filled else cells.collect(ones, pairs))
    place = torch.zeros(q, q, dtype=torch.int64, device=U.device)
    place[i, j] = place[j, i] = torch.arange(len(i), device=U.device)
    return torch.cat(parts, -1)[:, place], pattern


def _distinct_rows(counts: Float[Tensor, "n p"]) -> tuple[Float[Tensor, "u p"], Int[Tensor, " n"]]:
    """The distinct rows, found by one random sum each rather than by sorting rows, and the place of every row."""
    generator = torch.Generator(device=counts.device).manual_seed(0)
    key = counts @ torch.randn(counts.shape[1], dtype=counts.dtype, device=counts.device, generator=generator)
    distinct, pattern = key.unique(return_inverse=True)
    first = torch.empty(len(distinct), dtype=torch.int64, device=counts.device)
    first[pattern] = torch.arange(len(counts), device=counts.device)
    return counts[first], pattern


@dataclass(frozen=True)
class Sites:
    """Rows as independent observations of the latent processes: p(y_n | z) ≈ c_n Π_l N(ẑ_nl | z_l(x_n), r_nl + D_l).

    Mean and noise are ẑ and r, shape (n, q); the log scale is log c_n, minus the regularisation term of the paper,
    shape (n,).
    """

    mean: Float[Tensor, "n q"]
    noise: Float[Tensor, "n q"]
    log_scale: Float[Tensor, " n"]


def project(
    rows: Rows, S: Float[Tensor, " q"], variance: Float[Tensor, " q"], σ2: Float[Tensor, ""], projection: str
) -> Sites:
    """Observations of the latent processes that stand for rows, given prior variances of these with their white noise.

    The projection "pseudo-inverse" takes the formulas of the paper's appendix J; "matched" has sites that lead to the
    same marginal moments of z_n and the same density of y_n as the row does, when nothing else is known but the prior
    variances. Both are exact where U_oᵀ U_o is diagonal.
    """
    if projection == "pseudo-inverse":
        return _pseudo_inverse(rows, S, σ2)
    return _matched(rows, S, variance, σ2)


def _pseudo_inverse(rows: Rows, S: Tensor, σ2: Tensor) -> Sites:
    inverse = torch.linalg.pinv(rows.gram, hermitian=True)
    diagonal = inverse.diagonal(dim1=-2, dim2=-1).clamp(min=_LEAST_PRECISION)[rows.pattern]
    found = (inverse[rows.pattern] @ rows.pull.unsqueeze(-1)).squeeze(-1)
    q = len(S)
    # ½ log |S| − ½ log |diag (U_oᵀU_o)⁻¹| + ½ (P_o − L) log 2πσ² + ‖y − H_o T_o y‖² / 2σ²
    residual = rows.power - (rows.pull * found).sum(-1)
    excess = (rows.count - q) * (2.0 * math.pi * σ2).log()
    penalty = 0.5 * (S.log().sum() - diagonal.log().sum(-1) + excess + residual / σ2)
    # T_o y = S^−½ U_o⁺ y,  Σ_T = σ² S^−½ diag[(U_oᵀU_o)⁻¹] S^−½
    return Sites(found / S.sqrt(), σ2 * diagonal / S, -penalty)


def _matched(rows: Rows, S: Tensor, variance: Tensor, σ2: Tensor) -> Sites:
    π = S * variance
    # C = (U_oᵀU_o / σ² + Π⁻¹)⁻¹ and C U_oᵀy / σ²: moments of S^½ z given the row
    factor = safe_cholesky(rows.gram / σ2 + torch.diag(1.0 / π))
    inverse = triangular_inverse(factor)
    C = inverse.square().sum(-2)[rows.pattern]
    white = (inverse[rows.pattern] @ rows.pull.unsqueeze(-1)).squeeze(-1) / σ2
    mean = (inverse.mT[rows.pattern] @ white.unsqueeze(-1)).squeeze(-1)
    # log N(y | 0, U_o Π U_oᵀ + σ² I)
    logdet = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)[rows.pattern] + π.log().sum()
    quadratic = rows.power / σ2 - white.square().sum(-1)
    density = -0.5 * (rows.count * (2.0 * math.pi * σ2).log() + logdet + quadratic)
    # A site of precision τ and mean ẑ takes the prior's marginal to N(mean, C).
    τ = (1.0 / C - 1.0 / π).clamp(min=_LEAST_PRECISION / π)
    located, noise = mean / (C * τ) / S.sqrt(), 1.0 / (τ * S)
    return Sites(located, noise, density - log_normal(located, variance + noise).sum(-1))


def log_normal(residual: Tensor, variance: Tensor) -> Tensor:
    """log N(residual | 0, variance), element by element."""
    return -0.5 * (residual.square() / variance + (2.0 * math.pi * variance).log())
