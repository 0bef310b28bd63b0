"""How the q(v) of a batch of processes are stored: as natural parameters or as ordinary ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.linalg import gaussian_kl, safe_cholesky, symmetrize, triangular_inverse
from manygp.variational.kernel_batch import pick

__all__ = ["BatchMoments", "CholeskyPosteriorBatch", "NaturalPosteriorBatch"]


@dataclass(frozen=True)
class BatchMoments:
    """Means, covariances and log determinants of q(v_1), …, q(v_q)."""

    mean: Float[Tensor, "q m"]
    covariance: Float[Tensor, "q m m"]
    logdet: Float[Tensor, " q"]

    def kl(self) -> Float[Tensor, " q"]:
        """KL[q(v_j) ‖ N(0, I)] of every process."""
        trace = self.covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
        return gaussian_kl(self.mean, trace, self.logdet)


class NaturalPosteriorBatch(nn.Module):
    """Means and precisions of q(v_j), moved by natural steps alone; start at N(0, I)."""

    mean: Tensor
    precision: Tensor

    def __init__(self, size: int, num_inducing: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, num_inducing, dtype=torch.float64))
        eye = torch.eye(num_inducing, dtype=torch.float64)
        self.register_buffer("precision", eye.expand(size, num_inducing, num_inducing).clone())

    def moments(self, which: Int[Tensor, " r"] | None = None) -> BatchMoments:
        """Moments of some processes, of all by default."""
        mean, precision = (self.mean, self.precision) if which is None else (self.mean[which], self.precision[which])
        Rinv = triangular_inverse(safe_cholesky(precision))
        return BatchMoments(mean, Rinv.mT @ Rinv, 2.0 * Rinv.diagonal(dim1=-2, dim2=-1).log().sum(-1))

    @torch.no_grad()
    def sharpen(
        self, precision: Float[Tensor, "r m m"], rate: float, which: Int[Tensor, " r"] | None = None
    ) -> Float[Tensor, "r m m"]:
        """Move the precisions by a natural step, Λ ← (1 − g) Λ + g Λ̂, and return their Cholesky factors.

        The means are left where they are. In natural coordinates the step θ ← (1 − g) θ + g θ̂ takes them to
        m + g Λ⁻¹ ∇, where ∇ is the gradient of the bound for the mean and Λ the new precision; see `shift`.
        """
        target = symmetrize(precision)
        if which is None:
            moved = self.precision.lerp_(target, rate)
        else:
            moved = self.precision[which].lerp_(target, rate)
            self.precision[which] = moved
        return safe_cholesky(moved)

    @torch.no_grad()
    def shift(self, change: Float[Tensor, "r m"], which: Int[Tensor, " r"] | None = None) -> None:
        """Add to the means."""
        if which is None:
            self.mean.add_(change)
        else:
            self.mean[which] += change


class CholeskyPosteriorBatch(nn.Module):
    """Means and Cholesky factors of the covariances as ordinary parameters; start at N(0, I)."""

    def __init__(self, size: int, num_inducing: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(size, num_inducing, dtype=torch.float64))
        eye = torch.eye(num_inducing, dtype=torch.float64)
        self.factor = nn.Parameter(eye.expand(size, num_inducing, num_inducing).clone())

    def moments(self, which: Int[Tensor, " r"] | None = None) -> BatchMoments:
        """Moments of some processes, of all by default."""
        mean, factor = (self.mean, self.factor) if which is None else (pick(self.mean, which), pick(self.factor, which))
        L = factor.tril()
        return BatchMoments(mean, L @ L.mT, L.diagonal(dim1=-2, dim2=-1).square().log().sum(-1))
