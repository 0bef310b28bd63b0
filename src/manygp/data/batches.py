"""Minibatch plans: exact partitions of a table, with the weights that make every batch unbiased.

A bound is a sum over observed cells minus a sum over outputs. Each batch estimates it by
`cell_weight · Σ cells - Σ output_weight_p · KL_p`, and the plain average of the estimates of one epoch is the
full sum exactly, missing cells and empty outputs included.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from manygp.data.grid import Grid
from manygp.data.scaling import Scaling
from manygp.data.table import FloatArray, IntArray, PlaceArray, Table
from manygp.errors import DataError, SettingError


@dataclass(frozen=True, eq=False)
class Batch:
    """Some observed cells and some outputs of a table, in scaled units."""

    #: Input of each cell, shape (b, d).
    x: FloatArray
    #: The distinct outputs of the batch in the table's numbering, shape (p,); some may have no cell here.
    outputs: IntArray
    #: `outputs[column[i]]` is the output of cell i, shape (b,).
    column: IntArray
    #: Input row of each cell in the table's numbering, shape (b,).
    row: IntArray
    #: Value of each cell, shape (b,).
    y: FloatArray
    #: One over the probability that a cell is in this batch.
    cell_weight: float
    #: Weight of each output's own term, shape (p,).
    output_weight: FloatArray
    #: What the mean of each cell's count is multiplied by, shape (b,); None if the table has none.
    exposure: FloatArray | None = None
    #: Known variance of the noise of each cell, shape (b,); None if the table knows none.
    noise: FloatArray | None = None
    #: Of batches of groups, see `GroupPlan`: numbers of cells of this batch, conditioning sets of `num_given` columns
    #: before the groups' own cells, −1 for none, shape (g, c).
    members: IntArray | None = None
    num_given: int = 0
    #: Of batches that several processes share, see `ShardPlan`: the number by which draws of each output go.
    key: int | None = None

    @property
    def num_cells(self) -> int:
        """Number of observed cells in the batch."""
        return len(self.y)


class Plan(ABC):
    """A way to walk once through a table in random batches."""

    table: Table

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    @abstractmethod
    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one freshly shuffled epoch."""

    def state(self) -> dict[str, Any]:
        """Return what epochs depend on beside the table and the generator they are given, as arrays and numbers."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        if state:
            raise DataError(f"A {type(self).__name__} has no state, and got one of {', '.join(state)}.")


class GridPlan(Plan):
    """Batches of some inputs times some outputs of a grid.

    Parameters
    ----------
    table
        The observations; must be a `Grid`.
    scaling
        Maps inputs and values to scaled units as they are gathered.
    batch_inputs, batch_outputs
        Largest numbers of inputs and of outputs in a batch; None means all of them.
    shard
        Deals the outputs of one shard alone, see `ShardPlan`: its number, and how many there are.
    """

    table: Grid

    def __init__(
        self,
        table: Table,
        scaling: Scaling,
        batch_inputs: int | None = None,
        batch_outputs: int | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        if not isinstance(table, Grid):
            raise DataError(
                "A GridPlan needs outputs that share their inputs, and this table is a list of cells; "
                "use a CellPlan, or Cells.to_grid() when inputs coincide."
            )
        self.table = table
        self.scaling = scaling
        self._rows, self._outputs = table.sides()
        self._number, self._count = shard
        # Outputs of all shards together: of as many parts, each shard has a batch.
        self._most = (
            _largest(table.num_inputs, batch_inputs, "batch_inputs"),
            self._count * _largest(table.num_outputs, batch_outputs, "batch_outputs"),
        )
        self.num_input_batches = self._rows.num_batches(self._most[0])
        self.num_output_batches = self._outputs.num_batches(self._most[1])

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.num_input_batches * self.num_output_batches

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch: inputs shuffled once, outputs anew for each input batch.

        Of a table that is not in memory, batches are those of one part after the other, each of random blocks.
        """
        parts = ((rows, outputs) for rows in self._rows.parts(rng) for outputs in self._outputs.parts(rng))
        for rows, outputs, part in self.table.tiles(parts):
            own = np.flatnonzero(outputs % self._count == self._number)
            pieces = math.ceil(len(rows) / self._most[0]), math.ceil(len(outputs) / self._most[1])
            for at in _shuffled(np.arange(len(rows)), pieces[0], rng):
                for of in _shuffled(own, pieces[1], rng):
                    yield self._batch(part.block(at, of), rows[at], outputs[of])

    def batch(self, rows: IntArray, outputs: IntArray) -> Batch:
        """Return the batch of the observed cells at some rows and outputs."""
        return self._batch(self.table.block(rows, outputs), rows, outputs)

    def _batch(self, block: FloatArray, rows: IntArray, outputs: IntArray) -> Batch:
        values = self.scaling.scale_y(block, outputs)
        at, column = np.nonzero(~np.isnan(values))
        x = self.scaling.scale_x(self.table.X[rows])
        return Batch(
            x=x[at],
            outputs=outputs,
            column=column,
            row=rows[at],
            y=values[at, column],
            cell_weight=float(len(self)),
            # An output meets every one of the input batches, so only the split of the outputs needs undoing.
            output_weight=np.full(len(outputs), float(self.num_output_batches)),
            exposure=None if self.table.exposure is None else self.table.exposure[rows[at]],
            noise=known_noise(self.table, self.scaling, rows[at], outputs[column]),
        )


