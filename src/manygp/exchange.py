"""What processes that train one model together tell each other."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from torch import Tensor, nn

__all__ = ["ALONE", "Exchange"]

Made = TypeVar("Made")
Given = TypeVar("Given")


@dataclass(frozen=True)
class Exchange:
    """What a process exchanges with the others: nothing, since this one is alone; see `manygp.distributed` for others.

    Every process, or rank, has the outputs of some shards: their part of a batch, and their rows of parameters. A
    batch has a part from every shard, so that the shards, and not the ranks, say what is learnt.

    Parameters
    ----------
    shards
        Number of shards; output p belongs to shard p mod `shards`, and shard s to rank s mod `size`.
    """

    shards: int = 1

    @property
    def rank(self) -> int:
        """Number of this process."""
        return 0

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1

    @property
    def own_shards(self) -> range:
        """Shards of this process."""
        return range(self.rank, self.shards, self.size)

    def with_shards(self, shards: int) -> Self:
        """The same with another number of shards."""
        return replace(self, shards=shards)

    def journal(self, make: Callable[..., Any], *given: Any) -> Any:
        """What a fit tells how far it is: the journal that `make` makes of what is given."""
        return make(*given)

    def common(
        self,
        make: Callable[[], Made],
        pack: Callable[[Made], Any] | None = None,
        unpack: Callable[[Any], Made] | None = None,
    ) -> Made:
        """What the first rank makes, on all of them; on the way it is what `pack` makes of it."""
        return make()

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Means over all ranks, as one buffer."""
        return tensors

    def largest(self, value: Tensor) -> Tensor:
        """The largest of a number over all ranks."""
        return value

    def add_gradients(self, parameters: Iterable[nn.Parameter], told: Tensor) -> Tensor:
        """Let all ranks have the sums of the gradients of some parameters, and of some numbers, as one buffer."""
        return told

    def add_rows(self, rows: Iterable[nn.Parameter]) -> None:
        """Let all ranks have the sums of the sparse gradients of rows that each has touched some of."""

    def fill_rows(self, tensors: Iterable[Tensor]) -> None:
        """Let all ranks have the rows of outputs, (p, ...), that only one of them has changed."""

    def total(self, numbers: np.ndarray) -> np.ndarray:
        """Sums over all ranks of an array of numbers, which may be changed."""
        return numbers

    def lead(self, work: Callable[[Given], Made], write: Callable[[Callable[[Given], Made]], None]) -> None:
        """Let the first rank write what all of them work out: `write` gets `work`, and calls it when it likes."""
        write(work)

    def listening(self) -> AbstractContextManager[None]:
        """Note what asks this process to end, so that all ranks end at the same step."""
        return nullcontext()

    @property
    def is_stopping(self) -> bool:
        """Whether some rank was asked to end early, as far as all ranks know."""
        return False


#: A process that has no others beside it.
ALONE = Exchange()
