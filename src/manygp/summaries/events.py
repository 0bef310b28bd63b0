"""Probabilities of what happens at many cells together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.summaries.groups import OVER


@dataclass(frozen=True)
class Probability:
    """Probabilities, and how far off they may be.

    Attributes
    ----------
    value
        The probabilities.
    error
        Their Monte Carlo standard errors; 0 where they are exact.
    num_draws
        Number of joint draws that they are shares of; 0 where they are exact.
    """

    value: FloatArray
    error: FloatArray
    num_draws: int

    def __float__(self) -> float:
        return float(self.value)


def share_of_draws(hits: FloatArray) -> Probability:
    """The share of draws, on the first axis, in which something happens."""
    n = len(hits)
    value = hits.mean(0)
    # Where it happens in all draws or in none, the error is that of one draw more.
    smoothed = (hits.sum(0) + 1.0) / (n + 2.0)
    return Probability(value, np.sqrt(smoothed * (1.0 - smoothed) / n), n)


def exceedance(
    above: float | None, below: float | None, any_over: str | None, run: int, shape: tuple[int, ...]
) -> Callable[[FloatArray], Any]:
    """The event that values are above or below a level, as a function of draws (n, *shape); see `probability`."""
    if above is None and below is None:
        raise SettingError("probability needs an event: give a function of draws, or a level by above= or below=.")
    if any_over is not None and any_over not in OVER:
        raise SettingError(f"any_over={any_over!r} is unknown: use one of {', '.join(map(repr, OVER))}, or None.")
    if not isinstance(run, int | np.integer) or run < 1:
        raise SettingError(f"run={run!r} is no number of inputs: use a whole number of at least 1.")
    if len(shape) == 1 and (run > 1 or any_over in ("output", "input")):
        raise DataError("A list of cells has no rows of inputs: ask for any_over='all', or predict a grid.")

    def happens(values: FloatArray) -> Any:
        is_hit = np.ones(values.shape, dtype=bool)
        if above is not None:
            is_hit &= values > above
        if below is not None:
            is_hit &= values < below
        if run > 1:
            is_hit = has_run(is_hit, run)
            return is_hit.any(1) if any_over in ("output", "all") else is_hit
        axes: dict[str | None, Any] = {"output": 2, "input": 1, "all": tuple(range(1, values.ndim)), None: ()}
        return is_hit.any(axes[any_over])

    return happens


def has_run(hits: FloatArray, length: int) -> FloatArray:
    """Whether `length` hits follow each other along the second axis, of (n, inputs, outputs)."""
    if length > hits.shape[1]:
        return np.zeros((hits.shape[0], hits.shape[2]), dtype=bool)
    # Sums over windows are differences of sums.
    total = np.concatenate([np.zeros_like(hits[:, :1], dtype=np.int64), hits.cumsum(1)], axis=1)
    return (total[:, length:] - total[:, :-length] == length).any(1)
