"""Rows with gaps as they are: what each says about all latent processes of an orthogonal mixture together."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.linalg import safe_cholesky, triangular_inverse
from manygp.models.orthogonal import Rows
from manygp.variational import NaturalPosterior, Projection

# What stands for a row with gaps where nothing does.
COUPLED = "coupled"


@dataclass(frozen=True)
class CoupledRows:
    """Log densities of rows as functions of the processes: log N(y_o | U_o a, Σ_o) = c + tᵀa − ½ aᵀQa, a = S^½ z.

    White noise of the processes is integrated out: Σ_o = U_o Δ U_oᵀ + σ² I with Δ = S D, Q = U_oᵀ Σ_o⁻¹ U_o and
    t = U_oᵀ Σ_o⁻¹ y. Where Q is not diagonal, because of gaps, a row couples the processes. Their q(z_l) stay
    independent of each other, which makes the expected log density a bound, and their means find each other. Q
    (u, q, q) is that of each pattern of gaps, and `pattern` (n,) that of each row; t (n, q) and c (n,) are of rows.
    """

    Q: Float[Tensor, "u q q"]
    pattern: Int[Tensor, " n"]
    t: Float[Tensor, "n q"]
    constant: Float[Tensor, " n"]
    S: Float[Tensor, " q"]
    Δ: Float[Tensor, " q"]

    @classmethod
    def from_rows(
        cls, rows: Rows, S: Float[Tensor, " q"], D: Float[Tensor, " q"], σ2: Float[Tensor, ""]
    ) -> "CoupledRows":
        """Rows under white noise D of the processes and noise σ² of the outputs."""
        Δ, eye = S * D, torch.eye(len(S), dtype=S.dtype, device=S.device)
        # Σ⁻¹ = (I − U B Uᵀ / σ²) / σ² with B = Δ^½ (F Fᵀ)⁻¹ Δ^½ and F Fᵀ = I + Δ^½ UᵀU Δ^½ / σ²
        root = Δ.sqrt()
        F = safe_cholesky(root.unsqueeze(-1) * rows.gram * root / σ2 + eye)
        T = triangular_inverse(F) * root
        TG = T @ rows.gram
        Q = (rows.gram - TG.mT @ TG / σ2) / σ2
        white = (T[rows.pattern] @ rows.pull.unsqueeze(-1)).squeeze(-1)
        t = (rows.pull - (TG.mT[rows.pattern] @ white.unsqueeze(-1)).squeeze(-1) / σ2) / σ2
        quadratic = (rows.power - white.square().sum(-1) / σ2) / σ2
        logdet = 2.0 * F.diagonal(dim1=-2, dim2=-1).log().sum(-1)[rows.pattern]
        constant = -0.5 * (rows.count * (2.0 * math.pi * σ2).log() + logdet + quadratic)
        return cls(Q, rows.pattern, t, constant, S, Δ)

    def expected_log_lik(self, level: Float[Tensor, "q n"], spread: Float[Tensor, "q n"]) -> Float[Tensor, ""]:
        """Σ_n E[log N(y | U_o a, Σ_o)] for independent z_l with these means and variances."""
        a = self.S.sqrt() * level.T
        alone = self.S * self.Q.diagonal(dim1=-2, dim2=-1)
        linear = ((self.t - 0.5 * self._times_Q(a)) * a).sum()
        return self.constant.sum() + linear - 0.5 * (alone[self.pattern] * spread.T).sum()

    @torch.no_grad()
    def natural_step(self, posterior: NaturalPosterior, projection: Projection, weight: float, rate: float) -> None:
        """Move all q(v_l) towards their joint optimum when each row counts `weight` times."""
        root = self.S.sqrt()

        def couple(change: Tensor) -> Tensor:
            return weight * (root * self._times_Q(root * change.T)).T

        q = posterior.moments()
        level, _ = projection.marginals(q)
        alone = (self.S * self.Q.diagonal(dim1=-2, dim2=-1))[self.pattern].T
        gradient = weight * (root * (self.t - self._times_Q(root * level.T))).T
        projection.joint_step(posterior, q, weight * alone, gradient, couple, rate)

    def posterior(
        self, rows: Int[Tensor, " k"], mean: Float[Tensor, "k q"], variance: Float[Tensor, "k q"]
    ) -> tuple[Float[Tensor, "k q"], Float[Tensor, "k q q"]]:
        """Mean and covariance of S^½ (z + ξ) at some rows, from those of a = S^½ z: the rows tell about ξ too."""
        Q, eye = self.Q[self.pattern[rows]], torch.eye(len(self.S), dtype=mean.dtype, device=mean.device)
        # ξ | a, y has mean Δ (t − Q a) and covariance Δ − Δ Q Δ
        kept, ΔQ = eye - self.Δ.unsqueeze(-1) * Q, self.Δ.unsqueeze(-1) * Q
        covariance = (kept * variance.unsqueeze(-2)) @ kept.mT + torch.diag(self.Δ) - ΔQ * self.Δ
        left = self.t[rows] - (Q @ mean.unsqueeze(-1)).squeeze(-1)
        return mean + self.Δ * left, covariance

    def _times_Q(self, a: Float[Tensor, "n q"]) -> Float[Tensor, "n q"]:
        """Q a of every row."""
        return (self.Q[self.pattern] @ a.unsqueeze(-1)).squeeze(-1)
