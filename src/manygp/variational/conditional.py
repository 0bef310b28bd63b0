"""Marginals of a sparse GP at any inputs, with all that depends on q(v) alone computed once."""

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.linalg import matvec, safe_cholesky, squared_norms, triangular_root
from manygp.variational.evidence import MIN_VARIANCE
from manygp.variational.kernel_batch import KernelBatch, covariance_of
from manygp.variational.posterior import PosteriorMoments

# Covariances of predictions are computed in chunks of rows that stay in the cache.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 800_000, 512
# Shares of a prior variance that are rounding errors.
_NOTHING = 1e-13


@dataclass(frozen=True)
class Conditional:
    """Marginals of q(f) at any embeddings: μ = kᵀα, v = k(e, e) − |Rk|² + |R'k|².

    Of one process, R holds what q(v) knows beyond the prior; R', where it knows less, is empty for a q(v) that natural
    steps found. Of a batch, R = L⁻¹ and R'ᵀR' = L⁻ᵀ S L⁻¹, which take no eigenvectors.
    """

    kernel: Kernel | KernelBatch
    Z: Float[Tensor, "*#q m e"]
    alpha: Float[Tensor, "*q m"]
    known: Float[Tensor, "*q r m"]
    lost: Float[Tensor, "*q s m"]
    units: Float[Tensor, " e"] | None = None

    @classmethod
    def of(
        cls,
        kernel: Kernel | KernelBatch,
        Z: Float[Tensor, "*#q m e"],
        Linv: Float[Tensor, "*#q m m"],
        q: PosteriorMoments,
        units: Float[Tensor, " e"] | None = None,
    ) -> "Conditional":
        """The marginals that belong to L⁻¹ and q(v)."""
        alpha = matvec(Linv.mT, q.mean)
        if isinstance(kernel, KernelBatch):
            lost = safe_cholesky(q.covariance).mT @ Linv
            return cls(kernel, Z, alpha, Linv.expand_as(lost), lost, units)
        # I − S = V diag(d) Vᵀ, hence kᵀ L⁻ᵀ (I − S) L⁻¹ k = Σⱼ dⱼ (vⱼᵀ L⁻¹ k)²: sums of squares keep digits that one
        # matrix between two k would lose where Kuu is nearly singular
        d, V = torch.linalg.eigh(torch.eye(len(Linv), dtype=Linv.dtype, device=Linv.device) - q.covariance)
        T = (d.abs().sqrt() * V).T @ Linv
        return cls(kernel, Z, alpha, triangular_root(T[d > _NOTHING]), triangular_root(T[d < -_NOTHING]))

    def __call__(
        self, e: Float[Tensor, "*#q b e"], which: Int[Tensor, " r"] | None = None
    ) -> tuple[Float[Tensor, "*q b"], Float[Tensor, "*q b"]]:
        """Means and variances, of some processes of a batch, of all by default; not for gradients."""
        if self.units is not None:
            return self._of_batch(e / self.units, which)
        mean, variance = self.alpha.new_empty(len(e)), self.alpha.new_empty(len(e))
        Z, size = self.Z.to(e.dtype), max(_MIN_CHUNK_ROWS, _CHUNK_NUMBERS // len(self.Z))
        for begin in range(0, len(e), size):
            rows = slice(begin, begin + size)
            K = cross_covariance(self.kernel, e[rows], Z).to(self.alpha.dtype)
            torch.mv(K, self.alpha, out=mean[rows])
            variance[rows] = self._variance(K, e[rows])
        return mean, variance

    def with_slopes(self, e: Float[Tensor, "b e"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Means, which may be differentiated, and variances, which may not, of a few embeddings of one process."""
        K = cross_covariance(self.kernel, e, self.Z.to(e.dtype)).to(self.alpha.dtype)
        with torch.no_grad():
            variance = self._variance(K, e)
        return K @ self.alpha, variance

    def _variance(self, K: Float[Tensor, "b m"], e: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
        variance = kernel_diagonal(self.kernel, e) - squared_norms(K, self.known)
        if len(self.lost):
            variance += squared_norms(K, self.lost)
        return variance.clamp_(min=MIN_VARIANCE)

    @torch.no_grad()
    def _of_batch(
        self, x: Float[Tensor, "*#q b e"], which: Int[Tensor, " r"] | None
    ) -> tuple[Float[Tensor, "r b"], Float[Tensor, "r b"]]:
        k, Z, alpha, known, lost = covariance_of(self.kernel, which), self.Z, self.alpha, self.known, self.lost
        if which is not None:
            Z, alpha, known, lost = Z if len(Z) == 1 else Z[which], alpha[which], known[which], lost[which]
        K = k(x.to(Z.dtype), Z)
        variance = k.diagonal(x) - (K @ known.mT).square().sum(-1) + (K @ lost.mT).square().sum(-1)
        return matvec(K, alpha), variance.clamp(min=MIN_VARIANCE)
