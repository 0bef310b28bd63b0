"""T-LVMOGP from inducing points alone: a mixture over draws of the latent vectors, each a sparse GP of all cells."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import SHARED, At, Block, Known, Left, Process, Rows, Spectrum, View, cell_keys, input_keys
from manygp.kernels import cross_covariance, kernel_diagonal, plain_covariance
from manygp.linalg import safe_cholesky
from manygp.terms import Points, Term, Terms

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = [
    "EmbeddingKernel",
    "OfTerm",
    "TransformedJoint",
    "blocks_of_terms",
    "inducing_process",
    "prior_covariances",
    "term_block",
]

# Random features of what inducing points leave of the kernel, and of each output's own part.
NUM_FEATURES, NUM_OWN_FEATURES = 512, 64
# Streams of coefficients; terms have numbers from the last one on.
KNOWN, LEFT, LATENT, OBSERVED, TERMS = range(1, 6)


@dataclass(frozen=True)
class EmbeddingKernel:
    """The kernel on embeddings, by elementary operations where gradients of gradients are wanted."""

    kernel: Kernel

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return (plain_covariance if a.requires_grad or b.requires_grad else cross_covariance)(self.kernel, a, b)

    def diagonal(self, a: Tensor) -> Tensor:
        """k(aᵢ, aᵢ)."""
        return kernel_diagonal(self.kernel, a)


def inducing_process(model: "TransformedLatentModel", seed: int, num_features: int = NUM_FEATURES) -> Process:
    """The sparse GP of a model in its embedding space."""
    gp, q = model.gp, model.gp.posterior.moments()
    spectrum = Spectrum.of(gp.kernel, num_features, seed)
    root = safe_cholesky(q.covariance)
    return Process(EmbeddingKernel(gp.kernel), gp.Z.detach(), gp.whitening(), q.mean, root, spectrum=spectrum)


@dataclass(frozen=True, kw_only=True)
class OfTerm(Rows):
    """A term at cells: rows are random features where it is a process, its covariance is exact."""

    term: Term = field(repr=False)
    points: Points = field(repr=False)

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        return self.term.covariance(self.points[a,], self.points[b,]).unsqueeze(0)


def blocks_of_terms(terms: Terms, points: Points, has_noise: bool) -> list[Block]:
    """What is unknown of terms at cells, where no neighbours tell about them."""
    blocks = list[Block]()
    for number, term in enumerate(terms):
        if has_noise or not term.is_noise:
            for part, (rows, key) in enumerate(term.rows(points, NUM_OWN_FEATURES, 0)):
                stream = TERMS + 2 * number + part
                blocks.append(term_block(term, points, stream=stream, key=key, values_of=rows.unsqueeze(0)))
    return blocks


def term_block(term: Term, points: Points, **parts: Any) -> Block:
    """Rows of a term, whose covariance is exact."""
    return OfTerm(term=term, points=points, **parts) if term.is_process else Rows(**parts)


def prior_covariances(
    model: "TransformedLatentModel", x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
) -> dict[str, Float[Tensor, "a b"]]:
    """Covariances before any data between some cells and others, by part, latent vectors at their means."""
    a, b = (
        Points(inputs, which, input_keys(inputs), model.latents.means(which).detach())
        for inputs, which in ((x, outputs), (other_x, other_outputs))
    )
    shared = cross_covariance(model.gp.kernel, model.embed(a.x, a.h), model.embed(b.x, b.h))
    return {SHARED: shared, **{term.name: term.covariance(a, b) for term in model.terms}}


class TransformedJoint:
    """f of any cells together, see `Predictor` for single ones."""

    num_points, output_places = 1, None

    def __init__(self, model: "TransformedLatentModel", num_samples: int, seed: int):
        self.model, self.num_components, self.seed = model, num_samples, seed
        self.process = inducing_process(model, seed)
        self.width = len(model.gp.Z) + NUM_FEATURES

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        model, share, keep = self.model, self.model.linear_share, x.requires_grad
        distinct, column = outputs.unique(return_inverse=True)
        draws = model.latents.sample(distinct, self.num_components, self.seed, (1.0 - share) ** 0.5)
        with torch.set_grad_enabled(keep or share > 0.0):
            h = draws[:, column].requires_grad_(share > 0.0)
            # (s, b, e)
            e = model.embed(x.repeat(len(h), 1), h.flatten(0, 1)).unflatten(0, h.shape[:2])
            at = At(self.process, e)
            mean = at.mean()
            slope = torch.autograd.grad(mean.sum(), h, create_graph=keep)[0] if share else None
        if not keep:
            h, mean, K = h.detach(), mean.detach(), at.K.detach()
            at = At(self.process, e.detach())
            at.K = K
        own = cell_keys(x, outputs) if self.process.spectrum is None else None
        blocks: list[Block] = [Known(stream=KNOWN, at=at), Left(stream=LEFT, at=at, key=own)]
        points = Points(x, outputs, input_keys(x), h)
        if slope is not None:
            # √λ Lᵀ ∂μ/∂h for the share λ of the covariance that is not drawn
            L, stretch = model.latents.factor(distinct).detach()[column], model.latents.stretches(self.num_components)
            slope = slope + model.terms.slope(points).detach()
            rows = share**0.5 * stretch.view(-1, 1, 1) * torch.einsum("sbi,bij->sbj", slope, L)
            blocks.append(Rows(stream=LATENT, key=outputs, values_of=rows))
        at_means = replace(points, h=model.latents.means(outputs).detach())
        return View(mean + model.terms.mean(points), blocks + blocks_of_terms(model.terms, at_means, model.has_noise))

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others, by part."""
        return prior_covariances(self.model, x, outputs, other_x, other_outputs)
