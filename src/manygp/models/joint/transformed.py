"""T-LVMOGP from inducing points alone: a mixture over draws of the latent vectors, each a sparse GP of all cells."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import At, Block, Known, Left, Process, Rows, Spectrum, View, cell_keys, input_keys
from manygp.kernels import cross_covariance, kernel_diagonal, plain_covariance
from manygp.linalg import safe_cholesky
from manygp.terms import Points, Term
from manygp.variational import KnownInputs

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["EmbeddingKernel", "OfTerm", "TransformedJoint", "inducing_process", "level_blocks"]

# Random features of what inducing points leave of the kernel, and of each output's own part.
NUM_FEATURES, NUM_OWN_FEATURES = 512, 64
# Streams of coefficients; terms have numbers from the last one on.
KNOWN, LEFT, LATENT, LEVEL, ROW, OBSERVED, TERMS = range(1, 8)


@dataclass(frozen=True)
class EmbeddingKernel:
    """The kernel on embeddings, by elementary operations where gradients of gradients are wanted."""

    kernel: Kernel

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return (plain_covariance if a.requires_grad or b.requires_grad else cross_covariance)(self.kernel, a, b)

    def diagonal(self, a: Tensor) -> Tensor:
        """k(aᵢ, aᵢ)."""
        return kernel_diagonal(self.kernel, a)


def inducing_process(model: "TransformedLatentModel", seed: int) -> Process:
    """The sparse GP of a model in its embedding space."""
    gp, q = model.gp, model.gp.posterior.moments()
    spectrum = Spectrum.of(gp.kernel, NUM_FEATURES, seed)
    root = safe_cholesky(q.covariance)
    return Process(EmbeddingKernel(gp.kernel), gp.Z.detach(), gp.whitening(), q.mean, root, spectrum=spectrum)


def level_blocks(variance: Tensor | None, outputs: Int[Tensor, " b"]) -> list[Block]:
    """What is unknown of the levels of outputs."""
    if variance is None:
        return []
    return [Rows(stream=LEVEL, key=outputs, values_of=variance[outputs].sqrt().unsqueeze(0))]


@dataclass(frozen=True, kw_only=True)
class OfTerm(Rows):
    """A term at cells: rows are random features where it is a process, its covariance is exact."""

    term: Term = field(repr=False)
    points: Points = field(repr=False)

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        return self.term.covariance(self.points[a,], self.points[b,]).unsqueeze(0)


class TransformedJoint:
    """f of any cells together, see `Predictor` for single ones."""

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
            trend = model.trend(x.repeat(len(h), 1), h.flatten(0, 1), outputs.repeat(len(h)))
            mean = mean if trend is None else mean + trend.view(mean.shape)
            slope = torch.autograd.grad(mean.sum(), h, create_graph=keep)[0] if share else None
        if not keep:
            mean, K = mean.detach(), at.K.detach()
            at = At(self.process, e.detach())
            at.K = K
        level = model.levels(outputs)
        mean = mean if level is None else mean + level.detach()
        own = cell_keys(x, outputs) if self.process.spectrum is None else None
        blocks: list[Block] = [Known(stream=KNOWN, at=at), Left(stream=LEFT, at=at, key=own)]
        if slope is not None:
            # √λ Lᵀ ∂μ/∂h for the share λ of the covariance that is not drawn
            L, stretch = model.latents.factor(distinct).detach()[column], model.latents.stretches(self.num_components)
            rows = share**0.5 * stretch.view(-1, 1, 1) * torch.einsum("sbi,bij->sbj", slope, L)
            blocks.append(Rows(stream=LATENT, key=outputs, values_of=rows))
        blocks += level_blocks(model.level_variance, outputs)
        blocks += self._terms(x, outputs)
        if model.row_effects is not None:
            of_row, parts = self._row_effects(x, outputs)
            mean, blocks = mean + of_row, blocks + parts
        return View(mean, blocks)

    def _terms(self, x: Tensor, outputs: Tensor) -> list[Block]:
        """Away from neighbours nothing is known of the terms."""
        model, blocks = self.model, list[Block]()
        points = Points(x, outputs, input_keys(x), model.latents.means(outputs).detach())
        for number, term in enumerate(model.terms):
            if model.has_noise or not term.is_noise:
                rows, key = term.rows(points, NUM_OWN_FEATURES, self.seed)
                parts = rows.unsqueeze(0)
                blocks.append(OfTerm(stream=TERMS + number, key=key, values_of=parts, term=term, points=points))
        return blocks

    def _row_effects(self, x: Tensor, outputs: Tensor) -> tuple[Tensor, list[Block]]:
        """Effects of single inputs: what is known at those of the table, and noise elsewhere."""
        effects = self.model.row_effects
        assert effects is not None
        row, b, unknown = KnownInputs(effects.inputs).find(x), effects.loadings[outputs], effects.unknown[outputs]
        is_known, at = (row >= 0) & (b.square().sum(-1) > 0.0), row.clamp(min=0)
        has_noise = float(effects.has_noise)
        mean = torch.where(is_known, (b * effects.mean[at]).sum(-1), 0.0)
        known = (b.unsqueeze(-2) @ safe_cholesky(effects.covariance)[at]).squeeze(-2)
        rows = torch.where(is_known.unsqueeze(-1), known, has_noise * b)
        key = torch.where(row >= 0, row, input_keys(x))
        own = torch.where(is_known, unknown, has_noise * unknown).sqrt()
        return mean, [
            Rows(stream=ROW, key=key, values_of=rows.unsqueeze(0)),
            Rows(stream=-ROW, key=cell_keys(x, outputs), values_of=own.view(1, -1, 1)),
        ]
