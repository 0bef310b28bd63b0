"""Factor analysis of a table whose cells are known each with a precision of its own, or not at all.

    z_np = a_p + b_pᵀ r_n + ε_np,   r_n ~ N(0, I),   ε_np ~ N(0, 1/β_np),   [b_p, a_p] ~ N(0, diag τ)

by variational expectation maximisation: q(r) of every row, q([b, a]) of every output and τ take turns, so that an
output of which little is known has coefficients like any other. Cells enter through their precisions β, zero where
nothing is known, and γ = β z.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from manygp.linalg import safe_cholesky

# Least variance of coefficients over outputs: below it they could not grow.
_LEAST_SPREAD = 1e-2


@dataclass(frozen=True)
class Factors:
    """q(r) of every row, and coefficients [b, a] of every output with their covariances; a = 0 without levels."""

    mean: Float[Tensor, "n k"]
    covariance: Float[Tensor, "n k k"]
    coefficients: Float[Tensor, "p k1"]
    covariance_of: Float[Tensor, "p k1 k1"]

    @classmethod
    def at(
        cls,
        pull: Float[Tensor, "t p"],
        weight: Float[Tensor, "t p"],
        row: Int[Tensor, " t"],
        coefficients: Float[Tensor, "p k1"],
        covariance_of: Float[Tensor, "p k1 k1"],
    ) -> "Factors":
        """With q(r) that goes with the coefficients; rows of a table with the same number share theirs."""
        B, a, k = coefficients[:, :-1], coefficients[:, -1:], coefficients.shape[1] - 1
        # E[b bᵀ] and E[a b]
        outer = (B.unsqueeze(-1) * B.unsqueeze(-2) + covariance_of[:, :-1, :-1]).flatten(1)
        shift = a * B + covariance_of[:, :-1, -1]
        count = int(row.max()) + 1
        # C_n = (I + Σ_p β E[b bᵀ])⁻¹,  m_n = C_n Σ_p γ b − β E[a b]
        precision = pull.new_zeros(count, k * k).index_add_(0, row, weight @ outer).view(-1, k, k)
        precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
        towards = pull.new_zeros(count, k).index_add_(0, row, pull @ B - weight @ shift)
        C = torch.linalg.inv(precision)
        return cls((C @ towards.unsqueeze(-1)).squeeze(-1), C, coefficients, covariance_of)

    @classmethod
    def first(
        cls,
        pull: Float[Tensor, "t p"],
        weight: Float[Tensor, "t p"],
        row: Int[Tensor, " t"],
        rank: int,
        rng: np.random.Generator,
    ) -> "Factors":
        """By a singular value decomposition: where β hardly varies, γ / √β is a table with unit noise."""
        typical = weight.mean()
        table = (pull / (weight + typical).sqrt()).cpu().numpy()
        _, d, V = randomized_svd(table, rank, random_state=int(rng.integers(2**31)))
        unit = (weight.mean(0) + typical).sqrt().unsqueeze(-1)
        B = torch.as_tensor(V.T * d / math.sqrt(len(table)), device=pull.device) / unit
        coefficients = torch.cat([B, torch.zeros_like(B[:, :1])], -1)
        return cls.at(pull, weight, row, coefficients, torch.zeros_like(coefficients).diag_embed())

    def improved(
        self, pull: Float[Tensor, "t p"], weight: Float[Tensor, "t p"], row: Int[Tensor, " t"], has_levels: bool
    ) -> "Factors":
        """One step: coefficients that go with q(r), and q(r) that goes with these.

        The average of E[r rᵀ] should be I and is only after many steps. So r is seen in units of it, and coefficients
        with it (parameter-expanded expectation maximisation), which takes a few.
        """
        coefficients, covariance = self.regressed(pull, weight, row, has_levels)
        unit = torch.eye(coefficients.shape[1], dtype=pull.dtype, device=pull.device)
        unit[:-1, :-1] = safe_cholesky(self._moments()[1][:, :-1, :-1].mean(0))
        return Factors.at(pull, weight, row, coefficients @ unit, unit.T @ covariance @ unit)

    def regressed(
        self, pull: Float[Tensor, "t p"], weight: Float[Tensor, "t p"], row: Int[Tensor, " t"], has_levels: bool
    ) -> tuple[Float[Tensor, "p k1"], Float[Tensor, "p k1 k1"]]:
        """q([b, a]) of every output, with q(r) as it is; a = 0 without levels."""
        u, moments = self._moments()
        k = u.shape[1]
        precision = (weight.T @ moments.flatten(1)[row]).view(-1, k, k)
        # τ: how coefficients vary over outputs
        spread = (self.coefficients.square() + self.covariance_of.diagonal(dim1=-2, dim2=-1)).mean(0)
        precision.diagonal(dim1=-2, dim2=-1).add_(1.0 / spread.clamp(min=_LEAST_SPREAD))
        towards = pull.T @ u[row]
        if not has_levels:
            precision[:, -1, :-1] = precision[:, :-1, -1] = towards[:, -1] = 0.0
        covariance = torch.linalg.inv(precision)
        found = (covariance @ towards.unsqueeze(-1)).squeeze(-1)
        if not has_levels:
            covariance[:, -1, -1] = 0.0
        return found, covariance

    @property
    def loadings(self) -> Float[Tensor, "p k"]:
        """b of every output."""
        return self.coefficients[:, :-1]

    def own_variance(self) -> Float[Tensor, " p"]:
        """Variance of effects that is due to coefficients, for a row like any other."""
        return self.covariance_of.diagonal(dim1=-2, dim2=-1).sum(-1)

    def effects(self, row: Int[Tensor, " t"]) -> tuple[Float[Tensor, "t p"], Float[Tensor, "t p"]]:
        """a_p + b_pᵀ m_n, and b_pᵀ C_n b_p, of some rows."""
        B = self.loadings
        outer = (B.unsqueeze(-1) * B.unsqueeze(-2)).flatten(1)
        return self.mean[row] @ B.T + self.coefficients[:, -1], self.covariance[row].flatten(1) @ outer.T

    def variances(self, row: Int[Tensor, " t"]) -> Float[Tensor, "t p"]:
        """Variances of a_p + b_pᵀ r_n of some rows, all that is not known included."""
        _, moments = self._moments()
        return self.effects(row)[1] + moments.flatten(1)[row] @ self.covariance_of.flatten(1).T

    def _moments(self) -> tuple[Float[Tensor, "n k1"], Float[Tensor, "n k1 k1"]]:
        """E u and E[u uᵀ] with u = [r, 1]."""
        u = torch.cat([self.mean, torch.ones_like(self.mean[:, :1])], -1)
        moments = u.unsqueeze(-1) * u.unsqueeze(-2)
        moments[:, :-1, :-1] += self.covariance
        return u, moments
