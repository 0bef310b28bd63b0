"""One sparse GP in the embedding space: inducing points Z and whitened inducing variables u = L v."""

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import safe_cholesky, squared_norms, triangular_inverse, triangular_root
from manygp.variational.evidence import MIN_VARIANCE, Evidence, GaussianEvidence
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments
from manygp.variational.sites import SiteEvidence

__all__ = ["Conditional", "InducingGP"]

# Covariances of predictions are computed in chunks of rows that stay in the cache.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 800_000, 512
# Shares of a prior variance that are rounding errors.
_NOTHING = 1e-13


class InducingGP(nn.Module):
    """f ~ GP(0, k) seen through u = f(Z) = L v with Kuu = L Lᵀ and q(v) = N(m, S).

    M x M algebra is always done in float64; work over the batch in the dtype of the embeddings.

    Parameters
    ----------
    kernel
        Base kernel k.
    Z
        Inducing points, shape (m, e).
    posterior
        How q(v) is stored.
    jitter
        Relative jitter of Kuu.
    bound
        "standard" takes q(f | u) = p(f | u). "tight" lets its variances shrink, each as is best for Gaussian noise;
        for other likelihoods all by one factor ω, which is learned and starts at 1.
    """

    def __init__(
        self,
        kernel: Kernel,
        Z: Float[Tensor, "m e"],
        posterior: Posterior,
        jitter: float = 1e-9,
        bound: str = "standard",
    ):
        super().__init__()
        self.is_tight = bound == "tight"
        self.log_shrinkage = nn.Parameter(torch.zeros((), dtype=torch.float64)) if self.is_tight else None
        self.kernel = kernel
        self.Z = nn.Parameter(Z.double().clone())
        self.posterior = posterior
        self.jitter = jitter

    def whitening(self) -> Float[Tensor, "m m"]:
        """L⁻¹ with L Lᵀ = Kuu."""
        return triangular_inverse(safe_cholesky(cross_covariance(self.kernel, self.Z, self.Z), self.jitter))

    def evidence(
        self,
        e: Float[Tensor, "b e"],
        y: Float[Tensor, " b"],
        outputs: Int[Tensor, " b"],
        likelihood: Likelihood,
        exposure: Float[Tensor, " b"] | None = None,
        level: Float[Tensor, " b"] | None = None,
    ) -> Evidence:
        """What cells with embeddings e and values y say about q(v), when the likelihood sees level + f."""
        if isinstance(likelihood, Gaussian):
            y = y if level is None else y - level
            noise, deviation = likelihood.split_noise(outputs)
            return GaussianEvidence.from_batch(self.kernel, e, self.Z, y, noise, self.jitter, deviation, self.is_tight)
        ω = None if self.log_shrinkage is None else self.log_shrinkage.exp()
        return SiteEvidence.from_batch(self.kernel, e, self.Z, y, outputs, likelihood, self.jitter, exposure, level, ω)

    def natural_step(
        self, evidence: Evidence, weight: float, rate: float
    ) -> tuple[Float[Tensor, ""], PosteriorMoments]:
        """Move q(v) towards its optimum for a batch whose cells count `weight` times each.

        Returns the data term of the batch, and the q(v) that it was computed with. A q(v) that takes no natural steps
        stays as it is.
        """
        if isinstance(self.posterior, NaturalPosterior):
            return evidence.natural_step(self.posterior, weight, rate)
        q = self.posterior.moments()
        return evidence.expected_log_lik(q), q

    def conditional(self) -> "Conditional":
        """q(f) as a function of embeddings, with all that depends on q(v) alone computed once."""
        Linv, q = self.whitening(), self.posterior.moments()
        # I − S = V diag(d) Vᵀ, hence kᵀ L⁻ᵀ (I − S) L⁻¹ k = Σⱼ dⱼ (vⱼᵀ L⁻¹ k)²: sums of squares keep digits that one
        # matrix between two k would lose where Kuu is nearly singular
        d, V = torch.linalg.eigh(torch.eye(len(Linv), dtype=Linv.dtype, device=Linv.device) - q.covariance)
        T = (d.abs().sqrt() * V).T @ Linv
        known, lost = triangular_root(T[d > _NOTHING]), triangular_root(T[d < -_NOTHING])
        return Conditional(self.kernel, self.Z, Linv.T @ q.mean, known, lost)


@dataclass(frozen=True)
class Conditional:
    """Marginals of q(f) at any embeddings: μ = kᵀα, v = k(e, e) − |Rk|² + |R'k|².

    R holds what q(v) knows beyond the prior; R', where it knows less, is empty for a q(v) that natural steps found.
    """

    kernel: Kernel
    Z: Float[Tensor, "m e"]
    alpha: Float[Tensor, " m"]
    known: Float[Tensor, "r m"]
    lost: Float[Tensor, "s m"]

    def __call__(self, e: Float[Tensor, "b e"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Means and variances; not for gradients."""
        mean, variance = self.alpha.new_empty(len(e)), self.alpha.new_empty(len(e))
        Z, size = self.Z.to(e.dtype), max(_MIN_CHUNK_ROWS, _CHUNK_NUMBERS // len(self.Z))
        for begin in range(0, len(e), size):
            rows = slice(begin, begin + size)
            K = cross_covariance(self.kernel, e[rows], Z).to(self.alpha.dtype)
            torch.mv(K, self.alpha, out=mean[rows])
            variance[rows] = self._variance(K, e[rows])
        return mean, variance

    def with_slopes(self, e: Float[Tensor, "b e"]) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Means, which may be differentiated, and variances, which may not, of a few embeddings."""
        K = cross_covariance(self.kernel, e, self.Z.to(e.dtype)).to(self.alpha.dtype)
        with torch.no_grad():
            variance = self._variance(K, e)
        return K @ self.alpha, variance

    def _variance(self, K: Float[Tensor, "b m"], e: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
        variance = kernel_diagonal(self.kernel, e) - squared_norms(K, self.known)
        if len(self.lost):
            variance += squared_norms(K, self.lost)
        return variance.clamp_(min=MIN_VARIANCE)
