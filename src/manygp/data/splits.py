"""Splits of a table into training and test cells: at random, in blocks, by whole outputs.

Both parts keep all outputs and, on a grid, share inputs and values with the table they came from; only
their masks differ.
"""

from typing import Literal

import numpy as np

from manygp.data.cells import Cells
from manygp.data.grid import Grid
from manygp.data.table import CHUNK_CELLS, BoolArray, IntArray, PlaceArray, Table
from manygp.errors import DataError, SettingError

# How often gaps are moved to hold enough cells out.
_MOST_MOVES = 10


def random_split(table: Table, fraction: float, rng: np.random.Generator) -> tuple[Table, Table]:
    """Hold out observed cells at random.

    Parameters
    ----------
    table
        The observations.
    fraction
        Share of the observed cells that is held out.
    rng
        Source of randomness.
    """
    held = _share(fraction, table.num_observed, "fraction")
    return _split(table, rng.choice(table.places(), held, replace=False, shuffle=False))


def block_split(
    table: Table,
    output_fraction: float,
    input_fraction: float,
    rng: np.random.Generator,
    start: Literal["random", "end"] = "random",
) -> tuple[Table, Table]:
    """Hold out one stretch of successive inputs from each of some outputs.

    Inputs succeed each other in the order of their value where they have one feature, and in the order of the
    rows where they have several. In a list of cells, an output's stretch runs over its own cells.

    Parameters
    ----------
    table
        The observations.
    output_fraction
        Share of the outputs that lose a stretch.
    input_fraction
        Length of the stretch as a share of the inputs.
    rng
        Source of randomness.
    start
        Where a stretch begins: "random", or so that it reaches the "end", which asks for extrapolation.
    """
    if start not in ("random", "end"):
        raise SettingError(f'start={start!r} is no place for a stretch; choose "random" or "end".')
    num_outputs = (
        table.num_outputs if output_fraction == 1 else _share(output_fraction, table.num_outputs, "output_fraction")
    )
    chosen = np.sort(rng.choice(table.num_outputs, num_outputs, replace=False))
    order = np.argsort(table.X[:, 0], kind="stable") if table.num_features == 1 else np.arange(table.num_inputs)
    rank = np.empty(table.num_inputs, dtype=np.int64)
    rank[order] = np.arange(table.num_inputs)
    places = table.places()
    row, output, _ = table.cells(places)
    if isinstance(table, Cells):
        rank, total = _rank_within(output, rank), table.count_per_output()
    else:
        rank, total = rank[row], np.full(table.num_outputs, table.num_inputs)
    length = np.zeros(table.num_outputs, dtype=np.int64)
    length[chosen] = np.maximum(1, np.round(_checked(input_fraction, "input_fraction") * total[chosen]))
    latest = np.maximum(total - length, 0)
    first = latest if start == "end" else rng.integers(0, latest + 1)
    return _split(table, places[(rank >= first[output]) & (rank < (first + length)[output])])


def output_split(table: Table, fraction: float, rng: np.random.Generator) -> tuple[Table, Table]:
    """Hold out all cells of some outputs.

    Parameters
    ----------
    table
        The observations.
    fraction
        Share of the outputs that is held out.
    rng
        Source of randomness.
    """
    held = np.zeros(table.num_outputs, dtype=np.bool_)
    held[rng.choice(table.num_outputs, _share(fraction, table.num_outputs, "fraction"), replace=False)] = True
    places = table.places()
    return _split(table, places[held[table.cells(places)[1]]])


