"""Effects that rows of a table have on all outputs, once they have been found."""

import copy
from collections.abc import Iterator
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from manygp.linalg import safe_cholesky
from manygp.terms.term import Points, Term, with_rows
from manygp.variational.known_inputs import KnownInputs

__all__ = ["RowEffects"]

# Numbers of inputs times this and numbers of outputs name cells.
_ODD = 1_000_003


class RowEffects(Term):
    """g_np = b_pᵀ r_n with q(r_n) = N(m_n, C_n) at the inputs of a table, and r ~ N(0, I) at any other.

    Where nothing is known of an effect, at other inputs and for outputs that came later, it is noise of the
    observations.

    Parameters
    ----------
    num_outputs, num_features
        Sizes p and d.
    num_rows, num_effects
        Sizes n and k.

    Attributes
    ----------
    inputs
        Inputs as the model sees them, none of them twice, shape (n, d).
    posterior_mean, posterior_covariance
        Of q(r), shapes (n, k) and (n, k, k).
    loadings
        b, shape (p, k).
    unknown
        Variances of effects on outputs whose loadings nobody knows, shape (p,).
    has_noise
        Whether effects of which nothing is known are part of the variance.
    """

    name = "row effects"
    inputs: Tensor
    posterior_mean: Tensor
    posterior_covariance: Tensor
    loadings: Tensor
    unknown: Tensor

    def __init__(self, num_outputs: int, num_features: int, num_rows: int, num_effects: int):
        super().__init__()
        n, p, k = num_rows, num_outputs, num_effects
        shapes = {"inputs": (n, num_features), "posterior_mean": (n, k), "posterior_covariance": (n, k, k)}
        for name, shape in {**shapes, "loadings": (p, k), "unknown": (p,)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.has_noise = True
        self._known: KnownInputs | None = None

    @classmethod
    def known(
        cls,
        inputs: Float[Tensor, "n d"],
        mean: Float[Tensor, "n k"],
        covariance: Float[Tensor, "n k k"],
        loadings: Float[Tensor, "p k"],
        unknown: Float[Tensor, " p"],
    ) -> Self:
        """Effects that have been found."""
        effects = cls(len(loadings), inputs.shape[1], *mean.shape).to(mean.device)
        parts = {"inputs": inputs, "posterior_mean": mean, "posterior_covariance": covariance}
        for name, values in {**parts, "loadings": loadings, "unknown": unknown}.items():
            getattr(effects, name).copy_(values)
        return effects

    def sizes(self) -> tuple[int, ...]:
        return tuple(self.posterior_mean.shape)

    def mean(self, points: Points) -> Float[Tensor, "*g"]:
        row, b, is_known = self._find(points)
        return torch.where(is_known, (b * self.posterior_mean[row]).sum(-1), 0.0)

    def variance(self, points: Points) -> Float[Tensor, "*g"]:
        row, b, is_known = self._find(points)
        unknown = self.unknown[points.outputs]
        variance = torch.einsum("...i,...ij,...j->...", b, self.posterior_covariance[row], b) + unknown
        noise = b.square().sum(-1) + unknown if self.has_noise else torch.zeros_like(unknown)
        return torch.where(is_known, variance, noise)

    def covariance(self, a: Points, b: Points) -> Float[Tensor, "*g c k"]:
        (row, left, known), (_, right, also_known) = self._find(a), self._find(b)
        both = known.unsqueeze(-1) & also_known.unsqueeze(-2)
        # b_pᵀ C_n b_q where the effects of an input are known, b_pᵀ b_q where they are not
        after = torch.einsum("...ci,...cij,...kj->...ck", left, self.posterior_covariance[row], right)
        before = left @ right.mT if self.has_noise else torch.zeros_like(after)
        shared = torch.where(both, after, before)
        unknown = self.unknown[a.outputs] if self.has_noise else self.unknown[a.outputs] * known
        own = torch.where(a.has_output_of(b), unknown.unsqueeze(-1), 0.0)
        return torch.where(a.has_input_of(b), shared + own, 0.0)

    def rows(self, points: Points, num_features: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        row, b, is_known = self._find(points)
        known = (b.unsqueeze(-2) @ safe_cholesky(self.posterior_covariance)[row]).squeeze(-2)
        noise = b if self.has_noise else torch.zeros_like(b)
        yield torch.where(is_known.unsqueeze(-1), known, noise), points.row
        unknown = self.unknown[points.outputs].sqrt()
        own = unknown if self.has_noise else torch.where(is_known, unknown, 0.0)
        yield own.unsqueeze(-1), points.row * _ODD + points.outputs

    def without_noise(self) -> Self:
        new = copy.copy(self)
        new.has_noise = False
        return new

    def _find(self, points: Points) -> tuple[Int[Tensor, "*g"], Float[Tensor, "*g k"], Bool[Tensor, "*g"]]:
        """Rows of the inputs, loadings of the outputs, and whether something is known of an effect."""
        if self._known is None:
            self._known = KnownInputs(self.inputs)
        row = self._known.find(points.x.flatten(0, -2)).view(points.outputs.shape)
        b = self.loadings[points.outputs]
        return row.clamp(min=0), b, (row >= 0) & (b.square().sum(-1) > 0.0)

    def _copy(self, count: int, alone: bool) -> Self:
        new, usual = copy.copy(self), (self.loadings.square().sum(-1) + self.unknown).mean()
        new._buffers = dict(self._buffers)
        new.loadings, new.unknown = with_rows(self.loadings, count, alone), with_rows(self.unknown, count, alone)
        new.unknown[-count:] = usual
        return new
