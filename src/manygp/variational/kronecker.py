"""Inducing variables on a product of two sets of points: q(v) = N(vec M, S_H ⊗ S_X) and its natural steps.

Row-major vec throughout, so that (A ⊗ B) vec M = vec(A M Bᵀ). The left factor belongs to the j points of the latent
space, the right one to the k points of the input space.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manygp.linalg import gaussian_kl, gram, safe_cholesky, symmetrize, triangular_inverse
from manygp.variational.trust import trusted_rate

_MIN_VARIANCE = 1e-8


@dataclass(frozen=True)
class KroneckerMoments:
    """Mean M, covariance S_H ⊗ S_X and its log determinant of q(v)."""

    mean: Float[Tensor, "j k"]
    left: Float[Tensor, "j j"]
    right: Float[Tensor, "k k"]
    logdet: Float[Tensor, ""]

    def kl(self) -> Float[Tensor, ""]:
        """KL[q(v) ‖ N(0, I)], with tr(S_H ⊗ S_X) = tr S_H · tr S_X."""
        return gaussian_kl(self.mean.flatten(), self.left.trace() * self.right.trace(), self.logdet)


# -- features of cells, and what a batch of them says -----------------------------------------------------------------


class Features(ABC):
    """Whitened features aᵢ of cells, seen as j x k matrices Aᵢ too: E[fᵢ | v] = aᵢᵀ v."""

    @abstractmethod
    def project(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, " b"]:
        """aᵢᵀ vec M."""

    @abstractmethod
    def norms(self) -> Float[Tensor, " b"]:
        """|aᵢ|²."""

    @abstractmethod
    def spread(self, left: Float[Tensor, "j j"], right: Float[Tensor, "k k"]) -> Float[Tensor, " b"]:
        """aᵢᵀ (S_H ⊗ S_X) aᵢ."""

    @abstractmethod
    def statistics(self, pull: Float[Tensor, " b"], weight: Float[Tensor, " b"]) -> "Statistics":
        """θ = Σᵢ γᵢ aᵢ and H = Σᵢ wᵢ aᵢ aᵢᵀ from γᵢ and wᵢ ≥ 0."""

    def marginals(
        self, diagonal: Float[Tensor, " b"], q: KroneckerMoments
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """μᵢ = aᵢᵀ vec M and vᵢ = kᵢᵢ − |aᵢ|² + aᵢᵀ (S_H ⊗ S_X) aᵢ, from the prior variances kᵢᵢ."""
        variance = diagonal - self.norms() + self.spread(q.left, q.right)
        return self.project(q.mean), variance.clamp(min=_MIN_VARIANCE)


class Statistics(ABC):
    """What a batch says about v, to second order: θᵀv − ½ vᵀHv."""

    @abstractmethod
    def gradient(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        """θ − H v at v = vec M, as a matrix."""

    @abstractmethod
    def bend(self, direction: Float[Tensor, "j k"]) -> Float[Tensor, ""]:
        """vᵀ H v along a direction."""

    @abstractmethod
    def left_gram(self, right: Float[Tensor, "k k"]) -> Float[Tensor, "j j"]:
        """Σᵢ wᵢ Aᵢ S_X Aᵢᵀ."""

    @abstractmethod
    def right_gram(self, left: Float[Tensor, "j j"]) -> Float[Tensor, "k k"]:
        """Σᵢ wᵢ Aᵢᵀ S_H Aᵢ."""


@dataclass(frozen=True)
class FactoredFeatures(Features):
    """Features of a separable kernel, aᵢ = αᵢ ⊗ βᵢ: only the factors exist. O(b (j² + k² + j k)) time."""

    left: Float[Tensor, "b j"]
    right: Float[Tensor, "b k"]

    def project(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, " b"]:
        # (α ⊗ β)ᵀ vec M = αᵀ M β
        return (self.left @ mean * self.right).sum(-1)

    def norms(self) -> Float[Tensor, " b"]:
        return self.left.square().sum(-1) * self.right.square().sum(-1)

    def spread(self, left: Float[Tensor, "j j"], right: Float[Tensor, "k k"]) -> Float[Tensor, " b"]:
        return _row_forms(self.left, left) * _row_forms(self.right, right)

    def statistics(self, pull: Float[Tensor, " b"], weight: Float[Tensor, " b"]) -> "FactoredStatistics":
        return FactoredStatistics(self, pull, weight)


@dataclass(frozen=True)
class FactoredStatistics(Statistics):
    """The cells themselves, with γᵢ and wᵢ."""

    features: FactoredFeatures
    pull: Float[Tensor, " b"]
    weight: Float[Tensor, " b"]

    def gradient(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        residual = self.pull - self.weight * self.features.project(mean)
        return (self.features.left * residual.unsqueeze(-1)).T @ self.features.right

    def bend(self, direction: Float[Tensor, "j k"]) -> Float[Tensor, ""]:
        return (self.weight * self.features.project(direction).square()).sum()

    def left_gram(self, right: Float[Tensor, "k k"]) -> Float[Tensor, "j j"]:
        return _weighted_gram(self.features.left, self.weight * _row_forms(self.features.right, right))

    def right_gram(self, left: Float[Tensor, "j j"]) -> Float[Tensor, "k k"]:
        return _weighted_gram(self.features.right, self.weight * _row_forms(self.features.left, left))


@dataclass(frozen=True)
class DenseFeatures(Features):
    """Features of a kernel that does not factorise, written out. O(b j k (j + k)) time."""

    values: Float[Tensor, "b j k"]

    def project(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, " b"]:
        return self.values.flatten(1) @ mean.flatten()

    def norms(self) -> Float[Tensor, " b"]:
        return self.values.square().sum((-2, -1))

    def spread(self, left: Float[Tensor, "j j"], right: Float[Tensor, "k k"]) -> Float[Tensor, " b"]:
        # aᵀ (S_H ⊗ S_X) a = tr(Aᵀ S_H A S_X)
        return (self.values * (left @ (self.values @ right))).sum((-2, -1))

    def statistics(self, pull: Float[Tensor, " b"], weight: Float[Tensor, " b"]) -> "DenseStatistics":
        rows = self.values.flatten(1)
        return DenseStatistics((pull @ rows).view(self.values.shape[1:]), gram(rows * weight.sqrt().unsqueeze(-1)))


@dataclass(frozen=True)
class DenseStatistics(Statistics):
    """θ as a matrix and H itself, of size j k x j k."""

    pull: Float[Tensor, "j k"]
    gram: Float[Tensor, "m m"]

    def gradient(self, mean: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        return self.pull - (self.gram @ mean.flatten()).view_as(mean)

    def bend(self, direction: Float[Tensor, "j k"]) -> Float[Tensor, ""]:
        return direction.flatten() @ self.gram @ direction.flatten()

    def left_gram(self, right: Float[Tensor, "k k"]) -> Float[Tensor, "j j"]:
        return torch.einsum("jkil,kl->ji", self._blocks(), right)

    def right_gram(self, left: Float[Tensor, "j j"]) -> Float[Tensor, "k k"]:
        return torch.einsum("jkil,ji->kl", self._blocks(), left)

    def _blocks(self) -> Float[Tensor, "j k j k"]:
        return self.gram.view(*self.pull.shape, *self.pull.shape)


def _row_forms(A: Float[Tensor, "b m"], S: Float[Tensor, "m m"]) -> Float[Tensor, " b"]:
    """aᵢᵀ S aᵢ of every row."""
    return (A @ S * A).sum(-1)


def _weighted_gram(A: Float[Tensor, "b m"], weight: Float[Tensor, " b"]) -> Float[Tensor, "m m"]:
    return (A * weight.unsqueeze(-1)).T @ A


# -- curvature: what a step of the mean is measured by -----------------------------------------------------------------


class Curvature(nn.Module):
    """I + H, averaged over batches."""

    def update(self, statistics: Statistics, rate: float) -> None:
        """Move towards the curvature of a batch by a share of the way."""
        raise NotImplementedError

    def solve(self, G: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        """Apply the inverse to a j x k matrix."""
        raise NotImplementedError


class FactoredCurvature(Curvature):
    """I + n A ⊗ B with A, B the averages of αᵢαᵢᵀ and βᵢβᵢᵀ, and n the sum of the weights.

    Exact for a complete grid with latent vectors known, nearly so for gaps at random; two small eigenproblems instead
    of a factorisation of size j k.
    """

    left: Tensor
    right: Tensor
    total: Tensor

    def __init__(self, num_left: int, num_right: int):
        super().__init__()
        self.register_buffer("left", torch.zeros(num_left, num_left, dtype=torch.float64))
        self.register_buffer("right", torch.zeros(num_right, num_right, dtype=torch.float64))
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def update(self, statistics: Statistics, rate: float) -> None:
        assert isinstance(statistics, FactoredStatistics)
        total = statistics.weight.sum()
        share = statistics.weight / total.clamp(min=torch.finfo(total.dtype).tiny)
        self.left.lerp_(_weighted_gram(statistics.features.left, share), rate)
        self.right.lerp_(_weighted_gram(statistics.features.right, share), rate)
        self.total.lerp_(total, rate)

    def solve(self, G: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        a, U = torch.linalg.eigh(symmetrize(self.left))
        b, V = torch.linalg.eigh(symmetrize(self.right))
        # (I + n A ⊗ B)⁻¹ vec G = vec(U [(Uᵀ G V) / (1 + n aᵢ bⱼ)] Vᵀ)
        scale = 1.0 + self.total * torch.outer(a.clamp(min=0.0), b.clamp(min=0.0))
        return U @ (U.T @ G @ V / scale) @ V.T


class DenseCurvature(Curvature):
    """The matrix itself."""

    precision: Tensor

    def __init__(self, num_left: int, num_right: int):
        super().__init__()
        self.register_buffer("precision", torch.eye(num_left * num_right, dtype=torch.float64))

    def update(self, statistics: Statistics, rate: float) -> None:
        assert isinstance(statistics, DenseStatistics)
        self.precision.lerp_(_add_diagonal(symmetrize(statistics.gram), 1.0), rate)

    def solve(self, G: Float[Tensor, "j k"]) -> Float[Tensor, "j k"]:
        return torch.cholesky_solve(G.reshape(-1, 1), safe_cholesky(self.precision)).view_as(G)


# -- the posterior -----------------------------------------------------------------------------------------------------


class KroneckerPosterior(nn.Module):
    """Interface: a Gaussian q(v) of j x k variables whose covariance is a Kronecker product; starts at N(0, I)."""

    def moments(self) -> KroneckerMoments:
        """Mean, factors of the covariance, log determinant."""
        raise NotImplementedError


class CholeskyKronecker(KroneckerPosterior):
    """M and the Cholesky factors of S_H and S_X as ordinary parameters, for plain gradient steps."""

    def __init__(self, num_left: int, num_right: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(num_left, num_right, dtype=torch.float64))
        self.left_factor = nn.Parameter(torch.eye(num_left, dtype=torch.float64))
        self.right_factor = nn.Parameter(torch.eye(num_right, dtype=torch.float64))

    def moments(self) -> KroneckerMoments:
        (j, k), A, B = self.mean.shape, self.left_factor.tril(), self.right_factor.tril()
        # log|S_H ⊗ S_X| = k log|S_H| + j log|S_X|
        logdet = k * A.diagonal().square().log().sum() + j * B.diagonal().square().log().sum()
        return KroneckerMoments(self.mean, A @ A.T, B @ B.T, logdet)


class NaturalKronecker(KroneckerPosterior):
    """M and the precisions S_H⁻¹ and S_X⁻¹ of j and k points, moved by natural steps alone.

    With one factor of the covariance held, the bound has its optimum in the other in closed form, and a step goes a
    share of the way there; the mean takes a Newton step with the curvature averaged over batches.
    """

    mean: Tensor
    left_precision: Tensor
    right_precision: Tensor

    def __init__(self, num_left: int, num_right: int, curvature: Curvature):
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_left, num_right, dtype=torch.float64))
        self.register_buffer("left_precision", torch.eye(num_left, dtype=torch.float64))
        self.register_buffer("right_precision", torch.eye(num_right, dtype=torch.float64))
        self.curvature = curvature

    def moments(self) -> KroneckerMoments:
        j, k = self.mean.shape
        left, left_logdet = _inverse(self.left_precision)
        right, right_logdet = _inverse(self.right_precision)
        return KroneckerMoments(self.mean.clone(), left, right, k * left_logdet + j * right_logdet)

    @torch.no_grad()
    def step(self, statistics: Statistics, rate: float, features: Features | None = None) -> None:
        """Go a share g ∈ [0, 1] of the way to where the statistics of a batch lead.

        Statistics of a likelihood that is not Gaussian hold near the q(v) at which they were taken; `features` are then
        those of the cells whose means may move only so far.
        """
        j, k = self.mean.shape
        # ∂/∂M of the bound: θ − H vec M − vec M
        G = statistics.gradient(self.mean) - self.mean
        self.curvature.update(statistics, rate)
        D = self.curvature.solve(G)
        if features is not None:
            rate = float(trusted_rate(features.project(D), rate))
        # Along D the bound of the batch is highest at t = ⟨D, G⟩ / (|D|² + dᵀHd); never go beyond.
        bend = D.square().sum() + statistics.bend(D)
        t = (D * G).sum() / bend.clamp(min=torch.finfo(D.dtype).tiny)
        self.mean.add_(t.clamp(max=rate) * D)
        # S_H⁻¹ = (tr(S_X) I + Σᵢ wᵢ Aᵢ S_X Aᵢᵀ) / k, and S_X⁻¹ alike
        right, _ = _inverse(self.right_precision)
        target = _add_diagonal(symmetrize(statistics.left_gram(right)), right.trace())
        self.left_precision.lerp_(target / k, rate)
        left, _ = _inverse(self.left_precision)
        target = _add_diagonal(symmetrize(statistics.right_gram(left)), left.trace())
        self.right_precision.lerp_(target / j, rate)


def _add_diagonal(A: Float[Tensor, "m m"], value: Float[Tensor, ""] | float) -> Float[Tensor, "m m"]:
    return A.diagonal_scatter(A.diagonal() + value)


def _inverse(precision: Float[Tensor, "m m"]) -> tuple[Float[Tensor, "m m"], Float[Tensor, ""]]:
    """The covariance of a precision, and its log determinant."""
    Rinv = triangular_inverse(safe_cholesky(precision))
    return Rinv.T @ Rinv, 2.0 * Rinv.diagonal().log().sum()
