"""How a grid is walked through by parts that fit into memory: some blocks of rows times some blocks of outputs."""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from manygp.data.table import IntArray

# Cells of a tile, and rows that one should have at least, for batches to see many inputs.
TILE_CELLS, _TILE_ROWS = 2**24, 512

Item = TypeVar("Item")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Side:
    """One side of a grid of `size` rows or outputs, cut into blocks that are read at once, several in a tile."""

    size: int
    block: int
    together: int

    @property
    def _num_whole(self) -> int:
        return max(1, self.size // self.block)

    @property
    def _num_parts(self) -> int:
        return math.ceil(self._num_whole / self.together)

    def parts(self, rng: np.random.Generator) -> Iterator[IntArray]:
        """Yield the numbers of each part, ascending, for blocks dealt out at random; nothing is drawn for one part."""
        if self._num_parts == 1:
            yield np.arange(self.size)
            return
        dealt = np.array_split(rng.permutation(self._num_whole), self._num_parts)
        for number in rng.permutation(self._num_parts):
            numbers = (np.sort(dealt[number])[:, None] * self.block + np.arange(self.block)).reshape(-1)
            # What is left over at the end belongs to one of the parts, so that their sizes are always the same.
            rest = np.arange(self._num_whole * self.block, self.size if number == self._num_parts - 1 else 0)
            yield np.concatenate([numbers, rest])

    def num_batches(self, largest: int) -> int:
        """Return how many batches all parts make."""
        sizes = [len(part) * self.block for part in np.array_split(np.arange(self._num_whole), self._num_parts)]
        sizes[-1] += self.size - self._num_whole * min(self.block, self.size)
        return sum(math.ceil(size / largest) for size in sizes)


def sides(shape: tuple[int, int], block: tuple[int, int]) -> tuple[Side, Side]:
    """Return rows and outputs of a stored grid, cut by the blocks that are read so that a tile has not too many cells.

    A tile has all outputs where that leaves it enough rows, and one block at least.
    """
    n, p = shape
    rows = min(n, max(TILE_CELLS // max(p, 1), _TILE_ROWS, block[0]))
    outputs = min(p, max(TILE_CELLS // rows, block[1]))
    return Side(n, min(n, block[0]), max(1, rows // block[0])), Side(p, min(p, block[1]), max(1, outputs // block[1]))


def ahead(read: Callable[[Item], Read], items: Iterable[Item]) -> Iterator[Read]:
    """Yield what a function reads for each item, the next of them in a thread while the last one is used."""
    with ThreadPoolExecutor(1, "manygp-read") as pool:
        coming: Future[Read] | None = None
        for item in items:
            done, coming = coming, pool.submit(read, item)
            if done is not None:
                yield done.result()
                # What was read is the caller's alone from here on.
                del done
        if coming is not None:
            yield coming.result()
