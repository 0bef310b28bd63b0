"""T-LVMOGP: one sparse GP in an embedding of inputs and latent vectors of outputs."""

import copy
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.kernels import cross_covariance, is_fused, plain_covariance
from manygp.likelihoods import Gaussian, Likelihood
from manygp.models.joint.transformed import TransformedJoint
from manygp.models.joint.two_scales import TwoScaleJoint
from manygp.models.latent_variable import LatentVariableModel
from manygp.models.neighbors import NeighborPredictor, ObservedCells
from manygp.terms import Points, Term
from manygp.variational import (
    CellBatch,
    Conditional,
    CoordinatePrior,
    ElboTerms,
    Evidence,
    InducingGP,
    Latents,
    PosteriorMoments,
    RowEffects,
    VecchiaEvidence,
    projected_rows,
)

__all__ = ["Predictor", "TransformedLatentModel", "moments_and_slopes"]

# Slopes are computed in chunks of rows that stay in the cache.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 400_000, 512


class TransformedLatentModel(LatentVariableModel):
    """Transformed latent variable multi-output GP.

    Generative model: h_p ~ N(m⁰_p, s I), f ~ GP(0, k), f_p(x) = c_p + xᵀ (W h_p + w + δ_p) + f(Φ(x, h_p)), and
    y ~ p(y | f_p(x)), with Φ a network on the concatenated pair (x, h_p), both in units of their own lengthscales. The
    levels c_p ~ N(c⁰_p, 1) are learned as points, or are 0 where y is scaled. A model that has a trend learns W and w
    as points, and the deviations δ_p of single outputs are as its start has set them; otherwise there is no such term.

    Approximation: q(f, u, H) = p(f | u) q(u) Π_p q(h_p), u = f(Z) with Z in the embedding space.

    Bound (L₃ of the paper): Σ E_q(h_p) E_q(f)[log p(y_np | f)] − KL[q(u) ‖ p(u)] − Σ_p KL[q(h_p) ‖ p(h_p)], with one
    draw of h_p for each cell.

    Cost of a step on b cells of p outputs: O(b m² + m³) time, O(b m + m²) memory, whatever the size of the table.

    Parameters
    ----------
    embedding
        Φ, a module on rows of d + h values.
    gp
        The sparse GP in the embedding space.
    latents
        q(h) and p(h) of all outputs.
    likelihood
        p(y | f).
    units
        What every input and latent dimension is divided by before Φ, shape (d + h,).
    has_levels
        Whether every output has a level of its own.
    sparse
        Whether gradients of levels and of the likelihood's parameters hold only the outputs that a batch touched.
    linear_share
        The share of the covariance of q(h_p) that predictions take as linear. A draw then covers the rest alone, and
        that share enters the variance of its component through the slope of the mean, so that a handful of narrow
        components does not pass for a broad distribution; the variance of the mixture is right for any share where f
        is linear in h.
    coordinates
        A GP over coordinates of the outputs for the prior of their latent vectors.
    has_trend
        Whether functions are linear in x beside f, with slopes that are linear in h but for deviations of an output.
    terms
        Gaussian parts of the observations beside f, which batches of groups see.
    num_neighbors
        Number of observed cells that a prediction is conditioned on beside q(u).

    Attributes
    ----------
    slopes, own_slopes
        [W, w], shape (d, h + 1), and δ, shape (p, d), for inputs in units of their lengthscales; None without a trend.
    row_effects
        Effects of single inputs on all outputs, which predictions have beside f; None before they are found.
    observed
        The cells of the fit, which predictions from neighbours need; None without.
    """

    embedding: nn.Module
    gp: InducingGP
    own_slopes: Tensor | None
    row_effects: RowEffects | None
    observed: ObservedCells | None

    def __init__(
        self,
        embedding: nn.Module,
        gp: InducingGP,
        latents: Latents,
        likelihood: Likelihood,
        units: Float[Tensor, " dh"],
        has_levels: bool = False,
        sparse: bool = False,
        linear_share: float = 0.0,
        coordinates: CoordinatePrior | None = None,
        has_trend: bool = False,
        terms: Sequence[Term] = (),
        num_neighbors: int = 0,
    ):
        super().__init__(latents, likelihood, units, has_levels=has_levels, sparse=sparse)
        self.embedding, self.gp = embedding, gp
        self.linear_share, self.coordinates = linear_share, coordinates
        self.set_terms(terms)
        self.num_neighbors = num_neighbors
        self.observed, self.has_noise = None, True
        flat = torch.zeros(len(units) - latents.dim, latents.dim + 1, dtype=torch.float64)
        self.slopes = nn.Parameter(flat) if has_trend else None
        self.row_effects = None
        self.register_buffer("own_slopes", flat.new_zeros(latents.num_outputs, len(flat)) if has_trend else None)

    def set_terms(self, terms: Sequence[Term]) -> None:
        """Have these terms and no others."""
        self.terms = cast("Sequence[Term]", nn.ModuleList(terms))

    @property
    def num_parameters(self) -> int:
        """Parameters but for kernel, likelihood, levels and trend: those of Φ, P H + P H², M E, M + M².

        As the paper counts other models: factors of covariances as squares. Latent vectors without a covariance, or
        with a diagonal one, count what they have.
        """
        m, mean = len(self.gp.Z), self.latents.mean
        square = mean.numel() * self.latents.dim if self.latents.posterior == "full" else self.latents.scale.numel()
        network = sum(weights.numel() for weights in self.embedding.parameters())
        return network + mean.numel() + square + self.gp.Z.numel() + m + m**2

    def embed(self, x: Float[Tensor, "b d"], h: Float[Tensor, "b h"]) -> Float[Tensor, "b e"]:
        """Φ(x, h) of every pair, in the dtype of x; the network itself, any module, works in its own float64."""
        return self.embedding(torch.cat([x.to(h.dtype), h], -1) / self.units).to(x.dtype)

    def trend(
        self, x: Float[Tensor, "b d"], h: Float[Tensor, "b h"], outputs: Int[Tensor, " b"] | None = None
    ) -> Float[Tensor, " b"] | None:
        """xᵀ (W h + w + δ) of every pair in the dtype of x, δ = 0 for outputs not told; None without a trend."""
        if self.slopes is None or self.own_slopes is None:
            return None
        d = x.shape[-1]
        x, h, dtype = x.to(h.dtype) / self.units[:d], h / self.units[d:], x.dtype
        along = x @ self.slopes
        trend = (along[:, :-1] * h).sum(-1) + along[:, -1]
        own = 0.0 if outputs is None else (x * self.own_slopes[outputs]).sum(-1)
        return (trend + own).to(dtype)

    @torch.no_grad()
    def set_trend(self, slopes: Float[Tensor, "d k"], own: Float[Tensor, "p d"]) -> None:
        """Set [W, w] or w alone, and δ, for inputs and latent vectors as they come."""
        assert self.slopes is not None
        assert self.own_slopes is not None
        d, h = len(self.slopes), self.latents.dim
        self.own_slopes.copy_(self.units[:d] * own)
        self.slopes.zero_()
        self.slopes[:, h + 1 - slopes.shape[1] :] = self.units[:d, None] * slopes
        self.slopes[:, :-1] *= self.units[d:]

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound from a batch."""
        q = self.gp.posterior.moments()
        return self._terms(batch, self._evidence(batch, generator).expected_log_lik(q), q)

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step on q(u), and estimate the bound from the same batch and draws.

        It is the bound at the new q(u) for Gaussian noise, and at the old one for likelihoods that are evaluated cell
        by cell, where the step has done the work for it.
        """
        evidence = self._evidence(batch, generator)
        return self._terms(batch, *self.gp.natural_step(evidence, batch.cell_weight, rate))

    def _evidence(self, batch: CellBatch, generator: torch.Generator) -> Evidence:
        if batch.groups is not None:
            return self._group_evidence(batch, generator)
        h = self.latents.rsample(batch.outputs, batch.column, generator)
        outputs, level = batch.outputs[batch.column], self.levels(batch.outputs)
        beside, trend = None if level is None else level.index_select(0, batch.column), self.trend(batch.x, h, outputs)
        if trend is not None:
            beside = trend if beside is None else beside + trend
        return self.gp.evidence(self.embed(batch.x, h), batch.y, outputs, self.likelihood, batch.exposure, beside)

    def _group_evidence(self, batch: CellBatch, generator: torch.Generator) -> VecchiaEvidence:
        """Groups of cells given their conditioning sets, see `VecchiaEvidence`."""
        assert batch.groups is not None
        assert batch.row is not None
        outputs, at = batch.outputs.index_select(0, batch.column), batch.groups.index.flatten()
        # Neighbours would not be alike at draws of their own.
        h = self.latents.rsample(batch.outputs, batch.column, generator, shared=True)
        # What inducing points leave are differences, in which single precision has no digits.
        x, y, shape = batch.x.double(), batch.y.double(), batch.groups.index.shape
        e, trend = self.embed(x, h), self.trend(x, h, outputs)
        A = self.explained(e)
        group = Points(*(part.index_select(0, at).unflatten(0, shape) for part in (x, outputs, batch.row, h)))
        R = self.covariance(group, e.index_select(0, at).unflatten(0, shape))
        R = R + torch.diag_embed(self.noise_of(group.outputs))
        return VecchiaEvidence.from_groups(A, R, y if trend is None else y - trend, batch.groups)

    def noise_of(self, outputs: Int[Tensor, "*g"]) -> Float[Tensor, "*g"]:
        """Noise variance of cells of some outputs, for groups, which are of Gaussian observations."""
        assert isinstance(self.likelihood, Gaussian)
        return self.likelihood.noise_of(outputs)

    def explained(self, e: Float[Tensor, "b e"], plain: bool = False) -> Float[Tensor, "b m"]:
        """A = K L⁻ᵀ: what inducing points explain of cells with embeddings e, f = A v + the rest.

        `plain` is for gradients of gradients.
        """
        gp = self.gp
        with torch.no_grad():
            Linv = gp.whitening()
        if plain:
            return plain_covariance(gp.kernel, e, gp.Z) @ Linv.T
        Kuu = cross_covariance(gp.kernel, gp.Z, gp.Z)
        return projected_rows(cross_covariance(gp.kernel, e, gp.Z), Kuu, Linv)

    @torch.no_grad()
    def coordinates_of(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> Float[Tensor, "b e"]:
        """Cells in the embedding space, in lengthscales of the kernel: close means correlated."""
        e, kernel = self.embed(x, self.latents.mean[outputs]), self.gp.kernel
        return e / kernel.base_kernel.lengthscale if is_fused(kernel) else e

    def covariance(self, a: Points, e: Float[Tensor, "*g c e"]) -> Float[Tensor, "*g c c"]:
        """Covariance of f and all terms between cells of a group with embeddings e."""
        total = cross_covariance(self.gp.kernel, e, e)
        for term in self.terms:
            total = total + term.covariance(a, a)
        return total

    def own_kl(self, outputs: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        kl = super().own_kl(outputs)
        for term in self.terms:
            kl = kl + term.negative_log_prior(outputs)
        return kl

    def row_parameters(self) -> Iterator[nn.Parameter]:
        yield from super().row_parameters()
        for term in self.terms:
            yield from term.row_parameters()

    def _terms(self, batch: CellBatch, data: Float[Tensor, ""], q: PosteriorMoments) -> ElboTerms:
        kl_h = (batch.output_weight * self.own_kl(batch.outputs)).sum()
        return ElboTerms(batch.cell_weight * data, q.kl(), kl_h)

    def without_noise(self) -> "TransformedLatentModel":
        """The same model for predictions of functions: effects of which nothing is known are noise and left out."""
        new = copy.copy(self)
        new._modules = dict(self._modules)
        new.row_effects = None if self.row_effects is None else self.row_effects.without_noise()
        new.has_noise = False
        return new

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "Predictor | NeighborPredictor":
        """Components of the predictive mixture, with all that depends on q(u) alone computed once."""
        if self.observed is not None:
            return NeighborPredictor(self, self.num_neighbors, self.has_noise)
        return Predictor(self, self.gp.conditional(), num_samples, seed)

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        if self.observed is not None:
            return TwoScaleJoint(self, self.num_neighbors, self.has_noise)
        return TransformedJoint(self, num_samples, seed)


class Predictor:
    """q(f) of any cells as a mixture over draws of their latent vectors."""

    def __init__(self, model: TransformedLatentModel, conditional: Conditional, num_samples: int, seed: int):
        self.model, self.conditional, self.num_samples, self.seed = model, conditional, num_samples, seed
        self.width = conditional.alpha.shape[0]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "s b"], Float[Tensor, "s b"]]:
        """Means and variances of the components of f at cells (x, outputs)."""
        model, shape = self.model, (self.num_samples, x.shape[0])
        distinct, column = outputs.unique(return_inverse=True)
        share = model.linear_share
        h = model.latents.sample(distinct, self.num_samples, self.seed, (1.0 - share) ** 0.5)[:, column].flatten(0, 1)
        pairs = x.expand(self.num_samples, *x.shape).reshape(-1, x.shape[-1])
        if share:
            repeated = outputs.repeat(self.num_samples)
            mean, variance, slope = moments_and_slopes(model, self.conditional, pairs, h, repeated)
            # v + λ |Lᵀ ∂μ/∂h|² for the share λ of the covariance that is not drawn
            L, stretch = model.latents.factor(distinct)[column], model.latents.stretches(self.num_samples)
            linear = torch.einsum("sbi,bij->sbj", slope.view(*shape, -1), L).square().sum(-1)
            variance = variance.view(shape) + share * stretch.square().unsqueeze(-1) * linear
        else:
            mean, variance = self.conditional(model.embed(pairs, h))
            trend = model.trend(pairs, h, outputs.repeat(self.num_samples))
            mean = mean if trend is None else mean + trend
        mean, variance, level = mean.view(shape), variance.view(shape), model.levels(outputs)
        if model.level_variance is not None:
            variance = variance + model.level_variance[outputs, 0]
        if model.row_effects is not None:
            of_row, unknown = model.row_effects(x, outputs)
            mean, variance = mean + of_row, variance + unknown
        # Away from neighbours nothing is known of the terms.
        points = Points(x, outputs, torch.zeros_like(outputs), model.latents.means(outputs))
        for term in model.terms:
            if model.has_noise or not term.is_noise:
                variance = variance + term.variance(points)
        return mean if level is None else mean + level, variance


def moments_and_slopes(
    model: TransformedLatentModel,
    conditional: Conditional,
    x: Float[Tensor, "b d"],
    h: Float[Tensor, "b h"],
    outputs: Int[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, "b h"]]:
    """μ, v and ∂μ/∂h of f and the trend at pairs (x, h).

    One backward pass has all slopes, since a mean depends on its own h only.
    """
    mean, variance, slope = h.new_empty(len(h)), h.new_empty(len(h)), torch.empty_like(h)
    size = max(_MIN_CHUNK_ROWS, _CHUNK_NUMBERS // conditional.alpha.shape[0])
    for begin in range(0, len(h), size):
        rows = slice(begin, begin + size)
        with torch.enable_grad():
            own = h[rows].detach().requires_grad_()
            μ, variance[rows] = conditional.with_slopes(model.embed(x[rows], own))
            trend = model.trend(x[rows], own, None if outputs is None else outputs[rows])
            μ = μ if trend is None else μ + trend
            slope[rows] = torch.autograd.grad(μ.sum(), own)[0]
        mean[rows] = μ.detach()
    return mean, variance, slope
