"""What a batch of cells says about q(v): the data term of the bound and the target of a natural step.

Two leaves of one interface. With Gaussian noise, the same for all cells or not, the batch enters through three
statistics, here; with any other likelihood it enters through the marginals of its cells, see
`manygp.variational.sites`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from manygp.kernels import cross_covariance, cross_gram, kernel_diagonal
from manygp.linalg import lower_product, projected, safe_cholesky, symmetrize, triangular_inverse, unwhitened
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments

__all__ = ["Evidence", "GaussianEvidence", "blur", "leftover", "precise_enough", "projection_matrices"]

# Smallest variance of f that rounding may leave.
MIN_VARIANCE = 1e-8
# Largest error of the precision that rounding may cause.
_MAX_ROUNDING = 1e-2


class Evidence(ABC):
    """The data term of a batch, as a function of q(v)."""

    @abstractmethod
    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ E[log p(yᵢ | fᵢ)] over the cells of the batch."""

    @abstractmethod
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        """(θ̂, Λ̂): where a natural step of rate 1 leads when each cell counts `weight` times."""

    def natural_step(
        self, posterior: NaturalPosterior, weight: float, rate: float
    ) -> tuple[Float[Tensor, ""], PosteriorMoments]:
        """Take a natural step of some rate; returns a data term, and the q(v) that it was computed with.

        That is the new q(v) here. A leaf whose work over the batch is different for every q(v) may do it once.
        """
        posterior.step(*self.natural_target(posterior, weight), rate)
        q = posterior.moments()
        return self.expected_log_lik(q), q


@dataclass(frozen=True)
class GaussianEvidence(Evidence):
    """Gaussian noise: three statistics of the batch say everything.

    With A = L⁻¹ Kᵀ and Kuu = L Lᵀ they are AAᵀ, Ay and yᵀy, and beside them Σᵢ k(eᵢ, eᵢ). Where cell i has the noise
    σ² exp(δᵢ), its row of K and its y are multiplied by wᵢ = exp(−δᵢ/2) first, and Σᵢ δᵢ is a statistic too. The
    tight bound adds a correction that q(v) does not enter, so that natural steps are the same.
    """

    AA: Float[Tensor, "m m"]
    Ay: Float[Tensor, " m"]
    yy: Float[Tensor, ""]
    diagonal_sum: Float[Tensor, ""]
    noise: Float[Tensor, ""]
    Kuu: Float[Tensor, "m m"]
    Linv: Float[Tensor, "m m"]
    count: int
    deviation_sum: Float[Tensor, ""] | float = 0.0
    correction: Float[Tensor, ""] | float = 0.0

    @classmethod
    def from_batch(
        cls,
        kernel: Kernel,
        e: Float[Tensor, "b e"],
        Z: Float[Tensor, "m e"],
        y: Float[Tensor, " b"],
        noise: Float[Tensor, ""],
        jitter: float,
        deviation: Float[Tensor, " b"] | None = None,
        tight: bool = False,
    ) -> "GaussianEvidence":
        """Statistics of cells with embeddings e, values y and log noise log σ² + δ, for the standard or tight bound.

        Covariances are in the dtype of e, the rest in that of Z.
        """
        diagonal, log_weight = kernel_diagonal(kernel, e), None
        own = diagonal.to(Z.dtype)
        if deviation is not None:
            log_weight = -0.5 * deviation
            weight = log_weight.exp().to(e.dtype)
            y, diagonal = y * weight, diagonal * weight.square()
        Kuu, diagonal_sum = cross_covariance(kernel, Z, Z), diagonal.sum().to(Z.dtype)
        with torch.no_grad():
            Linv = triangular_inverse(safe_cholesky(Kuu, jitter))
            error = blur(Kuu, Linv, diagonal_sum / noise)
        is_stiff, e = torch.finfo(Z.dtype).eps * error > _MAX_ROUNDING, precise_enough(e, Z.dtype, error)
        log_weight = None if log_weight is None else log_weight.to(e.dtype)
        AA, Ay = cross_gram(kernel, e, Z.to(e.dtype), y.to(e.dtype), Linv, is_stiff, log_weight)
        yy, deviation_sum = y.to(Z.dtype).square().sum(), 0.0 if deviation is None else deviation.sum()
        correction: Tensor | float = 0.0
        if tight:
            d = leftover(cross_covariance(kernel, e, Z.to(e.dtype)).to(Z.dtype), own, Kuu, Linv)
            # Δ = ½ Σᵢ dᵢ/σᵢ² − log(1 + dᵢ/σᵢ²)
            ratio = d / (noise if deviation is None else noise * deviation.exp())
            correction = 0.5 * (ratio - ratio.log1p()).sum()
        return cls(AA, Ay, yy, diagonal_sum, noise, Kuu, Linv, y.shape[0], deviation_sum, correction)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        misfit = _Misfit.apply(self.AA, self.Ay, self.Kuu, q.mean, q.covariance, self.Linv)
        misfit = misfit + self.yy + self.diagonal_sum
        log_noise = self.count * torch.log(2.0 * math.pi * self.noise) + self.deviation_sum
        return self.correction - 0.5 * (log_noise + misfit / self.noise)

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        # Λ̂ = I + w AAᵀ / σ²,  θ̂ = w Ay / σ²
        w = weight / self.noise
        precision = w * self.AA
        precision.diagonal().add_(1.0)
        return w * self.Ay, precision


