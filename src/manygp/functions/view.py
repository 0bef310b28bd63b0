"""Some cells as a model sees them: their joint distribution, without a matrix of all pairs."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data.table import FloatArray
from manygp.functions.blocks import Block, Combination
from manygp.linalg import sparse_matrix

__all__ = ["OWN", "SHARED", "Joint", "View"]

# Parts of a prior: what outputs share, and what each has for itself.
SHARED, OWN = "shared", "own part"

_DIAGONAL_CELLS, _TINY = 64, 1e-300


class View:
    """The joint distribution of f at b cells: a mixture of s Gaussians, f = mean + Σ blocks.

    Parameters
    ----------
    mean
        Means of the components, shape (s, b).
    blocks
        What is unknown of them, independent of each other.
    variance
        Variances of a single component that are known, shape (b,): rows of random features, which are right on average
        alone, are scaled to have them. None where blocks have the right ones.
    """

    def __init__(
        self, mean: Float[Tensor, "s b"], blocks: Sequence[Block], variance: Float[Tensor, " b"] | None = None
    ):
        self.mean, self.blocks, self._variance = mean, blocks, variance

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        """Covariances between some cells and others in every component."""
        total = self.mean.new_zeros(len(self.mean), len(a), len(b))
        for through, blocks in self._by_combination():
            if through is None:
                for block in blocks:
                    total = total + block.covariance(a, b)
                continue
            (Ca, ua), (Cb, ub) = through.of(a), through.of(b)
            covariance = blocks[0].covariance(ua, ub)
            for block in blocks[1:]:
                covariance = covariance + block.covariance(ua, ub)
            total = total + Ca @ covariance @ Cb.T
        return total

    def variance(self) -> Float[Tensor, "s b"]:
        """Variances of all cells in every component, from blocks on the diagonal of their covariance."""
        if self._variance is not None:
            return self._variance.unsqueeze(0)
        parts = torch.arange(self.mean.shape[1], device=self.mean.device).split(_DIAGONAL_CELLS)
        blocks = [self.covariance(part, part).diagonal(dim1=-2, dim2=-1) for part in parts]
        return torch.cat(blocks, -1).clamp(min=0.0)

    def draw(self, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "n b"]:
        """Values of the functions with these numbers: number i has the component i modulo s."""
        values = self.mean.new_empty(len(draws), self.mean.shape[1])
        component = draws.to(values.device) % len(self.mean)
        for s in component.unique().tolist():
            chosen = component == s
            values[chosen] = self.mean[s] + self._scaled(self._deviation(s, draws[chosen.to(draws.device)], seed)).T
        return values

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        """Variances of sums with the weights of a sparse matrix (g, b), exactly, by all pairs of cells."""
        total = self.mean.new_zeros(len(self.mean), W.shape[0])
        for block in self.blocks:
            total = total + block.variance_of_sums(W)
        return total

    def row_sums(self, W: Tensor) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
        """Sums of rows with the weights of a sparse matrix (g, b), of each block by its stream."""
        if self._variance is not None:
            group, cell = W.coalesce().indices()
            W = sparse_matrix(group, cell, W.coalesce().values() * self._scale[cell], (W.shape[0], W.shape[1]))
        for block in self.blocks:
            yield block.stream, block.row_sums(W)

    @property
    def is_linear(self) -> bool:
        """Whether blocks tell variances of sums by sums of rows."""
        return True

    def _by_combination(self) -> Iterator[tuple[Combination | None, list[Block]]]:
        """Blocks with the same points."""
        groups: dict[int, list[Block]] = {}
        for block in self.blocks:
            groups.setdefault(id(block.through), []).append(block)
        yield from ((blocks[0].through, blocks) for blocks in groups.values())

    def _deviation(self, component: int, draws: Tensor, seed: int) -> Float[Tensor, "b n"]:
        """Draws of what is unknown in one component."""
        total = self.mean.new_zeros(self.mean.shape[1], len(draws))
        for through, blocks in self._by_combination():
            of_points: Tensor | None = None
            for block in blocks:
                if through is not None and block.key is None:
                    # Rows of cells are at hand.
                    rows = block.sums_of_cells[1][0]
                    total.addmm_(rows, block.coefficients(draws, seed, rows.shape[-1]).to(rows))
                    continue
                values = block.values(component, draws, seed)
                of_points = values if of_points is None else of_points.add_(values)
            if of_points is not None:
                total += of_points if through is None else through.times(of_points)
        return total

    def _scaled(self, deviation: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        return deviation if self._variance is None else deviation * self._scale.unsqueeze(-1)

    @cached_property
    def _scale(self) -> Float[Tensor, " b"]:
        """What rows of cells are multiplied by to have the variances that are known."""
        assert self._variance is not None
        found = torch.zeros_like(self._variance)
        for block in self.blocks:
            pairs, sums = block.sums_of_cells
            found.index_add_(0, pairs[0], torch.linalg.vector_norm(sums[0], dim=-1).square())
        return (self._variance / found.clamp(min=_TINY)).sqrt()


@runtime_checkable
class Joint(Protocol):
    """What a model offers so that everything else follows: a view of any cells.

    Views of the same cells agree, whatever other cells they hold: coefficients of blocks go by stream and key.

    Attributes
    ----------
    num_components
        Number s of components of the mixture.
    num_points
        Number of points that a view has for each cell, about.
    width
        Numbers that a view holds for each cell and component.
    """

    num_components: int
    num_points: int
    width: int

    @property
    def output_places(self) -> FloatArray | None:
        """Where outputs are, shape (p, h), if those that are close should be viewed together; None if any may be."""

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells (x, outputs), differentiable in x."""

    def prior(
        self,
        x: Float[Tensor, "a d"],
        outputs: Int[Tensor, " a"],
        other_x: Float[Tensor, "b d"],
        other_outputs: Int[Tensor, " b"],
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances between some cells and others before any data, given the learned parameters, by part."""
