"""Which cells of a batch are conditioned on which."""

from dataclasses import dataclass

from jaxtyping import Bool, Int
from torch import Tensor

__all__ = ["Groups"]


@dataclass(frozen=True)
class Groups:
    """Groups of cells behind their conditioning sets, as numbers of the cells of a batch.

    Parameters
    ----------
    index
        Numbers of cells, shape (g, c): conditioning sets in the first columns, groups in the others.
    seen
        Whether there is a cell, shape (g, c); other entries of `index` mean nothing.
    num_given
        Number of columns of the conditioning sets.
    """

    index: Int[Tensor, "g c"]
    seen: Bool[Tensor, "g c"]
    num_given: int

    @property
    def num_cells(self) -> Int[Tensor, ""]:
        """Number of cells in all groups."""
        return self.seen[:, self.num_given :].sum()
