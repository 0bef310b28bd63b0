"""Sparse GPs: inducing points Z and whitened inducing variables u = L v, of one process or of a batch."""

from typing import Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.exchange import ALONE, Exchange
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import safe_cholesky, sure_cholesky, triangular_inverse
from manygp.variational.conditional import Conditional
from manygp.variational.evidence import Evidence, GaussianEvidence
from manygp.variational.kernel_batch import KernelBatch, covariance_of, pick
from manygp.variational.posterior import NaturalPosterior, Posterior, PosteriorMoments
from manygp.variational.projection import Projection
from manygp.variational.sites import SiteEvidence


class InducingGP(nn.Module):
    """f ~ GP(0, k) seen through u = f(Z) = L v with Kuu = L Lᵀ and q(v) = N(m, S); or a batch of such processes.

    M x M algebra is always done in float64; work over inputs in the dtype of the inputs.

    Parameters
    ----------
    kernel
        Base kernel k, or the kernels of a batch; a single one in a batch serves all its processes, which then share
        their inducing points.
    Z
        Inducing points, shape (m, e); of a batch (q, m, e), or (1, m, e) if they are shared.
    posterior
        How q(v) is stored.
    jitter
        Relative jitter of Kuu.
    bound
        "standard" takes q(f | u) = p(f | u). "tight" lets its variances shrink, each as is best for Gaussian noise;
        for other likelihoods all by one factor ω, which is learned and starts at 1. Of a batch, "standard" alone.
    sparse
        Whether gradients of the kernels and inducing points of a batch hold only the processes asked for.

    Attributes
    ----------
    units
        What inputs of a batch are divided by before anything else, shape (e,), so that a step of the optimiser means
        the same on every table; Z and lengthscales are in these units. Ones unless set. A single process has none.
    """

    # Either of two modules, whose parts mypy would ask for in both.
    kernel: Any
    units: Tensor

    def __init__(
        self,
        kernel: Kernel | KernelBatch,
        Z: Float[Tensor, "*q m e"],
        posterior: Posterior,
        jitter: float = 1e-9,
        bound: str = "standard",
        sparse: bool = False,
    ):
        super().__init__()
        self.is_tight = bound == "tight"
        self.log_shrinkage = nn.Parameter(torch.zeros((), dtype=torch.float64)) if self.is_tight else None
        self.kernel = kernel
        self.Z = nn.Parameter(Z.double().clone())
        self.posterior = posterior
        self.jitter, self.sparse = jitter, sparse
        if self.is_batch:
            self.register_buffer("units", torch.ones(Z.shape[-1], dtype=torch.float64))

    @property
    def is_batch(self) -> bool:
        """Whether there are several processes, or axes for them."""
        return isinstance(self.kernel, KernelBatch)

    @property
    def kernels(self) -> KernelBatch:
        """The kernels of a batch."""
        assert isinstance(self.kernel, KernelBatch)
        return self.kernel

    @property
    def num_inducing(self) -> int:
        """Inducing points of a process."""
        return self.Z.shape[-2]

    def whitening(self) -> Float[Tensor, "*q m m"]:
        """L⁻¹ with L Lᵀ = Kuu."""
        return triangular_inverse(sure_cholesky(covariance_of(self.kernel)(self.Z, self.Z), self.jitter))

    @torch.no_grad()
    def stretch(self, factor: float) -> None:
        """Multiply all lengthscales of a batch by a factor; inducing points stay where they are among the inputs."""
        self.units.mul_(factor)
        self.Z.div_(factor)

    # -- what data say about q(v) --------------------------------------------------------------------------------

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
            y = y if level is None else y - level.to(y.dtype)
            noise, deviation = likelihood.split_noise(outputs, exposure)
            return GaussianEvidence.from_batch(self.kernel, e, self.Z, y, noise, self.jitter, deviation, self.is_tight)
        ω = None if self.log_shrinkage is None else self.log_shrinkage.exp()
        return SiteEvidence.from_batch(self.kernel, e, self.Z, y, outputs, likelihood, self.jitter, exposure, level, ω)

    def evidence_of_values(
        self, x: Float[Tensor, "n e"], y: Float[Tensor, "q n"], noise: Float[Tensor, "q n"]
    ) -> GaussianEvidence:
        """What values of all processes of a batch at the same inputs, each with its noise variance, say about q(v)."""
        kernel, one = self.kernels.kernel, noise.new_ones(())
        return GaussianEvidence.from_batch(kernel, self._in_units(x), self.Z, y, one, self.jitter, noise.log())

    def project(self, x: Float[Tensor, "*#q n e"], which: Int[Tensor, " r"] | None = None) -> Projection:
        """Inputs seen through the inducing variables; of some processes of a batch, of all by default.

        `x` has shape (n, e) if all processes have the same inputs and (r, n, e) otherwise.
        """
        x, k = self._in_units(x), covariance_of(self.kernel, which, self.sparse)
        Z = self.Z if which is None or len(self.Z) == 1 else pick(self.Z, which, self.sparse)
        L, K = safe_cholesky(k(Z, Z), self.jitter), k(x, Z.to(x.dtype)).to(Z.dtype)
        A = torch.linalg.solve_triangular(L, K.mT, upper=False).mT
        return Projection(A, k.diagonal(x).to(Z.dtype).expand(A.shape[:-1]))

    def natural_step(
        self, evidence: Evidence, weight: float, rate: float, exchange: Exchange = ALONE
    ) -> tuple[Float[Tensor, ""], PosteriorMoments]:
        """Move q(v) towards its optimum for data of which each value counts `weight` times.

        Returns the data term, and the q(v) that it was computed with. A q(v) that takes no natural steps stays as it
        is. Processes with a part of the data each move to the mean of what all of them aim at.
        """
        if isinstance(self.posterior, NaturalPosterior):
            return evidence.natural_step(self.posterior, weight, rate, exchange=exchange)
        q = self.posterior.moments()
        return evidence.expected_log_lik(q), q

    # -- predictions ---------------------------------------------------------------------------------------------

    def conditional(self) -> Conditional:
        """q(f) as a function of embeddings, with all that depends on q(v) alone computed once."""
        units = self.units if self.is_batch else None
        return Conditional.of(self.kernel, self.Z, self.whitening(), self.posterior.moments(), units)

    def _in_units(self, x: Float[Tensor, "*q n e"]) -> Float[Tensor, "*q n e"]:
        return x / self.units.to(x.dtype) if self.is_batch else x
