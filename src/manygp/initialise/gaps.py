"""The pattern of what is missing: how much, scattered or in stretches, and how many cells there are to go by."""

from dataclasses import dataclass

import numpy as np

from manygp.data import Table
from manygp.data.table import BoolArray, FloatArray

__all__ = ["Gaps"]

# Outputs that are looked at, and how many times longer a run of missing inputs is than chance makes it.
_MOST_OUTPUTS, _BEYOND_CHANCE = 200, 3.0


@dataclass(frozen=True)
class Gaps:
    """What is missing of a table.

    Parameters
    ----------
    share
        Share of the cells of the grid over all input rows that are missing.
    longest
        Longest run of missing inputs as a share of all inputs, the median over outputs that have gaps.
    is_scattered
        Whether runs are no longer than gaps at random places would make them.
    shares_inputs
        Whether any two outputs were observed at one input.
    cells_per_output, cells_per_input
        Least, median and most.
    """

    share: float
    longest: float
    is_scattered: bool
    shares_inputs: bool
    cells_per_output: tuple[int, int, int]
    cells_per_input: tuple[int, int, int]

    @classmethod
    def of(cls, table: Table, rng: np.random.Generator) -> "Gaps":
        """Of a table, runs by some of its outputs."""
        counts, n = table.count_per_output(), table.num_inputs
        share = 1.0 - table.num_observed / (n * table.num_outputs)
        order = np.argsort(table.X[:, 0], kind="stable") if table.num_features == 1 else np.arange(n)
        with_gaps = np.flatnonzero((counts > 0) & (counts < n))
        chosen = rng.permutation(with_gaps)[:_MOST_OUTPUTS]
        runs, chance = [0.0], [0.0]
        for p in chosen:
            missing = np.ones(n, dtype=np.bool_)
            missing[table.column(int(p))[0]] = False
            runs.append(_longest_run(missing[order]))
            # The longest run of n draws with probability q is about log(n (1 − q)) / log(1 / q).
            q = missing.mean()
            chance.append(max(np.log(n * (1.0 - q)) / -np.log(q), 1.0))
        is_scattered = bool(np.median(runs) <= _BEYOND_CHANCE * np.median(chance) + 1.0)
        longest = float(np.median(runs[1:] or runs)) / n
        per_input = table.count_per_input()
        shares_inputs = table.num_outputs == 1 or bool(per_input.max(initial=0) > 1)
        return cls(share, longest, is_scattered, shares_inputs, _range(counts), _range(per_input))

    def __str__(self) -> str:
        pattern = "no cell is missing"
        if not self.shares_inputs:
            pattern = "outputs have inputs of their own"
        elif self.share > 0.0:
            kind = "scattered" if self.is_scattered else "in stretches"
            pattern = f"{self.share:.0%} missing, {kind}, longest run {self.longest:.0%} of the inputs"
        of_output, of_input = _spell(self.cells_per_output), _spell(self.cells_per_input)
        return f"{pattern}; cells of an output {of_output}, of an input {of_input}"


def _longest_run(missing: BoolArray) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _range(counts: np.ndarray) -> tuple[int, int, int]:
    numbers: FloatArray = np.quantile(counts, [0.0, 0.5, 1.0])
    least, middle, most = (int(number) for number in numbers)
    return least, middle, most


def _spell(numbers: tuple[int, int, int]) -> str:
    least, middle, most = numbers
    return f"{least:,}" if least == most else f"{least:,} to {most:,} (median {middle:,})"
