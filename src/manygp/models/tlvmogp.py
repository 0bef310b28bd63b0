"""T-LVMOGP: one sparse GP in an embedding of inputs and latent vectors of outputs."""

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.functions import Joint
from manygp.kernels import cross_covariance, plain_covariance
from manygp.likelihoods import Gaussian, Likelihood
from manygp.models.cell_noise import CellNoise
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
    VecchiaEvidence,
    projected_rows,
)

# Slopes are computed in chunks of rows that stay in the cache.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 400_000, 512


class TransformedLatentModel(LatentVariableModel):
    """Transformed latent variable multi-output GP.

    Generative model: h_p ~ N(m⁰_p, s I), f ~ GP(0, k), f_p(x) = f(Φ(x, h_p)) + terms, and y ~ p(y | f_p(x)), with Φ a
    network on the concatenated pair (x, h_p), both in units of their own lengthscales. The paper's model has no terms;
    see `manygp.terms` for those that there are.

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
    terms
        What stands beside f: means, which all batches see, and covariances, which batches of groups see.
    sparse
        Whether gradients of the likelihood's parameters hold only the outputs that a batch touched.
    linear_share
        The share of the covariance of q(h_p) that predictions take as linear. A draw then covers the rest alone, and
        that share enters the variance of its component through the slope of the mean, so that a handful of narrow
        components does not pass for a broad distribution; the variance of the mixture is right for any share where f
        is linear in h.
    coordinates
        A GP over coordinates of the outputs for the prior of their latent vectors.
    num_neighbors
        Number of observed cells that a prediction is conditioned on beside q(u).

    Attributes
    ----------
    box
        Least and largest inputs in units, shape (2, d), beyond which Φ bends no more; None where it may.
    reach
        How far each input and latent dimension reaches, shape (d + h,): what is nearer is a neighbour first.
    observed
        The cells of the fit, which predictions from neighbours need; None without.
    cell_noise
        Gaussian noise that cells have beside that of their outputs; None without.
    """

    embedding: nn.Module
    gp: InducingGP
    box: Tensor | None
    reach: Tensor
    observed: ObservedCells | None
    cell_noise: CellNoise | None

    def __init__(
        self,
        embedding: nn.Module,
        gp: InducingGP,
        latents: Latents,
        likelihood: Likelihood,
        units: Float[Tensor, " dh"],
        terms: Sequence[Term] = (),
        sparse: bool = False,
        linear_share: float = 0.0,
        coordinates: CoordinatePrior | None = None,
        num_neighbors: int = 0,
    ):
        super().__init__(latents, likelihood, units, terms=terms, sparse=sparse)
        self.embedding, self.gp = embedding, gp
        self.linear_share, self.coordinates = linear_share, coordinates
        self.num_neighbors = num_neighbors
        self.observed, self.cell_noise, self.has_noise = None, None, True
        self.register_buffer("box", None)
        self.register_buffer("reach", torch.ones_like(units, dtype=torch.float64))

    @property
    def num_parameters(self) -> int:
        """Parameters but for kernel, likelihood and terms: those of Φ, P H + P H², M E, M + M².

        As the paper counts other models: factors of covariances as squares. Latent vectors without a covariance, or
        with a diagonal one, count what they have.
        """
        m, mean = len(self.gp.Z), self.latents.mean
        square = mean.numel() * self.latents.dim if self.latents.posterior == "full" else self.latents.scale.numel()
        network = sum(weights.numel() for weights in self.embedding.parameters())
        return network + mean.numel() + square + self.gp.Z.numel() + m + m**2

    def embed(self, x: Float[Tensor, "b d"], h: Float[Tensor, "b h"]) -> Float[Tensor, "b e"]:
        """Φ(x, h) of every pair, in the dtype of x; the network itself, any module, works in its own float64."""
        pairs = torch.cat([x.to(h.dtype), h], -1) / self.units
        if self.box is None:
            return self.embedding(pairs).to(x.dtype)
        # Beyond the inputs of the fit nothing is known of bends: they stay what they are at the edge.
        inside = torch.cat([pairs[:, : x.shape[-1]].clamp(*self.box), pairs[:, x.shape[-1] :]], -1)
        return (self.embedding(inside) + pairs - inside).to(x.dtype)

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound from a batch."""
        q = self.gp.posterior.moments()
        return self._terms(batch, self._evidence(batch, generator)[0].expected_log_lik(q), q)

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """Take a natural step on q(u), and estimate the bound from the same batch and draws.

        It is the bound at the new q(u) for Gaussian noise, and at the old one for likelihoods that are evaluated cell
        by cell, where the step has done the work for it.
        """
        evidence, h = self._evidence(batch, generator)
        data, q = self.gp.natural_step(evidence, batch.cell_weight, rate, batch.exchange)
        return self._terms(batch, data + self._steadied(batch, evidence, h, q), q)

    def _evidence(self, batch: CellBatch, generator: torch.Generator) -> tuple[Evidence, Float[Tensor, "b h"]]:
        """The evidence of a batch at draws of latent vectors, and these."""
        if batch.groups is not None:
            # Neighbours would not be alike at draws of their own.
            h = self.latents.rsample(batch.outputs, batch.column, generator, shared=True, key=batch.key)
            return self.group_evidence(batch, h), h
        h = self.latents.rsample(batch.outputs, batch.column, generator, key=batch.key)
        outputs = batch.outputs.index_select(0, batch.column)
        beside = self.terms.mean(Points(batch.x, outputs, batch.row, h))
        extra = batch.exposure
        if self.cell_noise is not None:
            extra = self.cell_noise.beside(self.output_noise(outputs), batch.row, batch.noise)
        return self.gp.evidence(self.embed(batch.x, h), batch.y, outputs, self.likelihood, extra, beside), h

    def _steadied(
        self, batch: CellBatch, evidence: Evidence, h: Float[Tensor, "b h"], q: PosteriorMoments
    ) -> Float[Tensor, ""]:
        """A control variate for draws that all cells of an output share: zero, with a gradient that steadies theirs.

        That gradient is zero on average where q(h) is narrow, and not quite where it is wide, since S follows draws.

        With f linear in h around the mean m, as predictions take it, z = z₀ − J (h − m), and what draws estimate is
        known:

            E |z|² = |z₀|² + Σ_p |J_p L_p|²,   J_p = L⁻¹ ∂(A m) / ∂h_p
        """
        if not isinstance(evidence, VecchiaEvidence) or self.latents.posterior == "point" or not h.requires_grad:
            return h.new_zeros(())
        outputs, x = batch.outputs.index_select(0, batch.column), batch.x.double()
        m = self.latents.means(batch.outputs).index_select(0, batch.column)
        at = m.detach().requires_grad_()
        with torch.no_grad():
            α = self.gp.whitening().T @ q.mean
        # A m = K L⁻ᵀ m
        explained = cross_covariance(self.gp.kernel, self.embed(x, at), self.gp.Z.detach()) @ α
        slope = (
            torch.autograd.grad(explained.sum(), at)[0] + self.terms.slope(Points(x, outputs, batch.row, m)).detach()
        )
        L = self.latents.factor(batch.outputs).flatten(1).index_select(0, batch.column).unflatten(1, (m.shape[1], -1))
        moved, drawn = (evidence.whitened((slope * (where - m.detach())).sum(-1)) for where in (m, h))
        with torch.no_grad():
            z0 = evidence.misfit(q) + drawn
        known = (z0 - moved).square().sum() + evidence.spread((slope.unsqueeze(-2) @ L).squeeze(-2), outputs)
        control = 0.5 * ((z0 - drawn).square().sum() - known)
        return control - control.detach()

    def group_evidence(self, batch: CellBatch, h: Float[Tensor, "b h"]) -> VecchiaEvidence:
        """Groups of cells at latent vectors h given their conditioning sets, see `VecchiaEvidence`."""
        assert batch.groups is not None
        outputs, at = batch.outputs.index_select(0, batch.column), batch.groups.index.flatten()
        # What inducing points leave are differences, in which single precision has no digits.
        x, y, shape = batch.x.double(), batch.y.double(), batch.groups.index.shape
        e, points = self.embed(x, h), Points(x, outputs, batch.row, h)
        A = self.explained(e)
        group = Points(*(part.index_select(0, at).unflatten(0, shape) for part in vars(points).values()))
        R = self.covariance(group, e.index_select(0, at).unflatten(0, shape))
        noise = self.noise_of(outputs, batch.row, batch.noise)
        R = R + torch.diag_embed(noise.index_select(0, at).unflatten(0, shape))
        return VecchiaEvidence.from_groups(A, R, y - self.terms.mean(points), batch.groups)

    def noise_of(
        self, outputs: Int[Tensor, " b"], row: Int[Tensor, " b"], known: Float[Tensor, " b"] | None
    ) -> Float[Tensor, " b"]:
        """Noise variance of observed cells: that of their outputs, and what they have beside it."""
        own = self.output_noise(outputs)
        return own if self.cell_noise is None else own + self.cell_noise.beside(own, row, known)

    def output_noise(self, outputs: Int[Tensor, "*g"]) -> Float[Tensor, "*g"]:
        """Noise variance of some outputs with Gaussian observations."""
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
    def coordinates_of(
        self, x: Float[Tensor, "n d"], outputs: Int[Tensor, " p"]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "p h"]]:
        """Where inputs and outputs lie, in units of how far they reach."""
        d = x.shape[1]
        return x.detach().double() / self.reach[:d], self.latents.mean[outputs].double() / self.reach[d:]

    def covariance(self, a: Points, e: Float[Tensor, "*g c e"]) -> Float[Tensor, "*g c c"]:
        """Covariance of f and all terms between cells of a group with embeddings e."""
        return cross_covariance(self.gp.kernel, e, e) + self.terms.covariance(a, a)

    def _terms(self, batch: CellBatch, data: Float[Tensor, ""], q: PosteriorMoments) -> ElboTerms:
        kl_h = (batch.output_weight * self.own_kl(batch.outputs)).sum()
        if self.cell_noise is not None:
            kl_h = kl_h + batch.cell_weight * batch.total(self.cell_noise.penalty(batch.row))
        return ElboTerms(batch.cell_weight * data, q.kl(), kl_h)

    def without_noise(self) -> "TransformedLatentModel":
        """The same model for predictions of functions: what terms take for noise is left out."""
        new = copy.copy(self)
        new._modules = dict(self._modules)
        new.terms, new.has_noise = self.terms.without_noise(), False
        return new

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "Predictor | NeighborPredictor":
        """Components of the predictive mixture, with all that depends on q(u) alone computed once."""
        if self.observed is not None:
            return NeighborPredictor(self, self.num_neighbors, self.has_noise)
        return Predictor(self, self.gp.conditional(), num_samples, seed)

    @torch.no_grad()
    def linear_predictor(self) -> "Predictor":
        """One component, in which f is linear in the latent vectors: no draws, and much faster than the mixture."""
        return Predictor(self, self.gp.conditional(), 1, 0, linear_share=1.0)

    @torch.no_grad()
    def nonlinearity(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"], num_samples: int, seed: int
    ) -> Float[Tensor, " b"]:
        """What is not linear in the latent vectors, as a share of the variance of f at some cells."""
        conditional = self.gp.conditional()
        mean, variance = Predictor(self, conditional, 1, 0, linear_share=1.0)(x, outputs)
        h = self.latents.sample(outputs, num_samples, seed)
        m = self.latents.means(outputs)
        _, _, slope = moments_and_slopes(self, conditional, x, m)
        slope = slope + self.terms.slope(Points(x, outputs, torch.zeros_like(outputs), m))
        pairs = x.expand(num_samples, *x.shape).flatten(0, 1)
        f = conditional(self.embed(pairs, h.flatten(0, 1)))[0].view(num_samples, -1)
        f = f + self.terms.mean(Points(x, outputs, torch.zeros_like(outputs), h))
        # E (μ(h) − μ(m) − gᵀ(h − m))² over draws
        rest = f - mean - torch.einsum("bh,sbh->sb", slope, h - m)
        return rest.square().mean(0) / variance[0]

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        if self.observed is not None:
            return TwoScaleJoint(self, self.num_neighbors, self.has_noise)
        return TransformedJoint(self, num_samples, seed)


class Predictor:
    """q(f) of any cells as a mixture over draws of their latent vectors."""

    def __init__(
        self,
        model: TransformedLatentModel,
        conditional: Conditional,
        num_samples: int,
        seed: int,
        linear_share: float | None = None,
    ):
        self.model, self.conditional, self.num_samples, self.seed = model, conditional, num_samples, seed
        self.share = model.linear_share if linear_share is None else linear_share
        self.width = conditional.alpha.shape[0]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "s b"], Float[Tensor, "s b"]]:
        """Means and variances of the components of f at cells (x, outputs)."""
        model, shape = self.model, (self.num_samples, x.shape[0])
        distinct, column = outputs.unique(return_inverse=True)
        share = self.share
        h = model.latents.sample(distinct, self.num_samples, self.seed, (1.0 - share) ** 0.5)[:, column]
        points = Points(x, outputs, torch.zeros_like(outputs), h)
        pairs = x.expand(*shape, -1).flatten(0, 1)
        if share:
            mean, variance, slope = moments_and_slopes(model, self.conditional, pairs, h.flatten(0, 1))
            # v + λ |Lᵀ ∂μ/∂h|² for the share λ of the covariance that is not drawn
            L, stretch = model.latents.factor(distinct)[column], model.latents.stretches(self.num_samples)
            slope = slope.view(*shape, -1) + model.terms.slope(points)
            linear = torch.einsum("sbi,bij->sbj", slope, L).square().sum(-1)
            variance = variance.view(shape) + share * stretch.square().unsqueeze(-1) * linear
        else:
            mean, variance = self.conditional(model.embed(pairs, h.flatten(0, 1)))
        # Away from neighbours nothing is known of covariances.
        at_means = Points(x, outputs, points.row, model.latents.means(outputs))
        return (
            mean.view(shape) + model.terms.mean(points),
            variance.view(shape) + model.terms.variance(at_means, model.has_noise),
        )


def moments_and_slopes(
    model: TransformedLatentModel, conditional: Conditional, x: Float[Tensor, "b d"], h: Float[Tensor, "b h"]
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Float[Tensor, "b h"]]:
    """μ, v and ∂μ/∂h of f at pairs (x, h), without terms.

    One backward pass has all slopes, since a mean depends on its own h only.
    """
    mean, variance, slope = h.new_empty(len(h)), h.new_empty(len(h)), torch.empty_like(h)
    size = max(_MIN_CHUNK_ROWS, _CHUNK_NUMBERS // conditional.alpha.shape[0])
    for begin in range(0, len(h), size):
        rows = slice(begin, begin + size)
        with torch.enable_grad():
            own = h[rows].detach().requires_grad_()
            μ, variance[rows] = conditional.with_slopes(model.embed(x[rows], own))
            slope[rows] = torch.autograd.grad(μ.sum(), own)[0]
        mean[rows] = μ.detach()
    return mean, variance, slope
