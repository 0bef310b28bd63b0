"""Inputs seen through inducing variables, and natural steps of processes that are observed in mixtures."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.linalg import conjugate_gradients, matvec
from manygp.variational.evidence import MIN_VARIANCE
from manygp.variational.posterior import NaturalPosterior, PosteriorMoments
from manygp.variational.trust import natural_step

# Conjugate gradient iterations of a joint natural step of rate 1.
_MAX_ITERATIONS = 20


@dataclass(frozen=True)
class Projection:
    """Inputs seen through the inducing variables: rows aᵢ = L⁻¹ kᵢ, and k(xᵢ, xᵢ), of every process of a batch."""

    A: Float[Tensor, "*q n m"]
    diagonal: Float[Tensor, "*q n"]

    def marginals(self, q: PosteriorMoments) -> tuple[Float[Tensor, "q n"], Float[Tensor, "q n"]]:
        """μᵢ = aᵢᵀ m and vᵢ = kᵢᵢ − aᵢᵀ (I − S) aᵢ."""
        eye = torch.eye(self.A.shape[-1], dtype=self.A.dtype, device=self.A.device)
        lost = ((self.A @ (eye - q.covariance)) * self.A).sum(-1)
        return matvec(self.A, q.mean), (self.diagonal - lost).clamp(min=MIN_VARIANCE)

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

        def aim(g: Tensor, Λ: Tensor, factor: Tensor) -> Tensor:
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
            return matvec(target, q.mean) + matvec(Λ, step)

        moves = None if mix is None else lambda change: mix(matvec(self.A, change))
        natural_step(posterior, q, aim, target, rate, moves)
