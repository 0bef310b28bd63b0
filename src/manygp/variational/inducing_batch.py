"""A batch of sparse GPs as one object: kernels, inducing points and q(v) with a first axis for the processes."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.linalg import conjugate_gradients, matvec, safe_cholesky, triangular_inverse
from manygp.variational.evidence_batch import GaussianEvidenceBatch
from manygp.variational.kernel_batch import KernelBatch, pick
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments
from manygp.variational.trust import natural_step

__all__ = ["ConditionalBatch", "InducingBatch", "Projection"]

_MIN_VARIANCE = 1e-8
# Conjugate gradient iterations of a joint natural step of rate 1.
_MAX_ITERATIONS = 20


@dataclass(frozen=True)
class Projection:
    """Inputs seen through the inducing variables: rows aᵢ = L⁻¹ kᵢ of every process, and k(xᵢ, xᵢ)."""

    A: Float[Tensor, "q n m"]
    diagonal: Float[Tensor, "q n"]

    def marginals(self, q: PosteriorMoments) -> tuple[Float[Tensor, "q n"], Float[Tensor, "q n"]]:
        """μᵢ = aᵢᵀ m and vᵢ = kᵢᵢ − aᵢᵀ (I − S) aᵢ."""
        eye = torch.eye(self.A.shape[-1], dtype=self.A.dtype, device=self.A.device)
        lost = ((self.A @ (eye - q.covariance)) * self.A).sum(-1)
        return matvec(self.A, q.mean), (self.diagonal - lost).clamp(min=_MIN_VARIANCE)

    @torch.no_grad()
    def precision(self, β: Float[Tensor, "q n"]) -> Float[Tensor, "q m m"]:
        """I + Aᵀ diag(β) A: precisions of q(v) that observations of precision β ask for."""
        Λ = (self.A * β.unsqueeze(-1)).mT @ self.A
        Λ.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return Λ

    @torch.no_grad()
    def pull(self, γ: Float[Tensor, "q n"]) -> Float[Tensor, "q m"]:
        """Aᵀ γ."""
        return matvec(self.A.mT, γ)

    @torch.no_grad()
    def joint_step(
        self,
        posterior: NaturalPosterior,
        q: PosteriorMoments,
        β: Float[Tensor, "q n"],
        γ: Float[Tensor, "q n"],
        couple: Callable[[Float[Tensor, "q n"]], Float[Tensor, "q n"]],
        rate: float,
        mix: Callable[[Float[Tensor, "q n"]], Float[Tensor, " c"]] | None = None,
    ) -> None:
        """A natural step on all q(v_l) at once, where observations are of mixtures of the processes.

        The q(v_l) are independent of each other but their optima are not: each explains what the others leave. Steps
        of rate g by each on its own, m_l + g Λ_l⁻¹ ∇_l, would overshoot wherever processes do the same job. So the
        means move by g H⁻¹ ∇, where H = (1 − g) Λ + g Ĥ has the joint curvature Ĥ of the batch in the place of its
        blocks Λ̂_l; with a single process both are the same.

        Parameters
        ----------
        posterior, q
            What moves, and its moments.
        β, γ
            Precisions with which every process by itself is observed at the inputs, and gradients for the processes.
        couple
            Takes changes of all processes at the inputs to changes of γ, with the sign reversed.
        rate
            g.
        mix
            Takes changes of all processes at the inputs to those of f at cells, see `natural_step`.
        """
        # Λ̂_l = I + A_lᵀ diag(β_l) A_l,  ∇_l = A_lᵀ γ_l − m_l
        before, target, gradient = posterior.precision, self.precision(β), self.pull(γ) - q.mean

        def aim(g: Tensor, factor: Tensor) -> Tensor:
            def curvature(step: Tensor) -> Tensor:
                return (1.0 - g) * matvec(before, step) + g * (step + self.pull(couple(matvec(self.A, step))))

            # Small steps hardly feel the coupling.
            step = conjugate_gradients(
                curvature,
                lambda right: torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1),
                gradient,
                math.ceil(_MAX_ITERATIONS * float(g)),
            )
            # θ̂ = Λ̂ m + Λ_g H⁻¹ ∇, to which a step of rate g moves the mean by g H⁻¹ ∇
            return matvec(target, q.mean) + matvec(torch.lerp(before, target, g), step)

        moves = None if mix is None else lambda change: mix(matvec(self.A, change))
        natural_step(posterior, q, aim, target, rate, moves)


class InducingBatch(nn.Module):
    """f_1, …, f_q, each f_j ~ GP(0, k_j) seen through u_j = f_j(Z_j) = L_j v_j with q(v_j) = N(m_j, S_j).

    M x M algebra is always done in float64; covariances with inputs in the dtype of the inputs.

    Parameters
    ----------
    kernels
        The kernels; a single one serves all processes, which then share their inducing points.
    Z
        Inducing points, shape (q, m, d), or (1, m, d) if there is a single kernel.
    posterior
        How the q(v_j) are stored.
    jitter
        Relative jitter of k_j(Z_j, Z_j).
    sparse
        Whether gradients of kernels and inducing points hold only the processes asked for.

    Attributes
    ----------
    units
        What inputs are divided by before anything else, shape (d,), so that a step of the optimiser means the same on
        every table; Z and lengthscales are in these units. Ones unless set.
    """

    units: Tensor

    def __init__(
        self,
        kernels: KernelBatch,
        Z: Float[Tensor, "q m d"],
        posterior: Posterior,
        jitter: float = 1e-8,
        sparse: bool = False,
    ):
        super().__init__()
        self.kernels, self.posterior = kernels, posterior
        self.Z = nn.Parameter(Z.double().clone())
        self.register_buffer("units", torch.ones(Z.shape[-1], dtype=torch.float64))
        self.jitter, self.sparse = jitter, sparse

    @property
    def num_inducing(self) -> int:
        """Inducing points of each process."""
        return self.Z.shape[1]

    @torch.no_grad()
    def stretch(self, factor: float) -> None:
        """Multiply all lengthscales by a factor; inducing points stay where they are among the inputs."""
        self.units.mul_(factor)
        self.Z.div_(factor)

    def project(self, x: Float[Tensor, "*#q n d"], which: Int[Tensor, " r"] | None = None) -> Projection:
        """Inputs of some processes, of all by default, seen through their inducing variables.

        `x` has shape (n, d) if all processes have the same inputs and (r, n, d) otherwise.
        """
        x = x / self.units.to(x.dtype)
        rows, Z = self.kernels.rows(which, self.sparse), self._points(which)
        K = self.kernels.covariance(rows, x, Z.to(x.dtype)).to(Z.dtype)
        A = torch.linalg.solve_triangular(self._factor(rows, Z), K.mT, upper=False).mT
        return Projection(A, self.kernels.diagonal(rows, x).to(Z.dtype).expand(A.shape[:-1]))

    def evidence(
        self, x: Float[Tensor, "n d"], y: Float[Tensor, "q n"], noise: Float[Tensor, "q n"]
    ) -> GaussianEvidenceBatch:
        """What values of all processes at the same inputs, each with its noise variance, say about the q(v_j)."""
        x = x / self.units.to(x.dtype)
        return GaussianEvidenceBatch.from_observations(self.kernels, x, self.Z, y, noise, self.jitter)

    @torch.no_grad()
    def conditional(self) -> "ConditionalBatch":
        """q(f_j) as functions of inputs, with all that depends on q(v) alone computed once."""
        rows, q = self.kernels.rows(), self.posterior.moments()
        Linv = triangular_inverse(self._factor(rows, self.Z))
        eye = torch.eye(self.num_inducing, dtype=Linv.dtype, device=Linv.device)
        # α = L⁻ᵀ m,  C = L⁻ᵀ (I − S) L⁻¹
        alpha = matvec(Linv.mT, q.mean)
        C = Linv.mT @ (eye - q.covariance) @ Linv
        return ConditionalBatch(self.kernels, self.units, self.Z.detach(), alpha, C)

    def _points(self, which: Tensor | None) -> Tensor:
        return self.Z if which is None or len(self.Z) == 1 else pick(self.Z, which, self.sparse)

    def _factor(self, rows: dict[str, Tensor], Z: Tensor) -> Tensor:
        """Cholesky factors of k_j(Z_j, Z_j)."""
        return safe_cholesky(self.kernels.covariance(rows, Z, Z), self.jitter)


@dataclass(frozen=True)
class ConditionalBatch:
    """Marginals of q(f_j) at any inputs: μ = kᵀα_j, v = k_j(x, x) − kᵀC_j k."""

    kernels: KernelBatch
    units: Float[Tensor, " d"]
    Z: Float[Tensor, "#q m d"]
    alpha: Float[Tensor, "q m"]
    C: Float[Tensor, "q m m"]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "*#q n d"], which: Int[Tensor, " r"] | None = None
    ) -> tuple[Float[Tensor, "r n"], Float[Tensor, "r n"]]:
        """Means and variances of some processes, of all by default; shapes of x as for `InducingBatch.project`."""
        rows, x = self.kernels.rows(which), x / self.units
        Z = self.Z if which is None or len(self.Z) == 1 else self.Z[which]
        alpha, C = (self.alpha, self.C) if which is None else (self.alpha[which], self.C[which])
        K = self.kernels.covariance(rows, x.to(Z.dtype), Z)
        mean = matvec(K, alpha)
        variance = self.kernels.diagonal(rows, x) - ((K @ C) * K).sum(-1)
        return mean, variance.expand_as(mean).clamp(min=_MIN_VARIANCE)