def blur(Kuu: Float[Tensor, "m m"], Linv: Float[Tensor, "m m"], information: Float[Tensor, ""]) -> float:
    """What relative errors of one in KᵀK come to in the precision of q(v), where Σᵢ βᵢ kᵢᵢ is the information of cells.

    An error of Σᵢ βᵢ kᵢᵢ kₘₘ in Kᵀ diag(β) K is multiplied by |L⁻¹|².
    """
    return float(information * Kuu.diagonal().max() * Linv.square().sum())


def precise_enough(e: Float[Tensor, "b e"], dtype: torch.dtype, error: float) -> Float[Tensor, "b e"]:
    """Embeddings as they are, or in a wider dtype where rounding errors of covariances would pass for information.

    Errors of ε in K are multiplied by |L⁻¹| in A, and weigh as much as the root of what those in KᵀK do.
    """
    return e if torch.finfo(e.dtype).eps * error**0.5 <= _MAX_ROUNDING else e.to(dtype)


def projection_matrices(
    Linv: Float[Tensor, "m m"], q: PosteriorMoments, shrinkage: Float[Tensor, ""] | float = 1.0
) -> tuple[Tensor, Tensor]:
    """α = L⁻ᵀ m and C = L⁻ᵀ (ω I − S) L⁻¹, ω = 1 but for the tight bound: all that a marginal of f needs of q(v)."""
    eye = torch.eye(Linv.shape[-1], dtype=Linv.dtype, device=Linv.device)
    return Linv.T @ q.mean, unwhitened(Linv, shrinkage * eye - q.covariance)


def leftover(
    K: Float[Tensor, "b m"], diagonal: Float[Tensor, " b"], Kuu: Float[Tensor, "m m"], Linv: Float[Tensor, "m m"]
) -> Float[Tensor, " b"]:
    """dᵢ = kᵢᵢ − kᵢᵀ Kuu⁻¹ kᵢ: the variance of fᵢ that u leaves open; L⁻¹ is that of Kuu and counts as a constant."""
    return (diagonal - _Explained.apply(K, Kuu, Linv)).clamp(min=0.0)


class _Explained(torch.autograd.Function):
    """kᵢᵀ Kuu⁻¹ kᵢ for every row of K, as sums of squares of K L⁻ᵀ."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, Kuu: Tensor, Linv: Tensor) -> Tensor:
        A = projected(K, Linv)
        ctx.save_for_backward(A, Linv)
        return A.square().sum(-1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        A, Linv = ctx.saved_tensors
        # ∂/∂K = 2 g K Kuu⁻¹,  ∂/∂Kuu = −Kuu⁻¹ Kᵀ diag(g) K Kuu⁻¹
        gA = g.unsqueeze(-1) * A
        return 2.0 * gA @ Linv, -unwhitened(Linv, symmetrize(gA.T @ A)), None


class _Misfit(torch.autograd.Function):
    """Σᵢ (yᵢ − μᵢ)² + vᵢ less yᵀy and Σ kᵢᵢ: tr(R AAᵀ) − 2 mᵀAy with R = mmᵀ + S − I.

    A depends on Kuu through L, which the statistics count as a constant: that part of the gradient is added here, in
    closed form, since differentiating through the Cholesky factor step by step costs several times as much.
    """

    @staticmethod
    def forward(ctx: Any, AA: Tensor, Ay: Tensor, Kuu: Tensor, m: Tensor, S: Tensor, Linv: Tensor) -> Tensor:
        R = torch.addr(S, m, m)
        R.diagonal().sub_(1.0)
        ctx.save_for_backward(R, m, Linv, AA, Ay)
        return (R * AA).sum() - 2.0 * (m @ Ay)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        R, m, Linv, AA, Ay = ctx.saved_tensors
        # ∂/∂L = 2 L⁻ᵀ (m Ayᵀ − R AAᵀ), and L⁻ᵀ sym(tril(Lᵀ ∂/∂L)) L⁻¹ takes it from L to Kuu
        lower = lower_product(R, AA).addr_(m, Ay, beta=-1.0).tril_()
        lower.diagonal().mul_(0.5)
        grad_Kuu = unwhitened(Linv, lower + lower.T)
        grad_m = grad_S = None
        if ctx.needs_input_grad[3]:
            grad_m, grad_S = 2.0 * g * (AA @ m - Ay), g * AA
        return g * R, -2.0 * g * m, g * grad_Kuu, grad_m, grad_S, None
