"""Groups of cells that are close together, in a random order, and the cells before them that are nearest.

Vecchia's approximation conditions each group on a few cells that stand before it in the order. Cells are points of some
coordinates in which close means correlated; the tree of median cuts behind the groups, and the search for neighbours
among them, take memory and time that are linear in the cells but for logarithms.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from manygp.data.batches import Batch, Plan, known_noise
from manygp.data.cells import Cells
from manygp.data.scaling import Scaling
from manygp.data.table import FloatArray, IntArray, Table

__all__ = ["GroupPlan", "Grouping", "group_cells", "neighborly"]

# Groups before a group that are looked at for its neighbours.
_NEAR_GROUPS = 8
# Lost stretches: lengths as shares of the cells of an output, the cells of one that are taken together, how many such
# pieces there are for every group, and the cells of the output itself that these are conditioned on.
_LENGTHS, _PIECE, _PIECES, _OWN = (0.05, 0.3), 16, 0.4, 8


@dataclass(frozen=True, eq=False)
class Grouping:
    """An order of cells in groups, each with a conditioning set.

    Parameters
    ----------
    cell
        Numbers of all cells, group after group, shape (c,).
    start
        Where groups begin in `cell`, and where the last one ends, shape (g + 1,).
    given
        Numbers of the cells that a group is conditioned on, all of groups before it, −1 for none, shape (g, k).
    """

    cell: IntArray
    start: IntArray
    given: IntArray

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.given)

    def members(self, groups: IntArray) -> IntArray:
        """Return conditioning sets and cells of some groups, −1 for none, shape (groups, k + size)."""
        first, size = self.start[groups], self.start[groups + 1] - self.start[groups]
        place = np.arange(size.max(initial=1))
        own = self.cell[np.minimum(first[:, None] + place, len(self.cell) - 1)]
        return np.concatenate([self.given[groups], np.where(place < size[:, None], own, -1)], axis=1)


@dataclass(frozen=True, eq=False)
class Stretch:
    """Cells of an output that are taken for lost, and those of it that are not, by their numbers.

    `x` (own, d) are inputs of the latter, in ascending order if there is one input.
    """

    cells: IntArray
    own: IntArray
    x: FloatArray

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.x)

    def around(self, x: FloatArray, count: int) -> IntArray:
        """Cells of the output that are nearest to an input (d,), on both sides of it where there is one input."""
        count = min(count, len(self.own))
        if len(x) > 1:
            return self.own[self._tree.query(x, k=np.arange(1, 1 + count))[1]]
        first = int(np.searchsorted(self.x[:, 0], x[0])) - count // 2
        first = min(max(first, 0), len(self.own) - count)
        return self.own[first : first + count]


def lose_stretches(
    z: FloatArray, output: IntArray, num_inputs: int, size: int, rng: np.random.Generator
) -> list[Stretch]:
    """Stretches of some outputs, at most one of each: runs of cells along one input, regions over several.

    Parameters
    ----------
    z, output
        Coordinates of all cells, inputs first, and their outputs.
    num_inputs
        Number of inputs.
    size
        Most cells of a group.
    rng
        Source of randomness.
    """
    order = np.lexsort((z[:, 0], output))
    of_output = np.split(order, np.flatnonzero(np.diff(output[order])) + 1)
    found, wanted = list[Stretch](), _PIECES * len(z) / size
    for i in rng.permutation(len(of_output)):
        cells = of_output[i]
        length = round(float(np.exp(rng.uniform(*np.log(_LENGTHS)))) * len(cells))
        if not 0 < length < len(cells):
            continue
        if num_inputs == 1:
            place = np.arange(len(cells)) - rng.integers(len(cells) - length + 1)
            is_lost = (place >= 0) & (place < length)
        else:
            away = np.square(z[cells, :num_inputs] - z[cells[rng.integers(len(cells))], :num_inputs]).sum(axis=1)
            is_lost = away <= np.partition(away, length - 1)[length - 1]
        own = cells[~is_lost]
        found.append(Stretch(cells[is_lost], own, z[own, :num_inputs]))
        wanted -= -(-length // _PIECE)
        if wanted <= 0:
            break
    return found


def group_cells(
    z: FloatArray, size: int, num_given: int, rng: np.random.Generator, lost: Sequence[Stretch] = ()
) -> Grouping:
    """Group cells at coordinates z (c, e), at most `size` together, and condition each group on cells before it.

    Stretches that are `lost` come last, a few cells at a time, which are conditioned on cells of no such stretch: some
    of the output itself, on both sides, and others.
    """
    rest = np.setdiff1d(
        np.arange(len(z)), np.concatenate([np.zeros(0, dtype=np.int64), *(stretch.cells for stretch in lost)])
    )
    parts = list(_median_cuts(z, size, rest))
    parts = [parts[i] for i in rng.permutation(len(parts))]
    given = list[IntArray]()
    count = _NEAR_GROUPS + num_given // size
    center = np.stack([z[part].mean(axis=0) for part in parts])
    for group, near in enumerate(_nearest_before(center, count)):
        candidates = np.concatenate([np.zeros(0, dtype=np.int64), *(parts[i] for i in near)])
        given.append(_nearest_cells(z, candidates, parts[group], num_given))
    tree, ranks = cKDTree(center), np.arange(1, 1 + min(count, len(parts)))
    known = list(parts)
    for stretch in lost:
        for piece in _median_cuts(z, _PIECE, stretch.cells):
            own = stretch.around(z[piece, : stretch.x.shape[1]].mean(axis=0), min(_OWN, num_given))
            near = np.concatenate([known[i] for i in tree.query(z[piece].mean(axis=0), k=ranks)[1]])
            others = _nearest_cells(z, np.setdiff1d(near, own), piece, num_given - len(own))
            given.append(np.concatenate([own, others]))
            parts.append(piece)
    sizes = [len(part) for part in parts]
    table = np.full((len(parts), num_given), -1, dtype=np.int64)
    for row, found in zip(table, given, strict=True):
        row[: len(found)] = found
    return Grouping(np.concatenate(parts), np.concatenate([[0], np.cumsum(sizes)]), table)


def _median_cuts(z: FloatArray, size: int, cells: IntArray) -> Iterator[IntArray]:
    """Cut some cells in two along the widest coordinate, again and again, until no part has more than `size`."""
    stack = [cells]
    while stack:
        part = stack.pop()
        if len(part) <= size:
            yield part
            continue
        points = z[part]
        along = points[:, np.argmax(np.ptp(points, axis=0))]
        # Whole groups on the left, so that few groups are not full.
        left = math.ceil(len(part) / size) // 2 * size
        order = np.argpartition(along, left - 1)
        stack += [part[order[left:]], part[order[:left]]]


def neighborly(z: FloatArray, size: int) -> IntArray:
    """Places of points z (c, e) in an order in which those that follow each other, `size` at a time, are close."""
    place = np.empty(len(z), dtype=np.int64)
    place[np.concatenate([np.zeros(0, dtype=np.int64), *_median_cuts(z, size, np.arange(len(z)))])] = np.arange(len(z))
    return place


def _nearest_before(center: FloatArray, count: int) -> Iterator[IntArray]:
    """For every point in order, the nearest `count` points before it."""
    yield np.zeros(0, dtype=np.int64)
    begin = 1
    # The nearest of twice as many points: on average half of them stand before a point.
    while begin < len(center):
        end = min(2 * begin, len(center))
        near = cKDTree(center[:end]).query(center[begin:end], k=min(2 * count + 1, end))[1]
        for i, found in enumerate(near, start=begin):
            yield found[found < i][:count]
        begin = end


def _nearest_cells(z: FloatArray, candidates: IntArray, group: IntArray, count: int) -> IntArray:
    """Those of some cells that are nearest to any cell of a group."""
    if len(candidates) <= count:
        return candidates
    a, b = z[candidates], z[group]
    s = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2.0 * a @ b.T
    return candidates[np.argpartition(s.min(axis=1), count - 1)[:count]]


class GroupPlan(Plan):
    """Batches of groups of cells with their conditioning sets.

    Parameters
    ----------
    table
        The observations, in either layout.
    scaling
        Maps inputs and values to scaled units as they are gathered.
    batch_cells
        About how many cells a batch has, conditioning sets not counted.
    size, num_given
        Most cells of a group and of a conditioning set.
    rng
        Source of the order of groups.
    numbers, shards
        Where several processes have a part of each batch: every batch is so many times as large, its groups are dealt
        to the shards in turn, and those of the shards with these numbers are here. All processes take the same
        grouping.
    weight
        As in `ShardPlan`.
    """

    def __init__(
        self,
        table: Table,
        scaling: Scaling,
        batch_cells: int,
        size: int,
        num_given: int,
        rng: np.random.Generator,
        numbers: Sequence[int] = (0,),
        shards: int = 1,
        weight: float = 1.0,
    ) -> None:
        self.table, self.scaling, self.size, self.num_given = table, scaling, size, num_given
        self._rng, self._numbers, self._shards, self._weight = rng, numbers, shards, weight
        self.places = table.places()
        self.num_batches = max(1, math.ceil(len(self.places) / (shards * batch_cells)))
        self._counts = table.count_per_output()
        self._empty = np.flatnonzero(self._counts == 0)
        self._input = distinct_inputs(table)
        self.grouping: Grouping

    def arrange(self, z: FloatArray, loses: bool = False) -> None:
        """Group the cells anew, at coordinates z (c, e) of all observed cells in the order of `places`.

        With `loses`, some stretches are conditioned on what would be known about them if they were lost.
        """
        output = self.table.cells(self.places)[1]
        lost = lose_stretches(z, output, self.table.num_features, self.size, self._rng) if loses else []
        self.grouping = group_cells(z, self.size, self.num_given, self._rng, lost)

    def state(self) -> dict[str, Any]:
        """Return the groups as they are, and where the source of their order is."""
        return {"grouping": dict(vars(self.grouping)), "rng": self._rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.grouping = Grouping(**state["grouping"])
        self._rng.bit_generator.state = state["rng"]

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self.num_batches

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch; outputs without any cell are dealt out over the batches."""
        empty, dealt = rng.permutation(self._empty), rng.permutation(self.num_batches)
        parts = np.array_split(rng.permutation(len(self.grouping)), self.num_batches)
        keys = rng.integers(2**63, size=self.num_batches).tolist() if self._shards > 1 else [None] * self.num_batches
        for step, (groups, key) in enumerate(zip(parts, keys, strict=True)):
            yield self.batch(self._own(groups), self._own(empty[dealt[step] :: self.num_batches]), key)

    def _own(self, numbers: IntArray) -> IntArray:
        """What is dealt to the shards that are here."""
        return numbers[np.isin(np.arange(len(numbers)) % self._shards, self._numbers)]

    def batch(self, groups: IntArray, empty: IntArray, key: int | None = None) -> Batch:
        """Return the batch of some groups, and of some outputs without cells."""
        members = self.grouping.members(groups)
        cells, index = np.unique(members, return_inverse=True)
        # Number −1, which stands for none, comes first if it is there.
        missing = int(len(cells) > 0 and cells[0] < 0)
        index, cells = index.reshape(members.shape) - missing, cells[missing:]
        row, output, y = self.table.cells(self.places[cells])
        present, column = np.unique(output, return_inverse=True)
        own = index[:, self.num_given :]
        count = np.bincount(column[own[own >= 0]], minlength=len(present))
        share = np.concatenate([count / self._counts[present], np.ones(len(empty))])
        return Batch(
            x=self.scaling.scale_x(self.table.X[row]),
            outputs=np.concatenate([present, empty]),
            column=column,
            row=self._input[row],
            y=self.scaling.scale_y(y, output),
            cell_weight=self._weight * self.num_batches,
            output_weight=self._weight * self.num_batches * share,
            noise=known_noise(self.table, self.scaling, row, output),
            members=index,
            num_given=self.num_given,
            key=key,
        )


def distinct_inputs(table: Table) -> IntArray:
    """Number of the input of every row: rows of a grid have one each, cells of a list share those that are equal."""
    if not isinstance(table, Cells):
        return np.arange(table.num_inputs)
    return np.unique(table.X, axis=0, return_inverse=True)[1].reshape(-1)
