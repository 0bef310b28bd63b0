"""How lists of cells are laid out for batched products: by inputs and outputs, or one padded row for each group."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

# A full grid is worth its empty cells up to so many for each observed one: its products are that much faster.
_GRID_CELLS = 8


def distinct_inputs(x: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "n d"], Int[Tensor, " b"]]:
    """Inputs without the repetitions that follow each other, and the place of every cell's input among them.

    Cells of a table come row by row, so that this finds nearly all repetitions without sorting.
    """
    if not len(x):
        return x, torch.zeros(0, dtype=torch.int64, device=x.device)
    changed = torch.ones(len(x), dtype=torch.bool, device=x.device)
    changed[1:] = (x[1:] != x[:-1]).any(-1)
    return x[changed], changed.long().cumsum(0) - 1


def unique_inputs(x: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "n d"], Int[Tensor, " b"]]:
    """Inputs without any repetition, differentiable, and the place of every cell's input among them."""
    distinct, row = x.detach().unique(dim=0, return_inverse=True)
    first = torch.zeros(len(distinct), dtype=torch.int64, device=x.device)
    first[row] = torch.arange(len(x), device=x.device)
    return x[first], row


@dataclass(frozen=True)
class CellGrid:
    """Cells, shape (b,), as places of a grid of n rows, with q numbers each, and p columns, with q weights each.

    Products run over the whole grid where it is well filled, and over the cells alone where it is not; several cells
    may stand in one place.
    """

    row: Int[Tensor, " b"]
    column: Int[Tensor, " b"]
    num_rows: int
    num_columns: int

    @property
    def is_filled(self) -> bool:
        """Whether products run over the whole grid."""
        return self.num_rows * self.num_columns <= _GRID_CELLS * len(self.row)

    @property
    def place(self) -> Int[Tensor, " b"]:
        """Flat place of every cell."""
        return self.row * self.num_columns + self.column

    def mix(self, G: Float[Tensor, "n q"], W: Float[Tensor, "p q"]) -> Float[Tensor, " b"]:
        """Σ_q G_nq W_pq of every cell (n, p)."""
        if self.is_filled:
            return (G @ W.T).flatten().index_select(0, self.place)
        return (G.index_select(0, self.row) * W.index_select(0, self.column)).sum(-1)

    def collect(self, values: Float[Tensor, " b"], W: Float[Tensor, "p q"]) -> Float[Tensor, "n q"]:
        """Σ_p values_np W_pq over the cells of every row, the transpose of `mix` in G."""
        if self.is_filled:
            grid = values.new_zeros(self.num_rows * self.num_columns).index_add(0, self.place, values)
            return grid.view(self.num_rows, self.num_columns) @ W
        terms = values.unsqueeze(-1) * W.index_select(0, self.column)
        return values.new_zeros(self.num_rows, W.shape[1]).index_add(0, self.row, terms)


def grid_of_cells(
    x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " p"], CellGrid]:
    """Distinct inputs and outputs of some cells, and the cells as places of the grid that they span."""
    inputs, row = distinct_inputs(x)
    distinct, column = outputs.unique(return_inverse=True)
    return inputs, distinct, CellGrid(row, column, len(inputs), len(distinct))


@dataclass(frozen=True)
class Padding:
    """Where the members of groups stand in an array with a row of `width` places for each of `size` groups."""

    place: Int[Tensor, " b"]
    size: int
    width: int

    def pad(self, values: Float[Tensor, "b *rest"]) -> Float[Tensor, "g w *rest"]:
        """Put values in their places, zeros elsewhere."""
        padded = values.new_zeros(self.size * self.width, *values.shape[1:])
        return padded.index_copy(0, self.place, values).view(self.size, self.width, *values.shape[1:])

    def take(self, padded: Float[Tensor, "g w *rest"]) -> Float[Tensor, "b *rest"]:
        """The values at the places, in the order of the members."""
        return padded.flatten(0, 1).index_select(0, self.place)


def pad_groups(group: Int[Tensor, " b"], size: int) -> Padding:
    """Lay members out by group, each group's in their order."""
    order = torch.argsort(group, stable=True)
    count = torch.bincount(group, minlength=size)
    first = count.cumsum(0) - count
    position = torch.empty_like(group)
    # The rank among all members less the rank of the group's first.
    position[order] = torch.arange(len(group), device=group.device) - first[group[order]]
    width = int(count.max()) if len(group) else 0
    return Padding(group * width + position, size, width)
