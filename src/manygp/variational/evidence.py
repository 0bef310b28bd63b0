"""What a batch of cells says about q(v): the data term of the bound and the target of a natural step.

Two leaves of one interface. With Gaussian noise, the same for all cells or not, the batch enters through three
statistics, here; with any other likelihood it enters through the marginals of its cells, see
`manygp.variational.sites`. Axes *q count processes, each with cells and q(v) of its own.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float
from torch import Tensor

from manygp.exchange import ALONE, Exchange
from manygp.kernels import CovarianceRows, cross_covariance, kernel_diagonal
from manygp.linalg import (
    add_gram,
    from_lower,
    lower_product,
    matvec,
    outer,
    projected,
    sure_cholesky,
    symmetrize,
    triangular_inverse,
    unwhitened,
    whitened,
    with_gradients,
)
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments

# Smallest variance of f that rounding may leave.
MIN_VARIANCE = 1e-8
# Largest error of the precision that rounding may cause.
_MAX_ROUNDING = 1e-2


#: Natural parameters θ = S⁻¹ m and Λ = S⁻¹ of a Gaussian.
Natural = tuple[Float[Tensor, "*q m"], Float[Tensor, "*q m m"]]


def under_prior(target: Natural, prior: Natural | None) -> Natural:
    """What becomes of (θ̂, Λ̂), which is under N(0, I), under another prior (θ₀, Λ₀): (θ̂ + θ₀, Λ̂ + Λ₀ − I)."""
    if prior is None:
        return target
    precision = target[1] + prior[1]
    precision.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return target[0] + prior[0], precision


class Evidence(ABC):
    """The data term of a batch, as a function of q(v)."""

    @abstractmethod
    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ E[log p(yᵢ | fᵢ)] over the cells of the batch."""

    @abstractmethod
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        """(θ̂, Λ̂): where a natural step of rate 1 leads when each cell counts `weight` times."""

    def natural_step(
        self,
        posterior: NaturalPosterior,
        weight: float,
        rate: float,
        prior: Natural | None = None,
        exchange: Exchange = ALONE,
    ) -> tuple[Float[Tensor, ""], PosteriorMoments]:
        """Take a natural step of some rate; returns a data term, and the q(v) that it was computed with.

        That is the new q(v) here. A leaf whose work over the batch is different for every q(v) may do it once. `prior`
        are θ and Λ of a prior of v other than N(0, I); where processes have a part of the batch each, the step leads to
        the mean of their targets.
        """
        θ, Λ = exchange.mean(*under_prior(self.natural_target(posterior, weight), prior))
        posterior.step(θ, Λ, rate)
        q = posterior.moments()
        return self.expected_log_lik(q), q


