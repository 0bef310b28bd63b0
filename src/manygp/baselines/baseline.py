"""The interface of a plain method, and the rehearsal by which it is tuned and judged."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.stats import norm
from sklearn.base import BaseEstimator

from manygp.data import Grid, Scaling, as_table, pattern_split
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError

# Standard deviations are at least this, so that cells that were learnt from have a density.
_LEAST_STD = 1e-6
# How many residuals of all outputs count beside an output's own.
_BORROWED = 5.0


class Baseline(BaseEstimator, ABC):
    """A plain method that fills the gaps of a table."""

    random_state: int
    # Units to work in: those of each output, or one for all.
    scale: Any = "output"

    def fill(self, X: Any, Y: Any) -> FloatArray:
        """Fill the gaps of a table.

        Parameters
        ----------
        X
            Inputs, shape (n, d); whatever `fit` of an estimator takes.
        Y
            Values, shape (n, p), NaN where they are missing. Every output needs an observed cell.

        Returns
        -------
        The table, shape (n, p): observed cells as they are, gaps filled.
        """
        X, Y = _checked(X, Y)
        return self._complete(X, Y)

    def error_std(self, X: Any, Y: Any) -> FloatArray:
        """Root mean squared error of the fillings of each output, shape (p,).

        Some observed cells are held out in the pattern of the gaps, see `data.pattern_split`, and filled from the
        others. An output leans on its own errors as far as it has any, and on those of all outputs, in units of their
        spread, for the rest. A fifth of the cells less to learn from makes errors a little too large.

        Parameters
        ----------
        X, Y
            As in `fill`.
        """
        X, Y = _checked(X, Y)
        rehearsal, answers = self._rehearse(X, Y)
        unit = Scaling.fit(Grid(X, Y), outputs="output").y_scale
        squares = ((self._complete(X, rehearsal) - answers) / unit) ** 2
        count = (~np.isnan(answers)).sum(0)
        typical = np.nanmean(squares) if count.any() else 1.0
        return np.asarray(unit * np.sqrt((np.nansum(squares, 0) + _BORROWED * typical) / (count + _BORROWED)))

    def _complete(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """The table with its gaps filled, worked out in units of the spread of inputs and outputs."""
        gaps = np.isnan(Y)
        if not gaps.any():
            return Y.copy()
        scaling = Scaling.fit(Grid(X, Y), outputs=self.scale)
        filled = scaling.unscale_mean(self._fill(scaling.scale_x(X), scaling.scale_y(Y)))
        return np.where(gaps, filled, Y)

    @abstractmethod
    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """Values for the gaps of a table of standardised columns, and anything elsewhere, shape (n, p)."""

    def _rehearse(self, X: FloatArray, Y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The table with more gaps, and the values that belong there (NaN elsewhere)."""
        if (~np.isnan(Y)).sum() < 2:
            return Y, np.full_like(Y, np.nan)
        _, test = pattern_split(Grid(X, Y), np.random.default_rng(self.random_state))
        held_out = test.observed(slice(None))
        return np.where(held_out, np.nan, Y), np.where(held_out, Y, np.nan)

    def _best(self, candidates: Iterable[Self], X: FloatArray, Y: FloatArray) -> Self:
        """The candidate that fills a rehearsal of standardised columns with the least squared error."""
        rehearsal, answers = self._rehearse(X, Y)
        return min(candidates, key=lambda method: float(np.nansum((method._fill(X, rehearsal) - answers) ** 2)))


def _checked(X: Any, Y: Any) -> tuple[FloatArray, FloatArray]:
    """Inputs and values as arrays, NaN where values are missing."""
    table = as_table(X, Y)
    empty = np.flatnonzero(table.count_per_output() == 0)
    if len(empty):
        raise DataError(
            f"Output {table.output_names[empty[0]]!r} has no observed cell, and a plain method learns nothing about it "
            "from others; leave it out."
        )
    rows = np.arange(table.num_inputs)
    return table.X, table.block(rows, np.arange(table.num_outputs))


def normal_scores(error: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Negative log density, CRPS and probability integral transform of truth under N(truth - error, std²)."""
    z = error / std
    # ∫ (Φ(t) - 1[t > z])² dt = z (2 Φ(z) - 1) + 2 φ(z) - 1/√π, times the unit
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    return -norm.logpdf(error, scale=std), crps, norm.cdf(z)


# Rows that two outputs have in common before their correlation counts in full.
_ENOUGH_ROWS = 10.0


def closest_outputs(Y: FloatArray, number: int) -> IntArray:
    """The other outputs most correlated with each output over the rows that both have, shape (p, number) at most."""
    seen = (~np.isnan(Y)).astype(np.float64)
    values = np.nan_to_num(Y)
    # r_pq = Σ y_p y_q / √(Σ y_p² Σ y_q²), all sums over common rows
    products, squares, common = values.T @ values, (values**2).T @ seen, seen.T @ seen
    correlation = products / np.sqrt(np.maximum(squares * squares.T, np.finfo(np.float64).tiny))
    closeness = np.abs(correlation) * common / (common + _ENOUGH_ROWS)
    np.fill_diagonal(closeness, -1.0)
    number = min(number, Y.shape[1] - 1)
    return np.argsort(-closeness, axis=1, kind="stable")[:, :number]


@dataclass(frozen=True, eq=False)
class Filled:
    """What a plain method says of a table: means and standard deviations, shape (n, p)."""

    mean: FloatArray
    std: FloatArray

    def score(self, Y: FloatArray, plug_in: bool = False) -> dict[str, float]:
        """Scores on the cells of Y that are not NaN; of counts, whose NLL is of a probability, the MSE alone."""
        known = ~np.isnan(Y)
        error = (Y - self.mean)[known]
        scores = {"mse": float(np.mean(error**2))}
        if plug_in:
            return scores
        nll, crps, pit = normal_scores(error, np.maximum(self.std[known], _LEAST_STD))
        inside = {f"coverage{level}": float(np.mean(np.abs(2 * pit - 1) <= level / 100)) for level in (50, 90)}
        return scores | {"nll": float(nll.mean()), "crps": float(crps.mean())} | inside