def pattern_split(table: Grid, rng: np.random.Generator, share: float = 0.2) -> tuple[Grid, Grid]:
    """Hold out observed cells in the pattern of the gaps, to rehearse filling them.

    Some outputs borrow the gaps of another: a table with lost blocks loses further blocks, one with scattered
    gaps loses scattered cells. No output gives up more than half of its cells, and no input more than a quarter
    or one. Where gaps are too rare to borrow, cells at random make up the rest.

    Parameters
    ----------
    table
        The observations.
    rng
        Source of randomness.
    share
        Share of the observed cells to hold out, about.
    """
    counts = table.count_per_output()
    target = _share(share, table.num_observed, "share")
    donors = np.flatnonzero((counts > 0) & (counts < table.num_inputs))
    held = np.zeros(table.Y.shape, dtype=np.bool_)
    # Of few outputs that share an input, the loss of two is a much harder task than the gaps pose.
    spare = np.minimum(table.count_per_input() // 2, np.maximum(1, table.count_per_input() // 4))
    wanted = target
    receivers = rng.permutation(np.flatnonzero(counts > 1)) if len(donors) else donors
    chunk = max(1, CHUNK_CELLS // table.num_inputs)
    for begin in range(0, len(receivers), chunk):
        outputs = receivers[begin : begin + chunk]
        lost = _borrowed_gaps(table, outputs, rng.choice(donors, len(outputs)), counts[outputs] // 2, rng)
        lost &= np.cumsum(lost, axis=1) <= spare[:, None]
        # Whole outputs until there is enough: what an output loses must stay in one piece.
        enough = np.cumsum(lost.sum(axis=0)) - lost.sum(axis=0) < wanted
        held[:, outputs[enough]] = lost[:, enough]
        spare -= lost[:, enough].sum(axis=1)
        wanted -= int(lost[:, enough].sum())
        if wanted <= 0:
            break
    # A smaller set in the right pattern says more than a full one of easy cells, unless it says nothing at all.
    if target - wanted <= target // 10:
        places = table.places()
        free = places[~held.reshape(-1)[places]]
        held.reshape(-1)[rng.choice(free, min(wanted, len(free) // 2), replace=False)] = True
    return _split_grid(table, np.flatnonzero(held))


def gap_split(table: Table, rng: np.random.Generator, share: float = 0.2) -> tuple[Table, Table]:
    """Hold out observed cells in the pattern of all that is missing.

    Along one input, the gaps of all outputs are moved by the same distance, so that what is lost together is held out
    together. Over several inputs this is `pattern_split`. Inputs that have no value at all are rehearsed by stretches
    of whole inputs as long as those. Cells at random where nothing is missing, or where outputs do not share inputs.

    Parameters
    ----------
    table
        The observations.
    rng
        Source of randomness.
    share
        Share of the observed cells to hold out, about.
    """
    grid = table.compact()
    if not isinstance(grid, Grid):
        return random_split(grid, share, rng)
    empty = grid.count_per_input() == 0
    observed = ~np.isnan(grid.block(np.arange(grid.num_inputs), np.arange(grid.num_outputs)))
    counts = observed.sum(0)
    has_gaps = bool(((counts > 0) & (counts < (~empty).sum())).any())
    held = np.zeros(observed.shape, dtype=np.bool_)
    if has_gaps or not empty.any():
        # Inputs without any value are no pattern of single outputs.
        rows = np.flatnonzero(~empty)
        if has_gaps and grid.num_features == 1 and len(rows) > 1:
            rows = rows[np.argsort(grid.X[rows, 0], kind="stable")]
            held[rows] = _moved_gaps(~observed[rows], share, rng)
        else:
            held[rows] = pattern_split(grid.take(rows), rng, share)[1].observed(slice(None))
    if empty.any():
        order = np.argsort(grid.X[:, 0], kind="stable") if grid.num_features == 1 else np.arange(grid.num_inputs)
        held[order[_rows_like(empty[order], share, rng)]] = True
    train, test = _split_grid(grid, np.flatnonzero(held & observed))
    train.exposure = test.exposure = grid.exposure
    return train, test


def _moved_gaps(gaps: BoolArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Observed cells to hold out: gaps, moved along the inputs, as many as there are gaps or a share of all cells.

    No output gives up more than half of its cells. Where gaps are very rare, cells at random make up the rest.
    """
    observed = ~gaps
    wanted, most = int(min(share, gaps.mean()) * observed.sum()), observed.sum(0) // 2
    held = np.zeros_like(gaps)
    for _ in range(_MOST_MOVES):
        moved = np.roll(gaps, int(rng.integers(1, len(gaps))), axis=0) & observed & ~held
        moved &= held.sum(0) + np.cumsum(moved, axis=0) <= most
        # Whole outputs until there is enough: what an output loses must stay in one piece.
        outputs = rng.permutation(gaps.shape[1])
        sizes = moved[:, outputs].sum(0)
        chosen = outputs[np.cumsum(sizes) - sizes < wanted - held.sum()]
        held[:, chosen] |= moved[:, chosen]
        if held.sum() >= wanted:
            break
    target = max(1, round(share * observed.sum()))
    if held.sum() <= target // 10:
        free = np.flatnonzero(observed & ~held)
        held.reshape(-1)[rng.choice(free, min(target, max(1, len(free) // 2)), replace=False)] = True
    return held


def _rows_like(empty: BoolArray, share: float, rng: np.random.Generator) -> BoolArray:
    """Rows to hold out where others are missing as a whole: runs as long as theirs, at other places."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], empty, [False]]).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    wanted = max(1, int(min(share, empty.mean()) * (~empty).sum()))
    chosen = np.zeros_like(empty)
    for _ in range(len(empty)):
        length = min(int(rng.choice(lengths)), wanted)
        start = int(rng.integers(0, len(empty) - length + 1))
        chosen[start : start + length] = True
        if (chosen & ~empty).sum() >= wanted:
            break
    return chosen & ~empty


def _borrowed_gaps(
    table: Grid, outputs: IntArray, donors: IntArray, most: IntArray, rng: np.random.Generator
) -> BoolArray:
    """Return the observed cells of some outputs at which their donors have gaps, at most so many each."""
    rows = np.arange(table.num_inputs)
    lost = ~np.isnan(table.block(rows, outputs)) & np.isnan(table.block(rows, donors))
    order = np.argsort(np.where(lost, rng.random(lost.shape), 2.0), axis=0)
    chosen = np.zeros_like(lost)
    np.put_along_axis(chosen, order, rows[:, None] < most, axis=0)
    return lost & chosen


def _split(table: Table, held: PlaceArray) -> tuple[Table, Table]:
    """Return the cells that are not at some places, and those that are."""
    if isinstance(table, Grid):
        return _split_grid(table, held)
    assert isinstance(table, Cells)
    _check_parts(table, held)
    chosen = np.zeros(table.num_observed, dtype=np.bool_)
    chosen[held] = True
    return _subset(table, ~chosen), _subset(table, chosen)


def _check_parts(table: Table, held: PlaceArray) -> None:
    if not 0 < len(held) < table.num_observed:
        raise DataError(
            f"The split puts {len(held)} of {table.num_observed} observed cells into the test part and one part is "
            "empty; choose another fraction or give more data."
        )


def _split_grid(table: Grid, held: PlaceArray) -> tuple[Grid, Grid]:
    _check_parts(table, held)
    test = np.zeros(table.Y.shape, dtype=np.bool_)
    test.reshape(-1)[held] = True
    train = ~test
    if table.mask is not None:
        train &= table.mask
    return _masked(table, train), _masked(table, test)


def _masked(table: Grid, mask: BoolArray) -> Grid:
    part = Grid(table.X, table.Y, table.output_names, mask=mask, feature_names=table.feature_names)
    part.axes, part.y_std = table.axes, table.y_std
    return part


def _subset(table: Cells, chosen: BoolArray) -> Cells:
    part = Cells(
        table.X[chosen], table.output[chosen], table.y[chosen], table.output_names, feature_names=table.feature_names
    )
    part.axes, part.y_std = table.axes, None if table.y_std is None else table.y_std[chosen]
    return part


def _rank_within(output: IntArray, rank: IntArray) -> IntArray:
    """Return the rank of each cell among the cells of its own output."""
    order = np.lexsort((rank, output))
    grouped = output[order]
    begins = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    within = np.arange(len(order)) - np.repeat(begins, np.diff(np.r_[begins, len(order)]))
    ranks = np.empty_like(rank)
    ranks[order] = within
    return ranks


def _checked(fraction: float, name: str) -> float:
    if not 0 < fraction < 1:
        raise SettingError(f"{name}={fraction!r} is no share; give a number between 0 and 1.")
    return float(fraction)


def _share(fraction: float, total: int, name: str) -> int:
    return max(1, round(_checked(fraction, name) * total))