@dataclass(frozen=True)
class GaussianEvidence(Evidence):
    """Gaussian noise: three statistics of the batch say everything.

    With A = L⁻¹ Kᵀ and Kuu = L Lᵀ they are AAᵀ, Ay and yᵀy, and beside them Σᵢ k(eᵢ, eᵢ). Where cell i has the noise
    σ² exp(δᵢ), its row of K and its y are multiplied by wᵢ = exp(−δᵢ/2) first, and Σᵢ δᵢ is a statistic too. The
    tight bound adds a correction that q(v) does not enter, so that natural steps are the same.
    """

    K: CovarianceRows
    y: Float[Tensor, "*q b"]
    AA: Float[Tensor, "*q m m"]
    Ay: Float[Tensor, "*q m"]
    diagonal_sum: Float[Tensor, ""]
    noise: Float[Tensor, ""]
    Linv: Float[Tensor, "*q m m"]
    deviation_sum: Float[Tensor, ""] | float = 0.0
    correction: Float[Tensor, ""] | float = 0.0

    @classmethod
    def from_batch(
        cls,
        kernel: Kernel,
        e: Float[Tensor, "*#q b e"],
        Z: Float[Tensor, "*q m e"],
        y: Float[Tensor, "*q b"],
        noise: Float[Tensor, ""],
        jitter: float,
        deviation: Float[Tensor, "*q b"] | None = None,
        tight: bool = False,
    ) -> "GaussianEvidence":
        """Statistics of cells with embeddings e, values y and log noise log σ² + δ, for the standard or tight bound.

        Covariances are in the dtype of e, the rest in that of Z. A kernel with a batch shape makes a batch of it.
        """
        diagonal, log_weight, y = kernel_diagonal(kernel, e).to(Z.dtype), None, y.to(Z.dtype)
        own = diagonal
        if deviation is not None:
            log_weight = -0.5 * deviation
            weight = log_weight.exp()
            y, diagonal = y * weight, diagonal * weight.square()
        diagonal_sum, K = diagonal.sum(), CovarianceRows(kernel, e, Z, log_weight, keep=True)
        with torch.no_grad():
            Linv = triangular_inverse(sure_cholesky(K.Kuu, jitter))
            # The one look at what the device has found.
            error = blur(K.Kuu, Linv, diagonal.sum(-1) / noise)
        if not is_precise_enough(e.dtype, error):
            e = e.to(Z.dtype)
            K = CovarianceRows(kernel, e, Z, log_weight, keep=True)
        AA, Ay = statistics(K, y.detach(), Linv, torch.finfo(Z.dtype).eps * error > _MAX_ROUNDING)
        deviation_sum = 0.0 if deviation is None else deviation.sum()
        correction: Tensor | float = 0.0
        if tight:
            K_graph = cross_covariance(kernel, e, Z.to(e.dtype)).to(Z.dtype)
            d = leftover(K_graph, own, cross_covariance(kernel, Z, Z), Linv)
            # Δ = ½ Σᵢ dᵢ/σᵢ² − log(1 + dᵢ/σᵢ²)
            ratio = d / (noise if deviation is None else noise * deviation.exp())
            correction = 0.5 * (ratio - ratio.log1p()).sum()
        return cls(K, y, AA, Ay, diagonal_sum, noise, Linv, deviation_sum, correction)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        misfit = self._misfit(q) + self.y.square().sum() + self.diagonal_sum
        log_noise = self.y.numel() * torch.log(2.0 * math.pi * self.noise) + self.deviation_sum
        return self.correction - 0.5 * (log_noise + misfit / self.noise)

    def _misfit(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ (yᵢ − μᵢ)² + vᵢ less yᵀy and Σ kᵢᵢ: tr(R AAᵀ) − 2 mᵀAy with R = mmᵀ + S − I.

        Its gradients are closed forms of what is at hand: differentiating through the Cholesky factor step by step
        costs several times as much.
        """
        with torch.no_grad():
            m, R = q.mean, q.covariance + outer(q.mean, q.mean)
            R.diagonal(dim1=-2, dim2=-1).sub_(1.0)
            misfit = (R * self.AA).sum() - 2.0 * (m * self.Ay).sum()
        if not torch.is_grad_enabled():
            return misfit
        with torch.no_grad():
            # ∂/∂L = 2 L⁻ᵀ (m Ayᵀ − R AAᵀ), and L⁻ᵀ sym(tril(Lᵀ ∂/∂L)) L⁻¹ takes it from L to Kuu
            lower = (outer(m, self.Ay) - lower_product(R, self.AA)).tril_()
            lower.diagonal(dim1=-2, dim2=-1).mul_(0.5)
            by_Kuu = unwhitened(self.Linv, lower + lower.mT)
            by_K, by_y = self._misfit_of_cells(unwhitened(self.Linv, R), matvec(self.Linv.mT, m))
            by_m, by_S = 2.0 * (matvec(self.AA, m) - self.Ay), self.AA
        inputs = [*self.K.inputs, self.y, q.mean, q.covariance]
        return with_gradients(misfit, inputs, [*self.K.gradients(by_K, by_Kuu), by_y, by_m, by_S])

    def _misfit_of_cells(
        self, W: Float[Tensor, "*q m m"], α: Float[Tensor, "*q m"]
    ) -> tuple[tuple[Tensor, ...], Float[Tensor, "*q b"]]:
        """Gradients of the misfit through K, and for y."""
        dtype, room = self.K.dtype, self.K.room(self.K.dtype)
        W, α, y = 2.0 * W.to(dtype), -2.0 * α.to(dtype), self.y.detach().to(dtype)
        by_y = torch.zeros_like(y)

        def visit(chunk: slice, K: Tensor) -> Tensor:
            # ∂/∂K = 2 K L⁻ᵀ R L⁻¹ − 2 y mᵀ L⁻¹,  ∂/∂y = −2 K L⁻ᵀ m
            if self.y.requires_grad:
                by_y[..., chunk] = matvec(K, α)
            product = torch.matmul(K, W, out=room[..., : K.shape[-2], :])
            return product.addcmul_(y[..., chunk, None], α.unsqueeze(-2))

        return self.K.visit(visit), by_y

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        # Λ̂ = I + w AAᵀ / σ²,  θ̂ = w Ay / σ²
        w = weight / self.noise
        precision = w * self.AA
        precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return w * self.Ay, precision


def statistics(
    K: CovarianceRows, y: Float[Tensor, "*q b"], Linv: Float[Tensor, "*q m m"], is_stiff: bool
) -> tuple[Float[Tensor, "*q m m"], Float[Tensor, "*q m"]]:
    """AAᵀ = L⁻¹ KᵀK L⁻ᵀ and Ay = L⁻¹ Kᵀy, by half of a B x M x M product.

    It takes another half where the problem `is_stiff`: KᵀK squares the condition number, so that small eigenvalues of
    Kuu turn its rounding errors into errors of the precision. There K is projected by L⁻ᵀ first. Sums over cells have
    the dtype of L⁻¹ in any case, so that AAᵀ is a Gram matrix to the last digit.
    """
    KK, Ky = torch.zeros_like(Linv), Linv.new_zeros(Linv.shape[:-1])
    for chunk, rows in K:
        rows = projected(rows.to(Linv.dtype), Linv) if is_stiff else rows.to(Linv.dtype)
        add_gram(KK, rows)
        Ky.add_(matvec(rows.mT, y[..., chunk]))
    KK = from_lower(KK)
    return (KK, Ky) if is_stiff else (whitened(Linv, KK), matvec(Linv, Ky))


def blur(Kuu: Float[Tensor, "*q m m"], Linv: Float[Tensor, "*q m m"], information: Float[Tensor, "*q"]) -> float:
    """What relative errors of one in KᵀK come to in the precision of q(v), where Σᵢ βᵢ kᵢᵢ is the information of cells.

    An error of Σᵢ βᵢ kᵢᵢ kₘₘ in Kᵀ diag(β) K is multiplied by |L⁻¹|². Of a batch, the largest.
    """
    prior = Kuu.diagonal(dim1=-2, dim2=-1).amax(-1)
    return float((information * prior * Linv.square().sum((-2, -1))).max())


def is_precise_enough(dtype: torch.dtype, error: float) -> bool:
    """Whether rounding errors of covariances in some dtype do not pass for information, where `error` is their `blur`.

    Errors of ε in K are multiplied by |L⁻¹| in A, and weigh as much as the root of what those in KᵀK do.
    """
    return torch.finfo(dtype).eps * error**0.5 <= _MAX_ROUNDING


def projection_matrices(
    Linv: Float[Tensor, "m m"], q: PosteriorMoments, shrinkage: Float[Tensor, ""] | float = 1.0
) -> tuple[Tensor, Tensor]:
    """α = L⁻ᵀ m and C = L⁻ᵀ (ω I − S) L⁻¹, ω = 1 but for the tight bound: all that a marginal of f needs of q(v)."""
    eye = torch.eye(Linv.shape[-1], dtype=Linv.dtype, device=Linv.device)
    return Linv.T @ q.mean, unwhitened(Linv, shrinkage * eye - q.covariance)


def leftover(
    K: Float[Tensor, "*q b m"],
    diagonal: Float[Tensor, "*q b"],
    Kuu: Float[Tensor, "*q m m"],
    Linv: Float[Tensor, "*q m m"],
) -> Float[Tensor, "*q b"]:
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
        return 2.0 * gA @ Linv, -unwhitened(Linv, symmetrize(gA.mT @ A)), None
