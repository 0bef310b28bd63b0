"""The evidence of two scales: inducing points, and what they leave between neighbours (Vecchia's approximation).

Given u, the residual r = y − A v of all cells is Gaussian with covariance S = R − A Aᵀ, where R is the covariance of
the model and A = K L⁻ᵀ is what inducing points explain. Cells stand in an order and in groups; the cells of a group
depend on each other and on a few cells before them, their conditioning set:

    p(y | v) ≈ Π_g p(y_g | y_N(g), v)

With L Lᵀ the covariance S of a conditioning set and its group together, the rows of L⁻¹ A and L⁻¹ y that belong to the
group are those of cells with independent noise of variance 1. So they enter the bound and the natural step as plain
cells do. Nothing is left out of the variances: there is no trace term.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.linalg import gram, projected, safe_cholesky, symmetrize, triangular_inverse, unwhitened, with_gradients
from manygp.variational.evidence import Evidence
from manygp.variational.groups import Groups
from manygp.variational.posterior import Posterior, PosteriorMoments

__all__ = ["VecchiaEvidence", "projected_rows"]


@dataclass(frozen=True)
class VecchiaEvidence(Evidence):
    """Groups of cells given their conditioning sets, with Gaussian noise.

    Parameters
    ----------
    A
        What inducing points explain of every cell of a group, shape (g, c, m), zero where there is none.
    R
        Covariance of the observations of a group in the model, shape (g, c, c).
    y
        Values, shape (g, c), zero where there is none.
    groups
        Which cells are the group's own.
    """

    A: Float[Tensor, "g c m"]
    R: Float[Tensor, "g c c"]
    y: Float[Tensor, "g c"]
    groups: Groups
    Linv: Float[Tensor, "g c c"]
    rows: Float[Tensor, "g c m"]
    values: Float[Tensor, "g c"]
    logdet: Float[Tensor, ""]

    @classmethod
    def from_groups(
        cls,
        A: Float[Tensor, "b m"],
        R: Float[Tensor, "g c c"],
        y: Float[Tensor, " b"],
        groups: Groups,
        jitter: float = 0.0,
    ) -> "VecchiaEvidence":
        """Whiten the cells of a batch, whose rows A and values y are picked by the groups.

        Entries of R without a cell are ignored.
        """
        seen, shape = groups.seen, groups.index.shape
        at = groups.index.flatten()
        A = (A.index_select(0, at) * seen.flatten().unsqueeze(-1)).view(*shape, -1)
        y = torch.where(seen, y.index_select(0, at).view(shape), 0.0)
        # Entries without a cell have unit variance and the value zero: a constant.
        R = torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), R, 0.0) + torch.diag_embed((~seen).to(R.dtype))
        with torch.no_grad():
            L = safe_cholesky(torch.baddbmm(R, A, A.mT, alpha=-1.0), jitter)
            Linv = triangular_inverse(L)
            rows, values = Linv @ A, (Linv @ y.unsqueeze(-1)).squeeze(-1)
            logdet = 2.0 * L.diagonal(dim1=-2, dim2=-1).log()[:, groups.num_given :].sum()
        return cls(A, R, y, groups, Linv, rows, values, logdet)

    @property
    def own_rows(self) -> Float[Tensor, "b m"]:
        """Whitened rows ã of the groups' own cells; zero where there is none."""
        return self.rows[:, self.groups.num_given :].flatten(0, 1)

    @property
    def own_values(self) -> Float[Tensor, " b"]:
        """Whitened values ỹ of the groups' own cells; zero where there is none."""
        return self.values[:, self.groups.num_given :].flatten()

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        # Λ̂ = I + w Σ ã ãᵀ,  θ̂ = w Σ ã ỹ
        precision = weight * gram(self.own_rows)
        precision.diagonal().add_(1.0)
        return weight * (self.own_rows.T @ self.own_values), precision

    def misfit(self, q: PosteriorMoments) -> Float[Tensor, "g c"]:
        """What q(v) leaves of the groups' own values, whitened."""
        return (self.values - self.rows @ q.mean)[:, self.groups.num_given :]

    def whitened(self, values: Float[Tensor, " b"]) -> Float[Tensor, "g c"]:
        """Values of the cells of a batch as y of the groups' own cells is, L⁻¹ y."""
        own_Linv = self.Linv[:, self.groups.num_given :]
        return (own_Linv @ self._picked(values.unsqueeze(-1))).squeeze(-1)

    def spread(self, rows: Float[Tensor, "b r"], outputs: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        """tr L⁻¹ D L⁻ᵀ of the groups' own cells, D the products of rows of a batch between cells of one output."""
        output, own_Linv = outputs[self.groups.index], self.Linv[:, self.groups.num_given :]
        by_D = (own_Linv.mT @ own_Linv) * (output.unsqueeze(-1) == output.unsqueeze(-2))
        picked = self._picked(rows)
        return (picked * (by_D @ picked)).sum()

    def _picked(self, rows: Float[Tensor, "b r"]) -> Float[Tensor, "g c r"]:
        """Rows of the cells of a batch by group, zero where there is none."""
        at, seen = self.groups.index, self.groups.seen
        return rows.index_select(0, at.flatten()).unflatten(0, at.shape) * seen.unsqueeze(-1)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ E log N(ỹᵢ | ãᵢᵀ v, 1) − ½ log|S| of the groups' own cells, with its gradients in closed form."""
        k = self.groups.num_given
        with torch.no_grad():
            m, V = q.mean, q.covariance
            z = self.values - self.rows @ m
            own_z, own_rows = z[:, k:], self.rows[:, k:]
            spread = own_rows @ V
            misfit = own_z.square().sum() + (spread * own_rows).sum()
            value = -0.5 * (self.groups.num_cells.to(m.dtype) * math.log(2.0 * math.pi) + self.logdet + misfit)
        if not torch.is_grad_enabled():
            return value
        with torch.no_grad():
            Linv, own_Linv = self.Linv, self.Linv[:, k:]
            # With T = L⁻¹ dS L⁻ᵀ: dL = L Φ(T), Φ the lower triangle with half its diagonal, and
            # dE = ⟨Φ(T), C⟩,  C = z zᵀ + Ã V Ãᵀ − I in the rows of the group
            C = torch.zeros_like(Linv)
            C[:, k:] = torch.baddbmm(own_z.unsqueeze(-1) * z.unsqueeze(-2), spread, self.rows.mT)
            C[:, k:].diagonal(offset=k, dim1=-2, dim2=-1).sub_(1.0)
            C.tril_().diagonal(dim1=-2, dim2=-1).mul_(0.5)
            by_S = Linv.mT @ (0.5 * (C + C.mT)) @ Linv
            # ∂/∂A = −2 (∂/∂S) A + L⁻ᵀ (z mᵀ − Ã V),  ∂/∂y = −L⁻ᵀ z
            by_A = own_Linv.mT @ torch.sub(own_z.unsqueeze(-1) * m, spread)
            by_A.baddbmm_(by_S, self.A, alpha=-2.0)
            by_y = -(own_Linv.mT @ own_z.unsqueeze(-1)).squeeze(-1)
            by_m, by_V = self.own_rows.T @ own_z.flatten(), -0.5 * gram(self.own_rows)
        inputs = [self.A, self.R, self.y, q.mean, q.covariance]
        return with_gradients(value, inputs, [by_A, by_S, by_y, by_m, by_V])


def projected_rows(
    K: Float[Tensor, "b m"], Kuu: Float[Tensor, "m m"], Linv: Float[Tensor, "m m"]
) -> Float[Tensor, "b m"]:
    """A = K L⁻ᵀ; L⁻¹ is that of Kuu and counts as a constant."""
    return _Projected.apply(K, Kuu, Linv)


class _Projected(torch.autograd.Function):
    """K L⁻ᵀ with L Lᵀ = Kuu."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, Kuu: Tensor, Linv: Tensor) -> Tensor:
        A = projected(K, Linv)
        ctx.save_for_backward(A, Linv)
        return A

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
        A, Linv = ctx.saved_tensors
        # ∂/∂K = G L⁻¹;  Lᵀ ∂/∂L = −Gᵀ A, of which the lower triangle with half its diagonal leads from L to Kuu
        lower = (G.T @ A).neg_().tril_()
        lower.diagonal().mul_(0.5)
        return G @ Linv, unwhitened(Linv, symmetrize(lower)), None
