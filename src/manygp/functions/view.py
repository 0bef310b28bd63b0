"""Some cells as a model sees them: their joint distribution, without a matrix of all pairs."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions.blocks import Block

__all__ = ["OWN", "SHARED", "Joint", "View"]

# Parts of a prior: what outputs share, and what each has for itself.
SHARED, OWN = "shared", "own part"

_DIAGONAL_CELLS = 64


class View:
    """The joint distribution of f at b cells: a mixture of s Gaussians, f = mean + Σ blocks.

    Parameters
    ----------
    mean
        Means of the components, shape (s, b).
    blocks
        What is unknown of them, independent of each other.
    """

    def __init__(self, mean: Float[Tensor, "s b"], blocks: Sequence[Block]):
        self.mean, self.blocks = mean, blocks

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        """Covariances between some cells and others in every component."""
        total = self.mean.new_zeros(len(self.mean), len(a), len(b))
        for block in self.blocks:
            total = total + block.cell_covariance(a, b)
        return total

    def variance(self) -> Float[Tensor, "s b"]:
        """Variances of all cells in every component, from blocks on the diagonal of their covariance."""
        parts = torch.arange(self.mean.shape[1], device=self.mean.device).split(_DIAGONAL_CELLS)
        blocks = [self.covariance(part, part).diagonal(dim1=-2, dim2=-1) for part in parts]
        return torch.cat(blocks, -1).clamp(min=0.0)

    def draw(self, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "n b"]:
        """Values of the functions with these numbers: number i has the component i modulo s."""
        values = self.mean.new_empty(len(draws), self.mean.shape[1])
        component = draws.to(values.device) % len(self.mean)
        for s in component.unique().tolist():
            chosen = component == s
            total = self.mean[s].unsqueeze(-1)
            for block in self.blocks:
                total = total + block.values(s, draws[chosen.to(draws.device)], seed)
            values[chosen] = total.T
        return values

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        """Variances of sums with the weights of a sparse matrix (g, b), exactly, by all pairs of cells."""
        total = self.mean.new_zeros(len(self.mean), W.shape[0])
        for block in self.blocks:
            total = total + block.variance_of_sums(W)
        return total

    @property
    def is_linear(self) -> bool:
        """Whether blocks tell variances of sums by sums of rows."""
        return True


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
