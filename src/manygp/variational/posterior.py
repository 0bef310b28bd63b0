"""How q(v) = N(m, S) of whitened inducing variables is stored: for gradients, or for natural steps.

A posterior may have leading axes *q: one q(v) for each process of a batch.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.linalg import (
    gaussian_kl,
    matvec,
    safe_cholesky,
    sure_cholesky,
    symmetrize,
    triangular_gram,
    triangular_inverse,
)


@dataclass(frozen=True)
class PosteriorMoments:
    """Mean m, covariance S and log|S| of q(v), or of every q(v) of a batch."""

    mean: Float[Tensor, "*q m"]
    covariance: Float[Tensor, "*q m m"]
    logdet: Float[Tensor, "*q"]

    def kl(self) -> Float[Tensor, "*q"]:
        """KL[q(v) ‖ N(0, I)], which is KL[q(u) ‖ p(u)]."""
        return gaussian_kl(self.mean, self.covariance.diagonal(dim1=-2, dim2=-1).sum(-1), self.logdet)


class Posterior(nn.Module):
    """Interface: a Gaussian q(v), or a batch of them; starts at N(0, I).

    Parameters
    ----------
    shape
        Axes of the batch, if there are any, and last the number m of variables.
    """

    def __init__(self, *shape: int):
        super().__init__()
        self.shape = shape

    def moments(self, which: Int[Tensor, " r"] | None = None) -> PosteriorMoments:
        """Mean, covariance and its log determinant, differentiable where they are parameters.

        Of some processes of a batch, of all by default.
        """
        raise NotImplementedError


class CholeskyPosterior(Posterior):
    """m and the Cholesky factor of S as ordinary parameters, for plain gradient steps."""

    def __init__(self, *shape: int):
        super().__init__(*shape)
        self.mean = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        self.factor = nn.Parameter(_identity(shape))

    def moments(self, which: Int[Tensor, " r"] | None = None) -> PosteriorMoments:
        mean, factor = _rows(self.mean, which), _rows(self.factor, which)
        L = factor.tril()
        return PosteriorMoments(mean, L @ L.mT, L.diagonal(dim1=-2, dim2=-1).square().log().sum(-1))

    @torch.no_grad()
    def set_moments(self, mean: Float[Tensor, "*q m"], covariance: Float[Tensor, "*q m m"]) -> None:
        """Put q(v) where it is told to be."""
        self.mean.copy_(mean)
        self.factor.copy_(safe_cholesky(covariance))


class NaturalPosterior(Posterior):
    """Natural parameters θ = S⁻¹ m and Λ = S⁻¹, moved by natural steps alone.

    A step of rate g ∈ [0, 1] is a convex combination of positive definite precisions, so Λ stays positive definite.
    """

    theta: Tensor
    precision: Tensor

    def __init__(self, *shape: int):
        super().__init__(*shape)
        self.register_buffer("theta", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("precision", _identity(shape))

    def moments(self, which: Int[Tensor, " r"] | None = None) -> PosteriorMoments:
        # By a triangular inverse and a product, several times faster than torch.cholesky_inverse. Precisions are those
        # of the prior and more.
        Rinv = triangular_inverse(sure_cholesky(_rows(self.precision, which)))
        S = triangular_gram(Rinv)
        return PosteriorMoments(
            matvec(S, _rows(self.theta, which)), S, 2.0 * Rinv.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        )

    @torch.no_grad()
    def step(
        self,
        theta: Float[Tensor, "*q m"],
        precision: Float[Tensor, "*q m m"],
        rate: float,
        which: Int[Tensor, " r"] | None = None,
    ) -> None:
        """(θ, Λ) ← (1 − g)(θ, Λ) + g (θ̂, Λ̂), of some processes of a batch, of all by default.

        A step towards the optimum; `natural_step` takes one that is safe where the target holds only nearby.
        """
        if which is None:
            self.theta.lerp_(theta, rate)
            self.precision.lerp_(symmetrize(precision), rate)
        else:
            self.put(
                self.theta[which].lerp_(theta, rate), self.precision[which].lerp_(symmetrize(precision), rate), which
            )

    @torch.no_grad()
    def put(
        self, theta: Float[Tensor, "*q m"], precision: Float[Tensor, "*q m m"], which: Int[Tensor, " r"] | None = None
    ) -> None:
        """(θ, Λ) ← (θ̂, Λ̂) as they are, of some processes of a batch, of all by default."""
        if which is None:
            self.theta.copy_(theta)
            self.precision.copy_(precision)
        else:
            self.theta[which], self.precision[which] = theta, precision


def _identity(shape: tuple[int, ...]) -> Float[Tensor, "*q m m"]:
    return torch.eye(shape[-1], dtype=torch.float64).expand(*shape, shape[-1]).clone()


def _rows(parameter: Tensor, which: Int[Tensor, " r"] | None) -> Tensor:
    """Those of some processes, of all by default."""
    return parameter if which is None else parameter.index_select(0, which)
