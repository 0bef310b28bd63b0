"""The distribution of weighted sums of cells."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray
from manygp.errors import SettingError

_BISECTIONS = 60


class Aggregate:
    """Weighted sums of predicted cells, as a distribution: means of regions, totals of years, differences.

    Made by `aggregate`, `mean_over` and `sum_over` of a prediction. Where observations are Gaussian, each sum is a
    mixture of Gaussians over draws of the latent vectors, with exact means. Where they are not, as for counts, means
    are exact and all else is by joint draws.

    Parameters
    ----------
    labels
        What each sum is of, one row each.
    means, variances
        Of the components, shape (s, g); or the exact means (1, g) and None.
    draws
        Joint draws (n, g) that stand for the distribution, or None.
    sampler
        Joint draws of the sums: from a number and a seed to (n, g).
    has_noise
        Whether sums are of observations; otherwise of the functions behind them.

    Attributes
    ----------
    labels : data frame with one row for each sum
    observation_noise : whether the noise of observations is part of the sums
    """

    def __init__(
        self,
        labels: pd.DataFrame,
        means: FloatArray,
        variances: FloatArray | None,
        draws: FloatArray | None,
        sampler: Callable[[int, int], FloatArray],
        has_noise: bool,
    ):
        self.labels, self._means, self._variances = labels, means, variances
        self._draws, self._sampler, self.observation_noise = draws, sampler, has_noise

    def __repr__(self) -> str:
        kind = "observations" if self.observation_noise else "functions"
        return f"<Aggregate of {kind}: {len(self.labels):,} sums; see mean, std, interval and to_frame>"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def mean(self) -> FloatArray:
        """Means of the sums, exact."""
        return self._means.mean(0)

    @property
    def variance(self) -> FloatArray:
        """Variances of the sums."""
        if self._variances is None:
            assert self._draws is not None
            return self._draws.var(0, ddof=1)
        # var = E[v_s] + var[m_s] over the components s
        return self._variances.mean(0) + self._means.var(0)

    @property
    def std(self) -> FloatArray:
        """Standard deviations of the sums."""
        return np.sqrt(self.variance)

    def cdf(self, values: Any) -> FloatArray:
        """Probability that each sum is at or below a value, one for each sum or one for all."""
        given = np.broadcast_to(as_numbers(values, "values"), (len(self),))
        if self._variances is None:
            assert self._draws is not None
            return (self._draws <= given).mean(0)
        return ndtr((given - self._means) / np.sqrt(np.maximum(self._variances, 1e-300))).mean(0)

    def quantile(self, q: float | Sequence[float]) -> FloatArray:
        """Quantiles of the sums; for several levels, the first axis of the result runs over them."""
        levels = checked_levels(q)
        if self._variances is None:
            assert self._draws is not None
            values = np.quantile(self._draws, levels, axis=0)
        else:
            values = np.stack([self._bisect(level) for level in levels])
        return values[0] if np.ndim(q) == 0 else values

    def interval(self, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of the central interval that holds each sum with probability `level`."""
        lower, upper = self.quantile(central_levels(level))
        return lower, upper

    def sample(self, n: int = 1, random_state: int = 0) -> FloatArray:
        """`n` joint draws of all sums, shape (n, g): those of the cells that `sample` of the prediction would give."""
        return self._sampler(n, random_state)

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """The labels with mean, std and the ends of the central interval."""
        lower, upper = self.interval(level)
        percent = f"{100 * level:g}"
        columns = {"mean": self.mean, "std": self.std, f"lower{percent}": lower, f"upper{percent}": upper}
        return self.labels.assign(**columns)

    def to_xarray(self, level: float = 0.9) -> Any:
        """An xarray Dataset over the labels: mean, std, lower and upper; one dimension for each column of labels."""
        lower, upper = self.interval(level)
        frame = self.labels.assign(mean=self.mean, std=self.std, lower=lower, upper=upper)
        return frame.set_index(list(self.labels.columns)).to_xarray().assign_attrs(level=level)

    def _bisect(self, level: float) -> FloatArray:
        assert self._variances is not None
        # By Chebyshev's inequality no component has its quantile farther out.
        reach = np.sqrt(self._variances / min(level, 1.0 - level))
        lower, upper = (self._means - reach).min(0), (self._means + reach).max(0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            is_below = self.cdf(middle) < level
            lower, upper = np.where(is_below, middle, lower), np.where(is_below, upper, middle)
        return 0.5 * (lower + upper)


def checked_levels(q: Any) -> FloatArray:
    """Levels of quantiles as an array."""
    levels = np.atleast_1d(as_numbers(q, "q"))
    if levels.ndim != 1 or not levels.size or not np.all((levels > 0) & (levels < 1)):
        raise SettingError(f"quantile({q!r}): give one or more levels strictly between 0 and 1.")
    return levels


def central_levels(level: Any) -> tuple[float, float]:
    """Levels of the two ends of the central interval that holds this probability."""
    if np.ndim(level) or not 0 < as_numbers(level, "level") < 1:
        raise SettingError(f"interval({level!r}): the level must lie strictly between 0 and 1.")
    return 0.5 - 0.5 * level, 0.5 + 0.5 * level
