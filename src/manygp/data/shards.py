"""Shards: a table's outputs dealt to several plans, whose batches go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from manygp.data.batches import Batch, Plan
from manygp.data.table import FloatArray

__all__ = ["ShardPlan"]


class ShardPlan(Plan):
    """Batches with a part from every shard, each dealt by the shard's own plan and its own random numbers.

    What a shard deals depends on its number alone, and latent vectors are drawn by output: whoever has some of the
    shards of a table has its part of the same batches as whoever has them all.

    Parameters
    ----------
    make
        Makes the plan of a shard; all have as many batches.
    numbers
        Numbers of the shards at hand.
    weight
        What weights are multiplied by: one over the share of all shards that is here, so that a mean over processes
        is unbiased.
    """

    def __init__(self, make: Callable[[int], Plan], numbers: Sequence[int], weight: float) -> None:
        self.numbers, self.weight = tuple(numbers), weight
        self.plans = [make(number) for number in self.numbers]
        self.table = self.plans[0].table

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.plans[0])

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch, of which all shards have their part."""
        seed = int(rng.integers(2**63))
        walks = [
            plan.epoch(np.random.default_rng([seed, number]))
            for number, plan in zip(self.numbers, self.plans, strict=True)
        ]
        keys = np.random.default_rng(seed)
        for parts in zip(*walks, strict=True):
            yield _joined(parts, self.weight, int(keys.integers(2**63)))


def _joined(parts: Sequence[Batch], weight: float, key: int) -> Batch:
    """One batch of several that have no output in common and the same weight of cells."""
    before = np.cumsum([0, *(len(part.outputs) for part in parts)])
    return Batch(
        x=np.concatenate([part.x for part in parts]),
        outputs=np.concatenate([part.outputs for part in parts]),
        column=np.concatenate([part.column + first for part, first in zip(parts, before, strict=False)]),
        row=np.concatenate([part.row for part in parts]),
        y=np.concatenate([part.y for part in parts]),
        cell_weight=weight * parts[0].cell_weight,
        output_weight=weight * np.concatenate([part.output_weight for part in parts]),
        exposure=_joined_or_none([part.exposure for part in parts]),
        noise=_joined_or_none([part.noise for part in parts]),
        key=key,
    )


def _joined_or_none(parts: Sequence[FloatArray | None]) -> FloatArray | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None
