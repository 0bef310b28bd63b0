"""How lists of cells are laid out for batched products: distinct inputs, and one padded row for each group."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Padding", "distinct_inputs", "pad_groups"]


def distinct_inputs(x: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "n d"], Int[Tensor, " b"]]:
    """Inputs without the repetitions that follow each other, and the place of every cell's input among them.

    Cells of a table come row by row, so that this finds nearly all repetitions without sorting.
    """
    if not len(x):
        return x, torch.zeros(0, dtype=torch.int64, device=x.device)
    changed = torch.ones(len(x), dtype=torch.bool, device=x.device)
    changed[1:] = (x[1:] != x[:-1]).any(-1)
    return x[changed], changed.long().cumsum(0) - 1


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