class CellPlan(Plan):
    """Batches of observed cells, scattered over inputs and outputs.

    Keeps one integer per observed cell, and shuffles a second copy of them in every epoch.

    Parameters
    ----------
    table
        The observations, in either layout.
    scaling
        Maps inputs and values to scaled units as they are gathered.
    batch_cells
        Largest number of cells in a batch; None means all of them.
    shard
        As in `GridPlan`.
    """

    def __init__(
        self, table: Table, scaling: Scaling, batch_cells: int | None = None, shard: tuple[int, int] = (0, 1)
    ) -> None:
        self.table = table
        self.scaling = scaling
        self._places = table.places()
        if not len(self._places):
            raise DataError("There is no observed cell to make batches of; give at least one value that is not NaN.")
        number, count = shard
        self._counts = table.count_per_output()
        self._empty = np.flatnonzero(self._counts == 0)
        if count > 1:
            self._places = self._places[table.cells(self._places)[1] % count == number]
            self._empty = self._empty[self._empty % count == number]
        # That of the largest shard, so that all have as many.
        largest = max(int(self._counts[i::count].sum()) for i in range(count))
        self.num_batches = math.ceil(largest / _largest(largest, batch_cells, "batch_cells"))

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.num_batches

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch; outputs without any cell are dealt out over the batches."""
        shuffled = np.array_split(rng.permutation(self._places), self.num_batches)
        # Shuffled, so that a few empty outputs do not always fall to the first batches.
        empty = rng.permutation(self._empty)
        dealt = rng.permutation(self.num_batches)
        for step, places in enumerate(shuffled):
            yield self._batch(np.sort(places), empty[dealt[step] :: self.num_batches])

    def _batch(self, places: PlaceArray, empty: IntArray) -> Batch:
        row, output, y = self.table.cells(places)
        present, column, count = np.unique(output, return_inverse=True, return_counts=True)
        # E[c / n_p] = 1 / K for an output with c of its n_p cells in this batch
        share = np.concatenate([count / self._counts[present], np.ones(len(empty))])
        return Batch(
            x=self.scaling.scale_x(self.table.X[row]),
            outputs=np.concatenate([present, empty]),
            column=column,
            row=row,
            y=self.scaling.scale_y(y, output),
            cell_weight=float(self.num_batches),
            output_weight=self.num_batches * share,
            exposure=None if self.table.exposure is None else self.table.exposure[row],
            noise=known_noise(self.table, self.scaling, row, output),
        )


def known_noise(table: Table, scaling: Scaling, row: IntArray, output: IntArray) -> FloatArray | None:
    """Return the known variance of the noise of some cells in scaled units, None if the table knows none."""
    variance = table.known_variance(row, output)
    return None if variance is None else variance / scaling.y_scale[output] ** 2


def _shuffled(numbers: IntArray, pieces: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Numbers in so many random batches; their order within one means nothing, and sorted they gather faster."""
    return map(np.sort, np.array_split(rng.permutation(numbers), pieces))


def _largest(total: int, largest: int | None, name: str) -> int:
    if largest is None:
        return max(total, 1)
    if isinstance(largest, bool) or not isinstance(largest, int | np.integer) or largest < 1:
        raise SettingError(f"{name}={largest!r} is no batch size; give a whole number of at least 1, or None for all.")
    return int(largest)


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
