"""What a batch of cells says about q(v): the data term of the bound and the target of a natural step.

Two leaves of one interface. With one Gaussian noise variance the batch enters through three statistics; with any other
likelihood it enters through the marginals of its cells.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.likelihoods import Likelihood
from manygp.variational.posterior import Posterior, PosteriorMoments

__all__ = ["Evidence", "GaussianEvidence", "SiteEvidence", "gram", "quadratic_form"]


class Evidence(ABC):
    """The data term of a batch, as a function of q(v). `Linv` is the inverse Cholesky factor of Kuu."""

    @abstractmethod
    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ E[log p(yᵢ | fᵢ)] over the cells of the batch."""

    @abstractmethod
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        """(θ̂, Λ̂): where a natural step of rate 1 leads when each cell counts `weight` times."""


@dataclass(frozen=True)
class GaussianEvidence(Evidence):
    """Gaussian noise σ²: AAᵀ = L⁻¹ KᵀK L⁻ᵀ, Ay = L⁻¹ Kᵀy, yᵀy and Σᵢ k(eᵢ, eᵢ) say everything."""

    AA: Float[Tensor, "m m"]
    Ay: Float[Tensor, " m"]
    yy: Float[Tensor, ""]
    diagonal_sum: Float[Tensor, ""]
    noise: Float[Tensor, ""]
    count: int

    @classmethod
    def from_batch(
        cls,
        K: Float[Tensor, "b m"],
        diagonal: Float[Tensor, " b"],
        Linv: Float[Tensor, "m m"],
        y: Float[Tensor, " b"],
        noise: Float[Tensor, ""],
    ) -> "GaussianEvidence":
        """Statistics of cells with values y; sums in the dtype of K, the rest in that of Linv."""
        Φ, ψ = gram(K, y)
        AA = Linv @ Φ.to(Linv.dtype) @ Linv.T
        Ay = Linv @ ψ.to(Linv.dtype)
        yy, diagonal_sum = y.square().sum().to(Linv.dtype), diagonal.sum().to(Linv.dtype)
        return cls(AA, Ay, yy, diagonal_sum, noise, y.shape[0])

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        # |y − Aᵀm|² = yᵀy − 2 mᵀAy + mᵀAAᵀm
        residual = self.yy - 2.0 * (q.mean @ self.Ay) + q.mean @ self.AA @ q.mean
        # Σ varᵢ = Σ kᵢᵢ − tr AAᵀ + tr S AAᵀ
        variance = self.diagonal_sum - self.AA.trace() + (q.covariance * self.AA).sum()
        return -0.5 * (self.count * torch.log(2.0 * math.pi * self.noise) + (residual + variance) / self.noise)

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        # Λ̂ = I + w AAᵀ / σ²,  θ̂ = w Ay / σ²
        w = weight / self.noise
        return w * self.Ay, (w * self.AA).diagonal_scatter(w * self.AA.diagonal() + 1.0)


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """Any likelihood, cell by cell, through the marginals N(μᵢ, vᵢ) of fᵢ."""

    K: Float[Tensor, "b m"]
    diagonal: Float[Tensor, " b"]
    Linv: Float[Tensor, "m m"]
    y: Float[Tensor, " b"]
    outputs: Int[Tensor, " b"]
    likelihood: Likelihood

    def marginals(self, q: PosteriorMoments) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """μᵢ = kᵢᵀ L⁻ᵀ m and vᵢ = kᵢᵢ − kᵢᵀ C kᵢ with C = L⁻ᵀ (I − S) L⁻¹."""
        alpha, C = projection_matrices(self.Linv, q)
        return conditional_moments(self.K, self.diagonal, alpha, C)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        mean, variance = self.marginals(q)
        return self.likelihood.expected_log_prob(mean, variance, self.y, self.outputs).sum().to(self.Linv.dtype)

    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            mean, variance = self.marginals(posterior.moments())
        with torch.enable_grad():
            mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
            total = self.likelihood.expected_log_prob(mean, variance, self.y, self.outputs).sum()
            slope, curvature = torch.autograd.grad(total, (mean, variance))
        with torch.no_grad():
            # βᵢ = −2 ∂E/∂vᵢ and γᵢ = ∂E/∂μᵢ + βᵢ μᵢ; where the likelihood is not log-concave βᵢ is held at zero
            β = (-2.0 * curvature).clamp(min=0.0)
            γ = slope + β * mean
            weighted = (self.K * β.sqrt().unsqueeze(-1)).to(self.K.dtype)
            Φ, ψ = weighted.T @ weighted, self.K.T @ γ
            # Λ̂ = I + w L⁻¹ KᵀdiagβK L⁻ᵀ,  θ̂ = w L⁻¹ Kᵀγ
            Λ = weight * (self.Linv @ Φ.to(self.Linv.dtype) @ self.Linv.T)
            θ = weight * (self.Linv @ ψ.to(self.Linv.dtype))
            return θ, Λ.diagonal_scatter(Λ.diagonal() + 1.0)


def projection_matrices(Linv: Float[Tensor, "m m"], q: PosteriorMoments) -> tuple[Tensor, Tensor]:
    """α = L⁻ᵀ m and C = L⁻ᵀ (I − S) L⁻¹, all that a marginal of f needs of q(v)."""
    eye = torch.eye(Linv.shape[-1], dtype=Linv.dtype, device=Linv.device)
    return Linv.T @ q.mean, Linv.T @ (eye - q.covariance) @ Linv


def conditional_moments(
    K: Float[Tensor, "b m"], diagonal: Float[Tensor, " b"], alpha: Float[Tensor, " m"], C: Float[Tensor, "m m"]
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
    """Mean and variance of f at cells with cross-covariances K."""
    variance = diagonal - quadratic_form(K, C.to(K.dtype))
    return K @ alpha.to(K.dtype), variance.clamp(min=1e-8)


def gram(K: Float[Tensor, "b m"], y: Float[Tensor, " b"]) -> tuple[Float[Tensor, "m m"], Float[Tensor, " m"]]:
    """KᵀK and Kᵀy, with one product over the batch backward as forward."""
    return _Gram.apply(K, y)


def quadratic_form(K: Float[Tensor, "b m"], C: Float[Tensor, "m m"]) -> Float[Tensor, " b"]:
    """kᵢᵀ C kᵢ for every row of K, C symmetric; the backward reuses K C."""
    return _QuadraticForm.apply(K, C)


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(K, y)
        return K.T @ K, K.T @ y

    @staticmethod
    def backward(ctx: Any, G: Tensor, g: Tensor) -> tuple[Tensor, Tensor | None]:
        K, y = ctx.saved_tensors
        # ∂/∂K = K (G + Gᵀ) + y gᵀ
        grad = torch.addr(K @ (G + G.T), y, g)
        return grad, K @ g if ctx.needs_input_grad[1] else None


class _QuadraticForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, C: Tensor) -> Tensor:
        T = K @ C
        ctx.save_for_backward(K, T)
        return (T * K).sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        K, T = ctx.saved_tensors
        # ∂/∂K = 2 g K C,  ∂/∂C = Kᵀ diag(g) K
        gK = g.unsqueeze(-1) * K
        return 2.0 * g.unsqueeze(-1) * T, gK.T @ K
