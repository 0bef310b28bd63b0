"""How q(v) = N(m, S) of the whitened inducing variables is stored: for gradients, or for natural steps."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.linalg import gaussian_kl, safe_cholesky, symmetrize, triangular_gram, triangular_inverse

__all__ = ["CholeskyPosterior", "NaturalPosterior", "Posterior", "PosteriorMoments"]


@dataclass(frozen=True)
class PosteriorMoments:
    """Mean m, covariance S and log|S| of q(v)."""

    mean: Float[Tensor, " m"]
    covariance: Float[Tensor, "m m"]
    logdet: Float[Tensor, ""]

    def kl(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)], which is KL[q(u) ‖ p(u)]."""
        return gaussian_kl(self.mean, self.covariance.trace(), self.logdet)


class Posterior(nn.Module):
    """Interface: a Gaussian q(v) of m variables."""

    def moments(self) -> PosteriorMoments:
        """Mean, covariance and its log determinant, differentiable where they are parameters."""
        raise NotImplementedError


class CholeskyPosterior(Posterior):
    """m and the Cholesky factor of S as ordinary parameters, for plain gradient steps; starts at N(0, I)."""

    def __init__(self, num_inducing: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(num_inducing, dtype=torch.float64))
        self.factor = nn.Parameter(torch.eye(num_inducing, dtype=torch.float64))

    def moments(self) -> PosteriorMoments:
        L = self.factor.tril()
        return PosteriorMoments(self.mean, L @ L.T, L.diagonal().square().log().sum())

    @torch.no_grad()
    def set_moments(self, mean: Float[Tensor, " m"], covariance: Float[Tensor, "m m"]) -> None:
        """Put q(v) where it is told to be."""
        self.mean.copy_(mean)
        self.factor.copy_(safe_cholesky(covariance))


class NaturalPosterior(Posterior):
    """Natural parameters θ = S⁻¹ m and Λ = S⁻¹, moved by natural steps alone; starts at N(0, I).

    A step of rate g ∈ [0, 1] is a convex combination of positive definite precisions, so Λ stays positive definite.
    """

    theta: Tensor
    precision: Tensor

    def __init__(self, num_inducing: int):
        super().__init__()
        self.register_buffer("theta", torch.zeros(num_inducing, dtype=torch.float64))
        self.register_buffer("precision", torch.eye(num_inducing, dtype=torch.float64))

    def moments(self) -> PosteriorMoments:
        # By a triangular inverse and a product, several times faster than torch.cholesky_inverse.
        Rinv = triangular_inverse(safe_cholesky(self.precision))
        S = triangular_gram(Rinv)
        return PosteriorMoments(S @ self.theta, S, 2.0 * Rinv.diagonal().log().sum())

    @torch.no_grad()
    def step(self, theta: Float[Tensor, " m"], precision: Float[Tensor, "m m"], rate: float) -> None:
        """(θ, Λ) ← (1 − g)(θ, Λ) + g (θ̂, Λ̂)."""
        self.theta.lerp_(theta, rate)
        self.precision.lerp_(symmetrize(precision), rate)
