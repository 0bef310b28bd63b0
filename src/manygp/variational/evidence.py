"""What a batch of cells says about q(v): the data term of the bound and the target of a natural step.

Two leaves of one interface. With one Gaussian noise variance the batch enters through three statistics; with any other
likelihood it enters through the marginals of its cells.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.kernels import cross_covariance, cross_gram, kernel_diagonal
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import gram, lower_product, safe_cholesky, triangular_inverse, unwhitened, whitened
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments

__all__ = ["Evidence", "GaussianEvidence", "SiteEvidence", "quadratic_form"]

# Smallest variance of f that rounding may leave.
MIN_VARIANCE = 1e-8
# Largest rounding error of the precision that is left as it is.
_MAX_ROUNDING = 1e-2
# A natural step sees no more of a marginal's variance than this: exp(f) of an f that is not yet known would dwarf all
# that is. And it moves no mean of f farther than this: beyond, the tangent at which it aims says nothing.
_MAX_VARIANCE, _MAX_MOVE = 9.0, 3.0
_MAX_HALVINGS = 20
# A count of y tells f to about 1/√y. A mean of exp(f) far above all counts would seem to tell more, and be hard to
# forget.
_MAX_INFORMATION = 30.0


class Evidence(ABC):
    """The data term of a batch, as a function of q(v)."""

    @abstractmethod
    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        """Σᵢ E[log p(yᵢ | fᵢ)] over the cells of the batch."""

    @abstractmethod
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        """(θ̂, Λ̂): where a natural step of rate 1 leads when each cell counts `weight` times."""

    def safe_rate(self, posterior: Posterior, target: tuple[Tensor, Tensor], rate: float) -> float:
        """The rate, or as much of it as the distance to the target can be trusted."""
        return rate


@dataclass(frozen=True)
class GaussianEvidence(Evidence):
    """Gaussian noise: three statistics of the batch say everything.

    With A = L⁻¹ Kᵀ and Kuu = L Lᵀ they are AAᵀ, Ay and yᵀy, and beside them Σᵢ k(eᵢ, eᵢ). Where cell i has the noise
    σ² exp(δᵢ), its row of K and its y are multiplied by wᵢ = exp(−δᵢ/2) first, and Σᵢ δᵢ is a statistic too.
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
    ) -> "GaussianEvidence":
        """Statistics of cells with embeddings e, values y and log noise log σ² + δ.

        Covariances are in the dtype of e, the rest in that of Z.
        """
        diagonal, log_weight = kernel_diagonal(kernel, e), None
        if deviation is not None:
            log_weight = -0.5 * deviation.to(e.dtype)
            weight = log_weight.exp()
            y, diagonal = y * weight, diagonal * weight.square()
        Kuu, diagonal_sum = cross_covariance(kernel, Z, Z), diagonal.sum().to(Z.dtype)
        with torch.no_grad():
            Linv = triangular_inverse(safe_cholesky(Kuu, jitter))
            # An error of ε Σ kᵢᵢ in KᵀK is divided by the jitter, and weighs 1/σ² in the precision.
            error = torch.finfo(Z.dtype).eps * diagonal_sum / (max(jitter, 1e-12) * noise)
        AA, Ay = cross_gram(kernel, e, Z.to(e.dtype), y, Linv, bool(error > _MAX_ROUNDING), log_weight)
        yy, deviation_sum = y.to(Z.dtype).square().sum(), 0.0 if deviation is None else deviation.sum()
        return cls(AA, Ay, yy, diagonal_sum, noise, Kuu, Linv, y.shape[0], deviation_sum)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        misfit = _Misfit.apply(self.AA, self.Ay, self.Kuu, q.mean, q.covariance, self.Linv)
        misfit = misfit + self.yy + self.diagonal_sum
        log_noise = self.count * torch.log(2.0 * math.pi * self.noise) + self.deviation_sum
        return -0.5 * (log_noise + misfit / self.noise)

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        # Λ̂ = I + w AAᵀ / σ²,  θ̂ = w Ay / σ²
        w = weight / self.noise
        return w * self.Ay, (w * self.AA).diagonal_scatter(w * self.AA.diagonal() + 1.0)


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """Any likelihood, cell by cell, through the marginals N(μᵢ, vᵢ) of fᵢ.

    The likelihood sees level + f where there are levels.
    """

    K: Float[Tensor, "b m"]
    diagonal: Float[Tensor, " b"]
    Linv: Float[Tensor, "m m"]
    y: Float[Tensor, " b"]
    outputs: Int[Tensor, " b"]
    likelihood: Likelihood
    exposure: Float[Tensor, " b"] | None = None
    level: Float[Tensor, " b"] | None = None

    def marginals(self, q: PosteriorMoments) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """μᵢ = kᵢᵀ L⁻ᵀ m and vᵢ = kᵢᵢ − kᵢᵀ C kᵢ with C = L⁻ᵀ (I − S) L⁻¹."""
        alpha, C = projection_matrices(self.Linv, q)
        # In the dtype of C, which may be ill-conditioned.
        K = self.K.to(C.dtype)
        return K @ alpha, (self.diagonal.to(C.dtype) - quadratic_form(K, C)).clamp(min=MIN_VARIANCE)

    def expected_log_lik(self, q: PosteriorMoments) -> Float[Tensor, ""]:
        mean, variance = self.marginals(q)
        y = self.y.to(mean.dtype)
        return self.likelihood.expected_log_prob(self._raised(mean), variance, y, self.outputs, self.exposure).sum()

    def _raised(self, mean: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        return mean if self.level is None else mean + self.level

    @torch.no_grad()
    def natural_target(self, posterior: Posterior, weight: float) -> tuple[Tensor, Tensor]:
        mean, variance = self.marginals(posterior.moments())
        slope, curvature = self.likelihood.site_derivatives(
            self._raised(mean),
            variance.clamp(max=_MAX_VARIANCE),
            self.y.to(mean.dtype),
            self.outputs,
            self.exposure,
        )
        # βᵢ = −2 ∂E/∂vᵢ and γᵢ = ∂E/∂μᵢ + βᵢ μᵢ; where the likelihood is not log-concave βᵢ is held at zero
        β = (-2.0 * curvature).clamp(min=0.0)
        if self.likelihood.is_discrete and len(self.y):
            # The same aim of the cell, μᵢ + slope / βᵢ, held with less certainty.
            most = _MAX_INFORMATION * (1.0 + self.y.max().to(mean.dtype))
            share = (most / β.clamp(min=MIN_VARIANCE)).clamp(max=1.0)
            β, slope = β * share, slope * share
        γ = slope + β * mean
        K = self.K.to(self.Linv.dtype)
        # Λ̂ = I + w L⁻¹ KᵀdiagβK L⁻ᵀ,  θ̂ = w L⁻¹ Kᵀγ
        Λ = weight * whitened(self.Linv, gram(K * β.sqrt().unsqueeze(-1)))
        θ = weight * (self.Linv @ (K.T @ γ))
        return θ, Λ.diagonal_scatter(Λ.diagonal() + 1.0)

    @torch.no_grad()
    def safe_rate(self, posterior: Posterior, target: tuple[Tensor, Tensor], rate: float) -> float:
        if isinstance(self.likelihood, Gaussian) or not len(self.y):
            # The target is the optimum itself.
            return rate
        assert isinstance(posterior, NaturalPosterior)
        A = self.K.to(self.Linv.dtype) @ self.Linv.T
        before = A @ posterior.moments().mean
        for _ in range(_MAX_HALVINGS):
            ahead = NaturalPosterior(len(target[0])).to(target[0].device)
            ahead.step(posterior.theta, posterior.precision, 1.0)
            ahead.step(*target, rate)
            if (A @ ahead.moments().mean - before).abs().max() <= _MAX_MOVE:
                break
            rate *= 0.5
        return rate


def projection_matrices(Linv: Float[Tensor, "m m"], q: PosteriorMoments) -> tuple[Tensor, Tensor]:
    """α = L⁻ᵀ m and C = L⁻ᵀ (I − S) L⁻¹, all that a marginal of f needs of q(v)."""
    eye = torch.eye(Linv.shape[-1], dtype=Linv.dtype, device=Linv.device)
    return Linv.T @ q.mean, Linv.T @ (eye - q.covariance) @ Linv


def quadratic_form(K: Float[Tensor, "b m"], C: Float[Tensor, "m m"]) -> Float[Tensor, " b"]:
    """kᵢᵀ C kᵢ for every row of K, C symmetric; the backward reuses K C."""
    return _QuadraticForm.apply(K, C)


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
        lower = torch.addr(lower_product(R, AA), m, Ay, beta=-1.0).tril_()
        lower.diagonal().mul_(0.5)
        grad_Kuu = unwhitened(Linv, lower + lower.T)
        grad_m = grad_S = None
        if ctx.needs_input_grad[3]:
            grad_m, grad_S = 2.0 * g * (AA @ m - Ay), g * AA
        return g * R, -2.0 * g * m, g * grad_Kuu, grad_m, grad_S, None


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
