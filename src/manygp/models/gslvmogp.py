"""GS-LVMOGP and LV-MOGP: a sum of kernels, each separable into one on inputs and one on latent vectors of outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import safe_cholesky, triangular_inverse, with_gradients
from manygp.models.joint.separable import SeparableJoint
from manygp.models.latent_variable import LatentVariableModel
from manygp.terms import Points, Term
from manygp.variational import CellBatch, ElboTerms, Latents, trusted_sites
from manygp.variational.kronecker import (
    DenseFeatures,
    FactoredFeatures,
    Features,
    KroneckerMoments,
    KroneckerPosterior,
    NaturalKronecker,
)

# Least variance of a prediction, against rounding errors.
_MIN_VARIANCE = 1e-8


@dataclass(frozen=True)
class _DataTerm:
    """The data term of a batch around one q(v): means of g, means of f and variances, and derivatives by both."""

    # Σ E[log p(y | f)], with all gradients
    total: Float[Tensor, ""]
    mean: Float[Tensor, " b"]
    f: Float[Tensor, " b"]
    variance: Float[Tensor, " b"]
    slope: Float[Tensor, " b"]
    curvature: Float[Tensor, " b"]


class SeparableLatentModel(LatentVariableModel):
    """Latent variable multi-output GP with a sum of Q separable kernels; Q = 1 is the LV-MOGP.

    Generative model: h_pq ~ N(m⁰_p, s I), g ~ GP(0, Σ_q k_X^q(x, x') k_H^q(h_pq, h_p'q)), f_p = c_p + g_p,
    y ~ p(y | f_p(x)), with c_p = 0 where y is scaled. Otherwise the levels c_p ~ N(c⁰_p, 1), among the terms, are
    learned as points.

    Approximation: q(g, u, H) = p(g | u) q(u) Π_pq q(h_pq), u = g at all pairs of k points Z_X, shape (k, d), which all
    q share, and j points (Z_H^1, …, Z_H^Q), shape (q, j, h); Kuu = Σ_q K_H^q ⊗ K_X^q = L Lᵀ, u = L v,
    q(v) = N(vec M, S_H ⊗ S_X).

    Bound: Σ E_q(h) E_q(f)[log p(y_np | f)] − KL[q(u) ‖ p(u)] − Σ_pq KL[q(h_pq) ‖ p(h_pq)], with one draw of the latent
    vectors for each cell.

    Cost of a step on b cells: for Q = 1, L = L_H ⊗ L_X and nothing of size j k x j k exists,
    O(b (j² + k² + j k) + j³ + k³) time; for Q > 1, O(b (j k)² + (j k)³) time and O(b j k + (j k)²) memory.
    """

    posterior: KroneckerPosterior

    def __init__(
        self,
        input_kernels: Sequence[Kernel],
        latent_kernels: Sequence[Kernel],
        Z_X: Float[Tensor, "k d"],
        Z_H: Float[Tensor, "q j h"],
        posterior: KroneckerPosterior,
        latents: Latents,
        likelihood: Likelihood,
        units: Float[Tensor, " d"],
        terms: Sequence[Term] = (),
        sparse: bool = False,
        jitter: float = 1e-8,
    ):
        super().__init__(latents, likelihood, units, len(Z_H), terms, sparse)
        self.input_kernels, self.latent_kernels = nn.ModuleList(input_kernels), nn.ModuleList(latent_kernels)
        self.Z_X, self.Z_H = nn.Parameter(Z_X.double().clone()), nn.Parameter(Z_H.double().clone())
        self.posterior, self.jitter = posterior, jitter

    @property
    def num_parameters(self) -> int:
        """Parameters as the paper counts them: without those of kernels and noise, covariance factors as squares."""
        (q, j, h), (k, d), p = self.Z_H.shape, self.Z_X.shape, self.num_outputs
        return q * h * p + q * h**2 * p + k * j + k**2 + j**2 + q * j * h + k * d

    # -- covariances ---------------------------------------------------------------------------------------------

    def covariance(
        self,
        x: Float[Tensor, "a d"],
        h: Float[Tensor, "a q h"],
        other_x: Float[Tensor, "b d"],
        other_h: Float[Tensor, "b q h"],
    ) -> Float[Tensor, "a b"]:
        """Σ_q k_X^q(x, x') k_H^q(h_q, h'_q) for all pairs of cells."""
        total = x.new_zeros(len(x), len(other_x))
        for q, (on_inputs, on_latents) in enumerate(self._kernels()):
            K_X = cross_covariance(on_inputs, x / self.units, other_x / self.units)
            total = total + K_X * cross_covariance(on_latents, h[:, q], other_h[:, q])
        return total

    def diagonal(self, x: Float[Tensor, "b d"], h: Float[Tensor, "b q h"]) -> Float[Tensor, " b"]:
        """Prior variances Σ_q k_X^q(x, x) k_H^q(h_q, h_q)."""
        parts = [
            kernel_diagonal(on_inputs, x / self.units) * kernel_diagonal(on_latents, h[:, q])
            for q, (on_inputs, on_latents) in enumerate(self._kernels())
        ]
        return torch.stack(parts).sum(0)

    def inputs_covariance(self, x: Float[Tensor, "b d"], q: int) -> Float[Tensor, "b k"]:
        """k_X^q(x, Z_X) in the dtype of x."""
        return cross_covariance(self.input_kernels[q], x / self.units.to(x.dtype), self.Z_X.to(x.dtype))

    def latents_covariance(self, h: Float[Tensor, "b h"], q: int) -> Float[Tensor, "b j"]:
        """k_H^q(h, Z_H^q) in the dtype of h."""
        return cross_covariance(self.latent_kernels[q], h, self.Z_H[q].to(h.dtype))

    def pair_whitening(self) -> tuple[Float[Tensor, "j j"], Float[Tensor, "k k"]]:
        """L_H⁻¹ and L_X⁻¹ of the only component, for which L = L_H ⊗ L_X."""
        return self._whitening(self.latents_covariance(self.Z_H[0], 0)), self._whitening(
            cross_covariance(self.input_kernels[0], self.Z_X, self.Z_X)
        )

    def dense_whitening(self) -> Float[Tensor, "m m"]:
        """L⁻¹ with L Lᵀ = Σ_q K_H^q ⊗ K_X^q, m = j k."""
        parts = [
            torch.kron(self.latents_covariance(self.Z_H[q], q), cross_covariance(on_inputs, self.Z_X, self.Z_X))
            for q, (on_inputs, _) in enumerate(self._kernels())
        ]
        return self._whitening(torch.stack(parts).sum(0))

    def cross(self, x: Float[Tensor, "b d"], h: Float[Tensor, "b q h"]) -> Float[Tensor, "b j k"]:
        """Σ_q k_H^q(h_q, Z_H^q) k_X^q(x, Z_X): covariances of cells with all inducing variables."""
        components = range(self.num_components)
        K_H = torch.stack([self.latents_covariance(h[:, q], q) for q in components], -1)
        K_X = torch.stack([self.inputs_covariance(x, q) for q in components], -2)
        return torch.bmm(K_H, K_X)

    def features(self, x: Float[Tensor, "b d"], h: Float[Tensor, "b q h"]) -> Features:
        """L⁻¹ k of every cell; covariances in the dtype of x, what an ill-conditioned L touches in float64."""
        if self.num_components == 1:
            left, right = self.pair_whitening()
            K_H, K_X = self.latents_covariance(h[:, 0], 0), self.inputs_covariance(x, 0)
            return FactoredFeatures(K_H.double() @ left.T, K_X.double() @ right.T)
        K = self.cross(x, h)
        return DenseFeatures((K.double().flatten(1) @ self.dense_whitening().T).view(K.shape))

    def _whitening(self, K: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
        return triangular_inverse(safe_cholesky(K, self.jitter))

    def _kernels(self) -> Iterator[tuple[Kernel, Kernel]]:
        return zip(self.input_kernels, self.latent_kernels, strict=True)

    # -- bound ---------------------------------------------------------------------------------------------------

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound from a batch."""
        q = self.posterior.moments()
        return self._terms(batch, self._data(batch, *self._cells(batch, generator), q).total, q)

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step on q(u), and estimate the bound from the same batch and draws.

        It is the bound at the new q(u) for Gaussian noise, and at the old one for other likelihoods, where the step has
        done the work for it.
        """
        features, diagonal = self._cells(batch, generator)
        q = self.posterior.moments()
        data = self._data(batch, features, diagonal, q)
        if isinstance(self.posterior, NaturalKronecker):
            is_gaussian = isinstance(self.likelihood, Gaussian)
            with torch.no_grad():
                statistics = features.statistics(*self._pulls(batch, data))
            self.posterior.step(statistics, rate, None if is_gaussian or not len(batch.y) else features)
            if is_gaussian:
                q = self.posterior.moments()
                data = self._data(batch, features, diagonal, q)
        return self._terms(batch, data.total, q)

    def _cells(self, batch: CellBatch, generator: torch.Generator) -> tuple[Features, Float[Tensor, " b"]]:
        Q = self.num_components
        which = torch.arange(Q, device=batch.column.device)
        column = (batch.column.unsqueeze(-1) * Q + which).flatten()
        h = self.latents.rsample(self.rows(batch.outputs), column, generator)
        # The same draws in every dtype of the batch.
        h = h.view(-1, Q, self.latents.dim).to(batch.x.dtype)
        return self.features(batch.x, h), self.diagonal(batch.x, h).double()

    def _data(
        self, batch: CellBatch, features: Features, diagonal: Float[Tensor, " b"], q: KroneckerMoments
    ) -> _DataTerm:
        """Σ E[log p(y | f)] of a batch, and its derivatives by the marginals of every cell."""
        mean, variance = features.marginals(diagonal, q)
        y, outputs = batch.y.to(mean.dtype), batch.outputs[batch.column]
        f = mean + self.terms.mean(self.points(batch.x, outputs, batch.row))
        total, slope, curvature = self.likelihood.sites(f.detach(), variance.detach(), y, outputs, batch.exposure)
        total = with_gradients(total, [f, variance], [slope, curvature])
        return _DataTerm(total, mean.detach(), f.detach(), variance.detach(), slope, curvature)

    def points(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], row: Int[Tensor, " b"]) -> Points:
        """Cells for terms that do not look at latent vectors, of which an output may have several."""
        return Points(x, outputs, row, torch.zeros(len(x), 0, dtype=torch.float64, device=x.device))

    def _pulls(self, batch: CellBatch, data: _DataTerm) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """w γᵢ and w βᵢ with βᵢ = −2 ∂E/∂vᵢ and γᵢ = ∂E/∂μᵢ + βᵢ μᵢ, of cells as far as they can be trusted."""
        cells = data.f, data.variance, batch.y.to(data.f.dtype), batch.outputs[batch.column], batch.exposure
        slope, β, _ = trusted_sites(self.likelihood, *cells, (data.slope, data.curvature))
        return batch.cell_weight * (slope + β * data.mean), batch.cell_weight * β

    def _terms(self, batch: CellBatch, data: Float[Tensor, ""], q: KroneckerMoments) -> ElboTerms:
        kl_h = (batch.output_weight * self.own_kl(batch.outputs)).sum()
        return ElboTerms(batch.cell_weight * data, q.kl(), kl_h)

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "SeparablePredictor":
        """Components of the predictive mixture, with all that depends on q(u) alone computed once."""
        return SeparablePredictor(self, num_samples, seed)

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        return SeparableJoint(self, num_samples, seed)


class SeparablePredictor:
    """q(f) of any cells as a mixture over draws of their latent vectors."""

    def __init__(self, model: SeparableLatentModel, num_samples: int, seed: int):
        self.model, self.num_samples, self.seed = model, num_samples, seed
        self.q = model.posterior.moments()
        if model.num_components == 1:
            self.left, self.right = model.pair_whitening()
            self.width = model.Z_X.shape[0]
        else:
            Linv, S = model.dense_whitening(), torch.kron(self.q.left, self.q.right)
            # μ = kᵀ α and v = k(·, ·) − kᵀ C k with α = L⁻ᵀ m, C = L⁻ᵀ (I − S) L⁻¹
            self.alpha, self.C = Linv.T @ self.q.mean.flatten(), Linv.T @ (Linv - S @ Linv)
            self.width = Linv.shape[0]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "s b"], Float[Tensor, "s b"]]:
        """Means and variances of the components of f at cells (x, outputs)."""
        distinct, column = outputs.unique(return_inverse=True)
        draws = self.model.latents.sample(self.model.rows(distinct), self.num_samples, self.seed)
        # (s, distinct outputs, q, h)
        h = draws.unflatten(1, (len(distinct), self.model.num_components))
        mean, variance = self._pairs(x, h, column) if self.model.num_components == 1 else self._dense(x, h, column)
        points = self.model.points(x, outputs, torch.zeros_like(outputs))
        variance = variance.clamp(min=_MIN_VARIANCE) + self.model.terms.variance(points)
        return mean + self.model.terms.mean(points), variance

    def _pairs(self, x: Tensor, h: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Latent vectors are seen once for each output and draw, inputs once for each cell."""
        model, q = self.model, self.q
        shape = h.shape[:2]
        α = model.latents_covariance(h.flatten(0, 1)[:, 0], 0) @ self.left.T
        β = model.inputs_covariance(x, 0) @ self.right.T
        mean = ((α @ q.mean).view(*shape, -1)[:, column] * β).sum(-1)
        on_latents = kernel_diagonal(model.latent_kernels[0], h.flatten(0, 1)[:, 0]).view(shape)[:, column]
        prior = on_latents * kernel_diagonal(model.input_kernels[0], x / model.units)
        explained = α.square().sum(-1).view(shape)[:, column] * β.square().sum(-1)
        left = (α @ q.left * α).sum(-1).view(shape)[:, column]
        return mean, prior - explained + left * (β @ q.right * β).sum(-1)

    def _dense(self, x: Tensor, h: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        cells = x.expand(self.num_samples, *x.shape).flatten(0, 1)
        latents = h[:, column].flatten(0, 1)
        K = self.model.cross(cells, latents).flatten(1)
        variance = self.model.diagonal(cells, latents) - (K @ self.C * K).sum(-1)
        shape = (self.num_samples, len(x))
        return (K @ self.alpha).view(shape), variance.view(shape)
