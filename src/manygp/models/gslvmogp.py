"""GS-LVMOGP and LV-MOGP: a sum of kernels, each separable into one on inputs and one on latent vectors of outputs."""

from collections.abc import Iterator, Sequence

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.likelihoods import Likelihood
from manygp.linalg import safe_cholesky, triangular_inverse
from manygp.variational import CellBatch, ElboTerms, Latents
from manygp.variational.kronecker import (
    DenseFeatures,
    FactoredFeatures,
    Features,
    KroneckerPosterior,
    NaturalKronecker,
)

__all__ = ["SeparableLatentModel", "SeparablePredictor"]

_MIN_VARIANCE = 1e-8


class SeparableLatentModel(nn.Module):
    """Latent variable multi-output GP with a sum of Q separable kernels; Q = 1 is the LV-MOGP.

    Generative model: h_pq ~ N(m⁰_p, s I), g ~ GP(0, Σ_q k_X^q(x, x') k_H^q(h_pq, h_p'q)), f_p = b_p + g_p,
    y ~ p(y | f_p(x)); b_p is zero where outputs can be centred, and learned otherwise.

    Approximation: q(g, u, H) = p(g | u) q(u) Π_pq q(h_pq), u = g at all pairs of k points Z_X and j points
    (Z_H^1, …, Z_H^Q), Kuu = Σ_q K_H^q ⊗ K_X^q = L Lᵀ, u = L v, q(v) = N(vec M, S_H ⊗ S_X).

    Bound: Σ E_q(h) E_q(f)[log p(y_np | f)] − KL[q(u) ‖ p(u)] − Σ_pq KL[q(h_pq) ‖ p(h_pq)], with one draw of the latent
    vectors for each cell.

    Cost of a step on b cells: for Q = 1, L = L_H ⊗ L_X and nothing of size j k x j k exists, O(b (j² + k² + j k) + j³ +
    k³) time; for Q > 1, O(b (j k)² + (j k)³) time and O(b j k + (j k)²) memory.

    Parameters
    ----------
    input_kernels, latent_kernels
        k_X^q on the inputs in units and k_H^q on the latent vectors, Q of each.
    Z_X
        Inducing inputs in units, shape (k, d), shared by all q.
    Z_H
        Inducing latent vectors, shape (q, j, h).
    posterior
        How q(v) is stored.
    latents
        q(h) and p(h), whose row p Q + q is that of output p and component q.
    likelihood
        p(y | f).
    units
        What every input dimension is divided by, shape (d,).
    bias
        Constants b_p, shape (p, 1), or None for none.
    jitter
        Relative jitter of what is factorised.
    """

    posterior: KroneckerPosterior
    latents: Latents
    likelihood: Likelihood
    units: Tensor

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
        bias: Float[Tensor, "p 1"] | None = None,
        jitter: float = 1e-8,
    ):
        super().__init__()
        self.input_kernels, self.latent_kernels = nn.ModuleList(input_kernels), nn.ModuleList(latent_kernels)
        self.Z_X, self.Z_H = nn.Parameter(Z_X.double().clone()), nn.Parameter(Z_H.double().clone())
        self.posterior, self.latents, self.likelihood, self.jitter = posterior, latents, likelihood, jitter
        self.register_buffer("units", units.double())
        self.bias = None if bias is None else nn.Parameter(bias.double().clone())

    @property
    def num_components(self) -> int:
        """Number Q of separable kernels."""
        return self.Z_H.shape[0]

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return self.latents.num_outputs // self.num_components

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
        return self._terms(batch, *self._cells(batch, generator))

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step on q(u), then estimate the bound at the new q(u) from the same batch and draws."""
        features, diagonal = self._cells(batch, generator)
        if isinstance(self.posterior, NaturalKronecker):
            with torch.no_grad():
                mean, variance = features.marginals(diagonal, self.posterior.moments())
                y, outputs = batch.y.to(mean.dtype), batch.outputs[batch.column]
                f = mean + self.biases(outputs)
                slope, curvature = self.likelihood.site_derivatives(f, variance, y, outputs)
                # βᵢ = −2 ∂E/∂vᵢ and γᵢ = ∂E/∂μᵢ + βᵢ μᵢ; where the likelihood is not log-concave βᵢ is held at zero
                weight = batch.cell_weight * (-2.0 * curvature).clamp(min=0.0)
                statistics = features.statistics(batch.cell_weight * slope + weight * mean, weight)
            self.posterior.step(statistics, rate)
        return self._terms(batch, features, diagonal)

    def _cells(self, batch: CellBatch, generator: torch.Generator) -> tuple[Features, Float[Tensor, " b"]]:
        Q = self.num_components
        which = torch.arange(Q, device=batch.column.device)
        column = (batch.column.unsqueeze(-1) * Q + which).flatten()
        h = self.latents.rsample(self.rows(batch.outputs), column, generator)
        # The same draws in every dtype of the batch.
        h = h.view(-1, Q, self.latents.dim).to(batch.x.dtype)
        return self.features(batch.x, h), self.diagonal(batch.x, h).double()

    def _terms(self, batch: CellBatch, features: Features, diagonal: Float[Tensor, " b"]) -> ElboTerms:
        q = self.posterior.moments()
        mean, variance = features.marginals(diagonal, q)
        y, outputs = batch.y.to(mean.dtype), batch.outputs[batch.column]
        data = self.likelihood.expected_log_prob(mean + self.biases(outputs), variance, y, outputs).sum()
        kl_h = self.latents.kl(self.rows(batch.outputs)).view(-1, self.num_components).sum(-1)
        return ElboTerms(batch.cell_weight * data, q.kl(), (batch.output_weight * kl_h).sum())

    def rows(self, outputs: Int[Tensor, " p"]) -> Int[Tensor, " pq"]:
        """Rows of the latents that belong to some outputs, all components of one after another."""
        Q = self.num_components
        return (outputs.unsqueeze(-1) * Q + torch.arange(Q, device=outputs.device)).flatten()

    def biases(self, outputs: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        """b_p of the output of every cell."""
        if self.bias is None:
            return torch.zeros(len(outputs), dtype=self.units.dtype, device=outputs.device)
        return nn.functional.embedding(outputs, self.bias, sparse=self.latents.sparse).squeeze(-1)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with rows for each output, of which a step touches only a few."""
        yield from self.latents.parameters()
        if self.bias is not None:
            yield self.bias
        yield from self.likelihood.row_parameters()

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "SeparablePredictor":
        """Components of the predictive mixture, with all that depends on q(u) alone computed once."""
        return SeparablePredictor(self, num_samples, seed)


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
        return mean + self.model.biases(outputs), variance.clamp(min=_MIN_VARIANCE)

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
