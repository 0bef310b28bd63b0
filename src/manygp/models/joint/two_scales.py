"""T-LVMOGP with neighbours: errors of predictions from neighbours, jointly for all cells.

A cell's prediction is a*ᵀv + bᵀ(y_N − A_N v), so that its error is linear in what is not known: v, the latent vectors,
and r + ε at the cell and at its neighbours, with r what inducing points leave of the kernel and the terms:

    f* − mean = (a* − Σ bⱼ aⱼ)ᵀ(v − m) + (r* − Σ bⱼ (rⱼ + εⱼ)) + …

Errors of different cells share v, r and ε. Their covariance under the model is positive definite for any neighbours,
has the variances of the single predictions, and is that of the exact GP if all cells are neighbours. A draw replaces v,
r and ε by draws, with r a function (Matheron's rule, with neighbours in the place of all data).
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import At, Block, Known, Left, Rows, View, cell_keys, input_keys
from manygp.linalg import sparse_matrix
from manygp.models.joint.transformed import (
    KNOWN,
    LATENT,
    LEFT,
    NUM_FEATURES,
    NUM_OWN_FEATURES,
    OBSERVED,
    TERMS,
    inducing_process,
    prior_covariances,
    term_block,
)
from manygp.models.neighbors import Local, NeighborPredictor
from manygp.terms import Term

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["TwoScaleJoint"]


class TwoScaleJoint:
    """f of any cells together, see `NeighborPredictor` for single ones."""

    num_components, num_points = 1, 6

    def __init__(self, model: "TransformedLatentModel", num_neighbors: int, has_noise: bool):
        self.model, self.has_noise = model, has_noise
        self.predictor = NeighborPredictor(model, num_neighbors, has_noise)
        self.process = inducing_process(model, 0)
        # Rows of all candidates for the neighbours of a cell.
        self.width = 176 * len(model.gp.Z) + 4 * NUM_FEATURES

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        model, process = self.model, self.process
        local = self.predictor.local(x, outputs, torch.full_like(outputs, -1))
        mean, weight, left = self.predictor.weights(local)
        points, weight = local.points, weight.squeeze(-1)
        through = self._through(local, weight)
        is_asked = torch.arange(len(points.x), device=x.device) >= len(local.cells)
        noise = torch.cat([self.predictor.cell_noise[local.cells], torch.zeros_like(mean)])
        number = torch.cat([local.cells, torch.full_like(outputs, -1)])
        blocks: list[Block] = [
            Rows(stream=OBSERVED, key=number, through=through, values_of=noise.sqrt().view(1, -1, 1)),
            *self._of_latents(local, through),
        ]
        # What is not of the noise and not of a term is of the kernel.
        left = left - (weight.square() * noise[local.at]).sum(-1)
        for i, term in enumerate(model.terms):
            parts, variance = self._of_term(term, TERMS + 2 * i, local, weight, through, is_asked)
            blocks += parts
            left = left - variance
        at = At(process, local.e.unsqueeze(0))
        at.A = local.A.unsqueeze(0)
        blocks.append(Known(stream=KNOWN, at=at, through=through))
        if process.spectrum is None:
            keys = cell_keys(points.x, points.outputs)
            blocks.append(Left(stream=LEFT, at=at, through=through, key=keys))
        else:
            blocks.append(Left(stream=LEFT, at=at, through=through, target=left.clamp(min=0.0).unsqueeze(0)))
        return View(mean.unsqueeze(0), blocks)

    def _through(self, local: Local, weight: Float[Tensor, "b k"]) -> Tensor:
        """Weights of points in cells."""
        b, k = local.at.shape
        cell = torch.arange(b, device=local.at.device).repeat_interleave(k)
        return sparse_matrix(cell, local.at.flatten(), weight.flatten(), (b, len(local.points.x)))

    def _of_latents(self, local: Local, through: Tensor) -> list[Block]:
        """What is unknown of latent vectors, by the slopes of means."""
        latents, points = self.model.latents, local.points
        if latents.posterior == "point":
            return []
        distinct, column = points.outputs.unique(return_inverse=True)
        slopes = torch.einsum("uh,uhj->uj", local.slope, latents.factor(distinct).detach()[column])
        return [Rows(stream=LATENT, key=points.outputs, through=through, values_of=slopes.unsqueeze(0))]

    def _of_term(
        self, term: Term, stream: int, local: Local, weight: Tensor, through: Tensor, is_asked: Tensor
    ) -> tuple[list[Block], Float[Tensor, " b"]]:
        """What is unknown of a term, and its part of the variances that are left."""
        points = local.points
        # Numbers of new inputs hold within a view alone.
        keyed = replace(points, row=torch.where(points.row >= 0, points.row, input_keys(points.x)))
        # Observed neighbours have noise, the function that is asked about has none.
        is_absent = is_asked & (term.is_noise and not self.has_noise)
        weight = weight * ~is_absent[local.at]
        group = local.group
        S = term.covariance(group, group)
        variance = (weight * (S @ weight.unsqueeze(-1)).squeeze(-1)).sum(-1)
        target = variance.clamp(min=0.0).unsqueeze(0) if term.is_process else None
        blocks = list[Block]()
        for part, (rows, key) in enumerate(term.rows(keyed, NUM_OWN_FEATURES, 0)):
            values = torch.where(is_absent.unsqueeze(-1), 0.0, rows).unsqueeze(0)
            known = {"stream": stream + part, "key": key, "through": through, "target": target, "values_of": values}
            blocks.append(term_block(term, keyed, **known))
        return blocks, variance

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others, by part."""
        return prior_covariances(self.model, x, outputs, other_x, other_outputs)
