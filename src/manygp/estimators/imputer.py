"""Gaps of a table filled by a GP, as a transformer of scikit-learn."""

from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted, validate_data

from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators.tlvmogp import TLVMOGP


class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Fill the gaps of a table, NaN, from what its columns have in common and how they vary over the rows.

    Every column is an output. Inputs are columns that are named, or else the order of the rows. Rows of the table of
    the fit are filled with predictions of the model; those of any other table are conditioned on what is observed in
    the row itself. Observed values stay as they are.

    Parameters
    ----------
    estimator
        The model, a `TLVMOGP` by default.
    inputs
        Columns that hold the inputs, by name or position, which may have no gaps; None for the order of the rows.
    n_draws
        0 fills gaps with predictive means. With a number of at least 1, `transform` fills them with that many joint
        draws and returns these tables one behind the other, with a new first axis unless it is 1.
    return_std
        Whether `transform` returns standard deviations beside, 0 where something is observed.
    random_state
        Seed of the draws.

    Attributes
    ----------
    estimator_ : the fitted model, None for a table without gaps and with fewer than two rows
    n_features_in_, feature_names_in_

    Examples
    --------
    >>> import numpy as np, manygp
    >>> x = np.linspace(0, 6, 40)
    >>> Y = np.sin(x[:, None] + np.arange(4))
    >>> Y[10:16, 1] = np.nan
    >>> bool(np.isnan(manygp.Imputer().fit_transform(Y)).any())
    False
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        inputs: Sequence[Hashable] | None = None,
        n_draws: int = 0,
        return_std: bool = False,
        random_state: int = 0,
    ):
        self.estimator, self.inputs, self.n_draws = estimator, inputs, n_draws
        self.return_std, self.random_state = return_std, random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the model to a table.

        Parameters
        ----------
        X
            The table, shape (n, p), NaN where missing.
        y
            Ignored.
        """
        if not isinstance(self.n_draws, int) or self.n_draws < 0:
            raise SettingError(f"n_draws={self.n_draws!r} is no number of draws: use a whole number of at least 0.")
        values = self._values(X, reset=True)
        self._inputs, self._outputs = self._columns()
        inputs, table = self._split(values)
        # An output without a single value has nothing to be predicted from.
        self._known = np.flatnonzero(~np.isnan(table).all(0))
        self._table = table[:, self._known]
        model = TLVMOGP(progress=False) if self.estimator is None else clone(self.estimator)
        self._has_gaps = bool(np.isnan(self._table).any())
        # A table without gaps needs a model only for those that come later.
        self.estimator_ = model.fit(inputs, self._table) if self._table.size else None
        return self

    def transform(self, X: Any) -> Any:
        """Fill the gaps of a table of the same columns.

        Parameters
        ----------
        X
            The table, NaN where missing.

        Returns
        -------
        array
            The completed table, or draws of it; with `return_std`, a pair with the standard deviations.
        """
        check_is_fitted(self)
        values = self._values(X, reset=False)
        filled, std = values.copy(), np.zeros_like(values)
        inputs, table = self._split(values)
        gaps = np.isnan(table[:, self._known])
        draws = np.repeat(filled[None], max(self.n_draws, 1), axis=0)
        if gaps.any():
            assert self.estimator_ is not None
            is_fit = table.shape == (len(self._table), len(self._outputs)) and np.array_equal(
                table[:, self._known], self._table, equal_nan=True
            )
            mean, spread, drawn = self._of_fit(inputs, gaps) if is_fit else self._of_rows(inputs, table, gaps)
            columns = self._outputs[self._known]
            row, column = np.nonzero(gaps)
            filled[row, columns[column]], std[row, columns[column]] = mean, spread
            if self.n_draws:
                draws[:, row, columns[column]] = drawn
        if np.isnan(filled).any():
            name = self._outputs[np.isnan(filled[:, self._outputs]).any(0)][:1]
            raise DataError(f"Column {name} had no value in the fit, so that its gaps cannot be filled; leave it out.")
        result = filled if not self.n_draws else draws[0] if self.n_draws == 1 else draws
        return (result, std) if self.return_std else result

    def _values(self, X: Any, reset: bool) -> FloatArray:
        checked = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        return np.asarray(checked)

    def _columns(self) -> tuple[Any, Any]:
        """Positions of the inputs and of the outputs."""
        names = list(getattr(self, "feature_names_in_", range(self.n_features_in_)))
        chosen = [] if self.inputs is None else list(self.inputs)
        unknown = [name for name in chosen if name not in names and not isinstance(name, int)]
        if unknown:
            raise DataError(f"inputs name {unknown[0]!r}, which is no column of X; use names or positions of columns.")
        inputs = np.array([names.index(name) if name in names else name for name in chosen], dtype=np.int64)
        return inputs, np.setdiff1d(np.arange(self.n_features_in_), inputs)

    def _split(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Inputs and outputs of a table."""
        order = np.arange(float(len(values)))[:, None]
        return values[:, self._inputs] if len(self._inputs) else order, values[:, self._outputs]

    def _of_fit(self, inputs: FloatArray, gaps: Any) -> tuple[FloatArray, FloatArray, Any]:
        """Means, standard deviations and draws of gaps in the table of the fit."""
        assert self.estimator_ is not None
        row, column = np.nonzero(gaps)
        dist = self.estimator_.predict_cells(inputs[row], column)
        drawn = dist.sample(self.n_draws, self.random_state) if self.n_draws else None
        return dist.mean, dist.std, drawn

    def _of_rows(self, inputs: FloatArray, table: FloatArray, gaps: Any) -> tuple[FloatArray, FloatArray, Any]:
        """The same for rows that the fit has not seen, each given what is observed in it."""
        assert self.estimator_ is not None
        if not len(self._inputs):
            # Their place in the order is not known: far from all that is.
            inputs = np.full((len(inputs), 1), 100.0 * len(self._table))
        means, spreads, drawn = [], [], []
        rng = np.random.default_rng(self.random_state)
        values = table[:, self._known]
        for i in np.flatnonzero(gaps.any(1)):
            dist = self.estimator_.predict_dist(inputs[i : i + 1])
            C, mean = dist.covariance(np.arange(len(self._known))), dist.mean[0]
            o, m = np.flatnonzero(~gaps[i]), np.flatnonzero(gaps[i])
            # C_mo C_oo⁻¹ of a Gaussian, with the noise of observations in C
            weight = np.linalg.solve(C[np.ix_(o, o)], C[np.ix_(o, m)]).T if len(o) else np.zeros((len(m), 0))
            left = C[np.ix_(m, m)] - weight @ C[np.ix_(o, m)]
            means.append(mean[m] + weight @ (values[i, o] - mean[o]))
            spreads.append(np.sqrt(np.maximum(left.diagonal(), 0.0)))
            if self.n_draws:
                drawn.append(rng.multivariate_normal(means[-1], left, self.n_draws, method="eigh"))
        return np.concatenate(means), np.concatenate(spreads), np.concatenate(drawn, 1) if drawn else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
