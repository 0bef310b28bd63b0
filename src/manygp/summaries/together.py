"""What a prediction says about its cells together."""

import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from manygp.data.names import find_outputs
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError
from manygp.likelihoods import Likelihood, Noiseless
from manygp.summaries.aggregate import Aggregate
from manygp.summaries.cells import JointCells
from manygp.summaries.events import Probability, exceedance, share_of_draws
from manygp.summaries.groups import given_weights, group_weights
from manygp.summaries.scores import energy_score, variogram_score

# Numbers of joint draws that are held at a time where only a summary of them is wanted.
_DRAWN_NUMBERS = 20_000_000


class TogetherMixin:
    """Draws, sums, covariances, events and scores of cells together; a part of `Prediction`."""

    shape: tuple[int, ...]
    output_names: tuple[Hashable, ...]
    _rows: pd.DataFrame
    _likelihood: Likelihood
    _together_by: Callable[[bool], JointCells] | None
    _as_values: Callable[[Any], FloatArray]

    @property
    def mean(self) -> FloatArray:
        """Predictive mean."""
        raise NotImplementedError

    # -- sums ----------------------------------------------------------------------------------------------------

    def aggregate(
        self, weights: Any, *, observation_noise: bool | None = None, num_draws: int = 1000, random_state: int = 0
    ) -> Aggregate:
        """The distribution of weighted sums of cells: regions, totals, differences and other contrasts.

        Parameters
        ----------
        weights
            One weight for each cell, in the shape of the prediction, for one sum; with one axis more in front for
            several; or a matrix, sparse or not, of sums times cells. The index of a data frame names the sums.
        observation_noise
            Whether to sum observations, each with noise of its own, or the functions behind them; by default what the
            prediction is of.
        num_draws, random_state
            Number of joint draws, and their seed, where sums have no closed form: observations that are not Gaussian.
        """
        matrix, labels = given_weights(weights, self.shape)
        return self._aggregate(matrix, labels, observation_noise, num_draws, random_state)

    def mean_over(
        self,
        over: str,
        *,
        weights: Any = None,
        by: Any = None,
        freq: str | None = None,
        observation_noise: bool | None = None,
        num_draws: int = 1000,
        random_state: int = 0,
    ) -> Aggregate:
        """Weighted means over outputs or inputs, or over both.

        Parameters
        ----------
        over
            "output" for a mean at every input, such as that of a region over time; "input" for a mean of every output;
            "all" for one mean.
        weights
            Weights of what is averaged over, such as areas: an array, or a mapping or series by output name (for
            "input", by the labels of rows). Equal by default.
        by
            Labels of what is averaged over, in the same forms: one mean for each label, such as the region of an
            output.
        freq
            A frequency of pandas for inputs with dates, such as "YS" for years or "MS" for months, which are averaged
            over too.
        observation_noise, num_draws, random_state
            See `aggregate`.
        """
        matrix, labels = group_weights(over, weights, by, freq, False, self.shape, self._rows, self.output_names)
        return self._aggregate(matrix, labels, observation_noise, num_draws, random_state)

    def sum_over(
        self,
        over: str,
        *,
        weights: Any = None,
        by: Any = None,
        freq: str | None = None,
        observation_noise: bool | None = None,
        num_draws: int = 1000,
        random_state: int = 0,
    ) -> Aggregate:
        """Weighted totals over outputs or inputs, or over both; arguments are those of `mean_over`."""
        matrix, labels = group_weights(over, weights, by, freq, True, self.shape, self._rows, self.output_names)
        return self._aggregate(matrix, labels, observation_noise, num_draws, random_state)

    def _aggregate(
        self, W: sparse.csr_array, labels: pd.DataFrame, noise: bool | None, num_draws: int, seed: int
    ) -> Aggregate:
        check_draws(num_draws, seed)
        has_noise = not isinstance(self._likelihood, Noiseless) if noise is None else bool(noise)
        cells = self._cells_together(has_noise)

        def sample(n: int, random_state: int) -> FloatArray:
            check_draws(n, random_state)
            size = max(1, _DRAWN_NUMBERS // cells.num_cells)
            parts = np.split(np.arange(n), np.arange(size, n, size))
            return np.concatenate([(W @ cells.sample(part, random_state).T).T for part in parts])

        if cells.is_gaussian:
            return Aggregate(labels, *cells.moments_of_sums(W), None, sample, has_noise)
        mean = (W @ self.mean.reshape(-1))[None]
        return Aggregate(labels, mean, None, sample(num_draws, seed), sample, has_noise)

    # -- second moments ------------------------------------------------------------------------------------------

    def covariance(self, cells_a: Any, cells_b: Any = None) -> FloatArray:
        """Covariances between some cells and others.

        Parameters
        ----------
        cells_a, cells_b
            Cells of the prediction, as flat numbers, or as pairs of (row, output), outputs by name or position; for a
            list of cells, their numbers. `cells_b` are `cells_a` by default.
        """
        a = self._numbers(cells_a)
        return self._own_cells().covariance(a, a if cells_b is None else self._numbers(cells_b))

    def correlation(self, cells_a: Any, cells_b: Any = None) -> FloatArray:
        """Correlations between some cells and others, see `covariance`."""
        a = self._numbers(cells_a)
        b = a if cells_b is None else self._numbers(cells_b)
        cells, place = np.unique(np.concatenate([a, b]), return_inverse=True)
        joint = self._own_cells()
        sd = np.sqrt(joint.variance(cells))[place]
        return joint.covariance(a, b) / (sd[: len(a), None] * sd[len(a) :])

    def _numbers(self, cells: Any) -> IntArray:
        """Cells by flat number."""
        if len(self.shape) == 2 and len(cells) and np.ndim(cells[0]) > 0 and not isinstance(cells, np.ndarray):
            rows = np.array([row for row, _ in cells])
            columns = find_outputs(self.output_names, [output for _, output in cells])
            numbers = rows * self.shape[1] + columns
        else:
            given = np.asarray(cells)
            numbers = given[:, 0] * self.shape[1] + given[:, 1] if given.ndim == 2 else np.atleast_1d(given)
        size = math.prod(self.shape)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not ((numbers >= 0) & (numbers < size)).all():
            raise DataError(
                f"cells must be whole numbers from 0 to {size - 1}, or pairs of a row and an output; got {cells!r}."
            )
        return numbers.astype(np.int64)

    # -- events and scores ---------------------------------------------------------------------------------------

    def probability(
        self,
        event: Callable[[FloatArray], Any] | None = None,
        *,
        above: float | None = None,
        below: float | None = None,
        any_over: str | None = None,
        run: int = 1,
        num_draws: int = 1000,
        random_state: int = 0,
    ) -> Probability:
        """The probability of an event that involves many cells, by joint draws, with its Monte Carlo error.

        Parameters
        ----------
        event
            A function of draws (n, *shape) that tells for each whether the event happens, shape (n,) or (n, ...). Or
            None, for values above or below a level:
        above, below
            The level that values exceed, or stay under; with both, between which they are.
        any_over
            Where one such value is enough: "output" for any output at an input, "input" for any input of an output,
            "all" for any cell; None for each cell by itself, which is exact.
        run
            So many such inputs in a row, in the order of the prediction: of each output, or of any with
            `any_over="output"` or "all".
        num_draws, random_state
            Number of joint draws, and their seed.
        """
        check_draws(num_draws, random_state)
        if event is None:
            event = exceedance(above, below, any_over, run, self.shape)
            if any_over is None and run == 1:
                return self._single(above, below)
        size = max(1, _DRAWN_NUMBERS // math.prod(self.shape))
        hits = []
        for start in range(0, num_draws, size):
            draws = self._joint_draws(start, min(start + size, num_draws), random_state)
            hits.append(np.asarray(event(draws)))
            if not hits[-1].shape or len(hits[-1]) != len(draws):
                raise DataError(
                    f"The event gave an answer of shape {hits[-1].shape} for {len(draws)} draws; give one, True or "
                    "False, for each draw on the first axis."
                )
        return share_of_draws(np.concatenate(hits).astype(bool))

    def _single(self, above: float | None, below: float | None) -> Probability:
        ones = np.ones(self.shape)
        upper = ones if below is None else self.cdf(np.nextafter(below, -np.inf) * ones)
        lower = 0.0 if above is None else self.cdf(above * ones)
        return Probability(np.maximum(upper - lower, 0.0), np.zeros(self.shape), 0)

    def cdf(self, Y: Any) -> FloatArray:
        """Predictive probability of a value at or below the given ones."""
        raise NotImplementedError

    def energy_score(self, Y: Any, *, num_draws: int = 500, random_state: int = 0) -> float:
        """Energy score of all given values together (lower is better): the CRPS of a vector, by joint draws.

        Cells that are NaN are left out.
        """
        return self._joint_score(energy_score, Y, num_draws, random_state)

    def variogram_score(self, Y: Any, *, num_draws: int = 500, random_state: int = 0) -> float:
        """Variogram score of order ½ of all given values together (lower is better), averaged over pairs of cells.

        It judges what a prediction says about differences of cells, and so about their dependence. Cells that are NaN
        are left out.
        """
        return self._joint_score(variogram_score, Y, num_draws, random_state)

    def _joint_score(
        self, score: Callable[[FloatArray, FloatArray], float], Y: Any, num_draws: int, random_state: int
    ) -> float:
        check_draws(num_draws, random_state)
        values = self._as_values(Y)
        self._likelihood.check(values)
        seen = ~np.isnan(values)
        if not seen.any():
            raise DataError("Y has no value to score: every one is NaN, or there is none; give at least one.")
        return score(self._joint_draws(0, num_draws, random_state)[:, seen], values[seen])

    # -- all cells -----------------------------------------------------------------------------------------------

    def _joint_draws(self, first: int, stop: int, seed: int) -> FloatArray:
        draws = self._own_cells().sample(np.arange(first, stop), seed)
        return draws.reshape(stop - first, *self.shape)

    def _own_cells(self) -> JointCells:
        return self._cells_together(not isinstance(self._likelihood, Noiseless))

    def _cells_together(self, has_noise: bool) -> JointCells:
        if self._together_by is None:
            raise SettingError("This prediction knows single cells alone: use one that predict_dist of a model gives.")
        return self._together_by(has_noise)


def check_draws(n: object, random_state: object) -> None:
    """Refuse what is no number of draws, or no seed."""
    if not _is_whole(n) or n < 1:  # type: ignore[operator]
        raise SettingError(f"sample({n!r}): the number of draws must be a whole number of at least 1.")
    if not _is_whole(random_state) or not 0 <= random_state < 2**63:  # type: ignore[operator]
        raise SettingError(f"random_state={random_state!r} is no seed: use a whole number from 0 to 2⁶³ − 1.")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
