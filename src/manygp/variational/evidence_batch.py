"""What noisy observations of a batch of processes say about their q(v), by statistics of the size of q(v)."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.linalg import safe_cholesky, symmetrize, triangular_inverse
from manygp.variational.kernel_batch import KernelBatch
from manygp.variational.posterior import NaturalPosterior, PosteriorMoments

__all__ = ["GaussianEvidenceBatch"]

# Largest rounding error of the precision that is left as it is.
_MAX_ROUNDING = 1e-2


@dataclass(frozen=True)
class GaussianEvidenceBatch:
    """Observations y_ln ~ N(f_l(x_n), r_ln) of every process l, each with a noise variance of its own.

    With K = k_l(x, Z_l), w = 1/r and A = K L⁻ᵀ they enter the bound through Φ = Kᵀ diag(w) K and ψ = Kᵀ (w y) alone, or
    what is the same through AA = Aᵀ diag(w) A and Ay = Aᵀ (w y): one n x m x m product of each process forward and one
    backward, where marginals of every observation take several.
    """

    gram: Float[Tensor, "q m m"]
    pull: Float[Tensor, "q m"]
    Kuu: Float[Tensor, "q m m"]
    Linv: Float[Tensor, "q m m"]
    AA: Float[Tensor, "q m m"]
    Ay: Float[Tensor, "q m"]
    constant: Float[Tensor, ""]

    @classmethod
    def from_observations(
        cls,
        kernels: KernelBatch,
        x: Float[Tensor, "n d"],
        Z: Float[Tensor, "q m d"],
        y: Float[Tensor, "q n"],
        noise: Float[Tensor, "q n"],
        jitter: float,
    ) -> "GaussianEvidenceBatch":
        """Statistics of values y with noise variances at inputs x; covariances with inputs are in the dtype of x."""
        rows, w = kernels.rows(), 1.0 / noise
        Kuu, diagonal = kernels.covariance(rows, Z, Z), kernels.diagonal(rows, x).to(Z.dtype).expand(y.shape)
        K = kernels.covariance(rows, x, Z.to(x.dtype)).to(Z.dtype)
        gram, pull = _WeightedGram.apply(K, w), (K.mT @ (w * y).unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            Linv = triangular_inverse(safe_cholesky(Kuu, jitter))
            # An error of ε Σ w kᵢᵢ kₘₘ in Kᵀ diag(w) K is multiplied by |L⁻¹|² in AA.
            prior = Kuu.diagonal(dim1=-2, dim2=-1).amax(-1)
            error = torch.finfo(Z.dtype).eps * (w * diagonal).sum(-1) * prior * Linv.square().sum((-2, -1))
            if bool(error.max() > _MAX_ROUNDING):
                A = K @ Linv.mT
                AA = (A * w.unsqueeze(-1)).mT @ A
            else:
                AA = Linv @ gram @ Linv.mT
            Ay = (Linv @ pull.unsqueeze(-1)).squeeze(-1)
        constant = -0.5 * (w * (y.square() + diagonal) + (2.0 * math.pi * noise).log()).sum()
        return cls(gram, pull, Kuu, Linv, symmetrize(AA), Ay, constant)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σ_ln E_q[log N(y_ln | f_l(x_n), r_ln)]."""
        constants = self.Linv, self.AA, self.Ay
        return self.constant - 0.5 * _MisfitBatch.apply(
            self.gram, self.pull, self.Kuu, q.mean, q.covariance, *constants
        )

    @torch.no_grad()
    def natural_step(self, posterior: NaturalPosterior, weight: float, rate: float) -> None:
        """Move every q(v_l) towards its optimum when each observation counts `weight` times."""
        # Λ̂_l = I + w AA,  θ̂_l = w Ay
        target = weight * self.AA
        target.diagonal(dim1=-2, dim2=-1).add_(1.0)
        posterior.step(weight * self.Ay, target, rate)


class _WeightedGram(torch.autograd.Function):
    """Kᵀ diag(w) K."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(K, w)
        return (K * w.unsqueeze(-1)).mT @ K

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor]:
        K, w = ctx.saved_tensors
        # ∂/∂K = diag(w) K (G + Gᵀ),  ∂/∂wᵢ = kᵢᵀ G kᵢ
        T = K @ (G + G.mT)
        by_weight = 0.5 * torch.linalg.vecdot(T, K)
        return T.mul_(w.unsqueeze(-1)), by_weight


class _MisfitBatch(torch.autograd.Function):
    """Σ w ((y − μ)² + v) less Σ w (y² + kᵢᵢ): Σ_l tr(R AA) − 2 mᵀAy with R = mmᵀ + S − I.

    AA and Ay are those that belong to Φ, ψ and Kuu, whose gradients are closed forms: differentiating through the
    Cholesky factor step by step costs several times as much.
    """

    @staticmethod
    def forward(
        ctx: Any, gram: Tensor, pull: Tensor, Kuu: Tensor, m: Tensor, S: Tensor, Linv: Tensor, AA: Tensor, Ay: Tensor
    ) -> Tensor:
        R = S + m.unsqueeze(-1) * m.unsqueeze(-2)
        R.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        ctx.save_for_backward(R, m, Linv, AA, Ay)
        return (R * AA).sum() - 2.0 * (m * Ay).sum()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        R, m, Linv, AA, Ay = ctx.saved_tensors
        grad_gram = g * (Linv.mT @ R @ Linv)
        grad_pull = -2.0 * g * (Linv.mT @ m.unsqueeze(-1)).squeeze(-1)
        # ∂/∂L = 2 L⁻ᵀ (m Ayᵀ − R AA), and L⁻ᵀ sym(tril(Lᵀ ∂/∂L)) L⁻¹ takes it from L to Kuu
        lower = (m.unsqueeze(-1) * Ay.unsqueeze(-2) - R @ AA).tril_()
        lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        grad_Kuu = g * (Linv.mT @ (lower + lower.mT) @ Linv)
        grad_m = grad_S = None
        if ctx.needs_input_grad[3]:
            grad_m, grad_S = 2.0 * g * ((AA @ m.unsqueeze(-1)).squeeze(-1) - Ay), g * AA
        return grad_gram, grad_pull, grad_Kuu, grad_m, grad_S, None, None, None
