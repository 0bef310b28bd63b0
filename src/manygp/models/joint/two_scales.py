"""T-LVMOGP with neighbours: errors of predictions from neighbours, jointly for all cells.

A cell's prediction is a*ᵀv + bᵀ(y_N − A_N v), so that its error is linear in what is not known: v, the latent vectors,
and r + ε at the cell and at its neighbours, with r what inducing points leave of the kernel and the terms:

    f* − mean = (a* − Σ bⱼ aⱼ)ᵀ(v − m) + (r* − Σ bⱼ (rⱼ + εⱼ)) + …

Errors of different cells share v, r and ε. Their covariance under the model is positive definite for any neighbours,
has the variances of the single predictions, and is that of the exact GP if all cells are neighbours. A draw replaces v,
r and ε by draws, with r a function (Matheron's rule, with neighbours in the place of all data).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import At, Block, Combination, Known, Left, Rows, View, cell_keys, input_keys
from manygp.models.joint.transformed import (
    KNOWN,
    LATENT,
    LEFT,
    NUM_OWN_FEATURES,
    OBSERVED,
    TERMS,
    inducing_process,
    prior_covariances,
    term_block,
)
from manygp.models.neighbors import NeighborPredictor
from manygp.models.tiles import CellBlock, Conditioned, in_units, rows_of
from manygp.terms import Points

if TYPE_CHECKING:
    from manygp.models.tlvmogp import TransformedLatentModel

__all__ = ["TwoScaleJoint"]

# Random features of what inducing points and neighbours leave of the kernel, which is little.
_NUM_FEATURES = 256


class TwoScaleJoint:
    """f of any cells together, see `NeighborPredictor` for single ones."""

    num_components, num_points = 1, 6

    def __init__(self, model: "TransformedLatentModel", num_neighbors: int, has_noise: bool):
        self.model, self.has_noise = model, has_noise
        self.predictor = NeighborPredictor(model, num_neighbors, has_noise)
        self.process = inducing_process(model, 0, _NUM_FEATURES)
        self.output_places = self.predictor.places
        # Rows of a cell and of its neighbours that it shares with no other.
        self.width = 4 * (len(model.gp.Z) + _NUM_FEATURES)

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        predictor = self.predictor
        blocks: list[CellBlock] = []
        parts = list(predictor.parts(x, outputs, blocks))
        found, lots = Conditioned.joined(parts), [numbers for numbers, _ in parts] if blocks else None
        # Points: observed cells that are a neighbour of any, and behind them the cells that are asked about.
        cells, index = found.near.unique(return_inverse=True)
        points, n = predictor.points(cells, x, outputs), len(cells)
        own = torch.arange(n, n + len(x), device=x.device).unsqueeze(-1)
        index, weight = torch.cat([own, index], 1), torch.cat([torch.ones_like(own), -found.weight], 1)
        through = Combination(index, weight, n + len(x), lots)
        e, A, slopes = rows_of(blocks, cells, len(x)) if blocks else self._rows_of(points)
        at = At(self.process, e.unsqueeze(0))
        at.A = A.unsqueeze(0)
        key = cell_keys(points.x, points.outputs) if self.process.spectrum is None else None
        noise = torch.cat([predictor.cell_noise[cells], torch.zeros_like(found.mean)])
        number = torch.cat([cells, torch.full_like(outputs, -1)])
        known: list[Block] = [
            Known(stream=KNOWN, at=at, through=through),
            Left(stream=LEFT, at=at, through=through, key=key),
            Rows(stream=OBSERVED, key=number, through=through, values_of=noise.sqrt().view(1, -1, 1)),
            *self._of_terms(points, n, through),
        ]
        if slopes is not None:
            # What is unknown of latent vectors, by the slopes of means
            known.append(Rows(stream=LATENT, key=points.outputs, through=through, values_of=slopes.unsqueeze(0)))
        return View(found.mean.unsqueeze(0), known, found.variance)

    def _rows_of(self, points: Points) -> tuple[Tensor, Tensor, Tensor | None]:
        """Embeddings, rows A, and slopes in units of q(h)."""
        e, A, _, slope = self.predictor.explained(points)
        return e, A, in_units(self.model.latents, slope, points.outputs)

    def _of_terms(self, points: Points, num_observed: int, through: Combination) -> Iterator[Block]:
        """What is unknown of terms."""
        # Numbers of new inputs hold within a view alone.
        keyed = replace(points, row=torch.where(points.row >= 0, points.row, input_keys(points.x)))
        is_asked = torch.arange(len(points.x), device=points.x.device) >= num_observed
        for number, term in enumerate(self.model.terms):
            # Observed neighbours have noise, the function that is asked about has none.
            is_absent = term.is_noise and not self.has_noise
            for part, (rows, key) in enumerate(term.rows(keyed, NUM_OWN_FEATURES, 0)):
                values = (torch.where(is_asked.unsqueeze(-1), 0.0, rows) if is_absent else rows).unsqueeze(0)
                stream = TERMS + 2 * number + part
                yield term_block(term, keyed, stream=stream, key=key, through=through, values_of=values)

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others, by part."""
        return prior_covariances(self.model, x, outputs, other_x, other_outputs)
