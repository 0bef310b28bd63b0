"""How an estimator is held against observations that it has not seen."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import RegressorMixin

from manygp.data import Cells, Grid, Table
from manygp.data.adapters import own_names
from manygp.data.names import find_outputs, match_names
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators.tables import cell_names, given_table

_LOSSES = ("mse", "nll", "crps")


def scorer(name: str = "nll") -> Callable[[Any, Any, Any], float]:
    """Return a scorer for `scoring=` of scikit-learn, greater is better, that leaves gaps of y out.

    Scikit-learn's own, such as "neg_mean_squared_error", make NaN of them.

    Parameters
    ----------
    name
        "mse", "nll" or "crps", see `Prediction.score`.
    """
    if name not in _LOSSES:
        raise SettingError(f"scorer({name!r}) is unknown: use one of {', '.join(map(repr, _LOSSES))}.")
    return partial(_negative_loss, name=name)


def _negative_loss(estimator: Any, X: Any, y: Any, name: str) -> float:
    from sklearn.pipeline import Pipeline

    if isinstance(estimator, Pipeline):
        X, estimator = estimator[:-1].transform(X), estimator[-1]
    return -float(estimator.evaluate(X, y)[name])


class ScoringMixin(RegressorMixin):
    """The scores of whatever predicts: scikit-learn's `score` with gaps left out, and those of a distribution."""

    output_names_: tuple[Hashable, ...]
    n_outputs_: int

    # Of `Estimator`.
    predict_dist: Any
    predict_cells: Any
    _check_fitted: Any

    def evaluate(
        self,
        X: Any,
        y: Any = None,
        outputs: Any = None,
        *,
        mask: Any = None,
        exposure: Any = None,
        plug_in: bool = False,
        layer: str | None = None,
    ) -> dict[str, float]:
        """Scores of the predictions over the cells of y that are not NaN, see `Prediction.score`.

        Parameters
        ----------
        X, y
            Inputs (n, d) and values (n, p); or an AnnData or a `Table` alone, such as the second part of a split.
        outputs
            Names or positions of the outputs that the columns of y are; by default those that the columns are named
            after, or all in order if columns or outputs have no names.
        mask
            True where a cell of y counts, as in `fit`.
        exposure
            For counts: the exposure of each row, shape (n,); 1 by default.
        plug_in
            Whether the nll takes the mean of f for f, as the paper does for counts.
        layer
            As in `fit`.
        """
        self._check_fitted()
        table = given_table(X, y, mask, layer=layer)
        outputs = self._outputs_of(table, X, y, outputs)
        exposure = table.exposure if exposure is None else exposure
        if isinstance(table, Grid):
            values = _values(table)
            dist = self.predict_dist(_inputs_of(X, y, table), outputs, exposure=exposure)
            return dict(dist.score(values, plug_in=plug_in))
        assert isinstance(table, Cells)
        chosen = find_outputs(self.output_names_, outputs)
        if len(chosen) != table.num_outputs:
            raise DataError(
                f"outputs names {len(chosen)} outputs and the table has {table.num_outputs}; name one for each of them."
            )
        names = cell_names(table, [self.output_names_[i] for i in chosen])
        return dict(self.predict_cells(table, names, exposure=exposure).score(table.y, plug_in=plug_in))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, exposure: Any = None) -> float:
        """Coefficient of determination R² of every output, averaged over outputs.

        As in scikit-learn, all outputs count alike, and one whose cells are all equal has 1 if they are predicted
        exactly and 0 otherwise. Cells that are NaN are left out, and so are outputs without any other.

        Parameters
        ----------
        X, y
            Inputs (n, d) and values (n, p); or an AnnData or a `Grid` alone.
        sample_weight
            Weight of the cells of each row in the R² of their outputs, shape (n,).
        exposure
            As in `evaluate`.
        """
        self._check_fitted()
        table = given_table(X, y)
        if not isinstance(table, Grid):
            raise DataError("score takes a grid and got a list of cells; use evaluate, or the to_grid() of the list.")
        outputs = self._outputs_of(table, X, y)
        exposure = table.exposure if exposure is None else exposure
        mean, Y = self.predict_dist(_inputs_of(X, y, table), outputs, exposure=exposure).mean, _values(table)
        weight = np.ones(len(Y)) if sample_weight is None else as_numbers(sample_weight, "sample_weight")
        if weight.shape != (len(Y),):
            raise DataError(f"sample_weight has shape {weight.shape} and X has {len(Y)} rows; give one for each row.")
        if not (np.isfinite(weight) & (weight >= 0)).all():
            wrong = weight[~(np.isfinite(weight) & (weight >= 0))][0]
            raise DataError(f"sample_weight holds {wrong:g}; give finite numbers of at least 0.")
        return _r_squared(Y, mean, np.where(np.isnan(Y), 0.0, weight[:, None]))

    def _outputs_of(self, table: Table, X: Any, y: Any, outputs: Any = None) -> Any:
        """Which outputs of the model the columns of a table are, by what the table was made of."""
        if outputs is not None:
            return outputs
        source = X if y is None else y
        names = source.output_names if isinstance(source, Table) else own_names(source)
        # Numbers from 0 on are no names, but text is, though the outputs be numbers.
        is_numbered = names is None or _is_numbered(names)
        asked = list(table.output_names) if is_numbered else match_names(table.output_names, self.output_names_)
        known = set(self.output_names_)
        unknown = [name for name in asked if name not in known]
        if names is not None and not unknown:
            # Columns that say which outputs they are may come in any order.
            return asked
        if names is not None and len(unknown) < table.num_outputs:
            raise DataError(
                f"Y has a column {unknown[0]!r}, which is no output of the model as others of its columns are; leave "
                "it out, or say with outputs= which outputs the columns are."
            )
        # The name of a series may be anything.
        is_named = not is_numbered and not isinstance(source, pd.Series)
        if is_named and not _is_numbered(self.output_names_):
            raise DataError(
                f"Y has a column {unknown[0]!r}, and like its other columns that is no output of the model, which has "
                f"{self.output_names_[0]!r}; rename them, or say with outputs= which outputs the columns are."
            )
        if table.num_outputs != self.n_outputs_:
            raise DataError(
                f"Y has {table.num_outputs} outputs, but the model was fitted with {self.n_outputs_}; give all of them "
                "in the same order, or name them with outputs=."
            )
        return None


def _inputs_of(X: Any, y: Any, table: Table) -> Any:
    """Inputs as they were given, with all of their labels, or else those of the table."""
    return table if X is None or y is None else X


def _is_numbered(names: Sequence[Hashable]) -> bool:
    """Whether names are positions, as where none were given."""
    return tuple(names) == tuple(range(len(names)))


def _values(table: Grid) -> FloatArray:
    """Values of a grid, NaN where they are not observed, shape (n, p)."""
    table.check_in_memory()
    rows = slice(0, table.num_inputs)
    return table.values(rows) if table.mask is None else np.where(table.mask, table.values(rows), np.nan)


def _r_squared(Y: FloatArray, mean: FloatArray, weight: FloatArray) -> float:
    """R² of each column over the cells that have a weight, averaged over columns that have such cells."""
    seen = weight.any(0)
    if not seen.any():
        raise DataError("sample_weight is 0 wherever Y is observed; give some of these rows a positive weight.")
    y, m, w = Y[:, seen], mean[:, seen], weight[:, seen]
    is_constant = np.where(w > 0, y, -np.inf).max(0) == np.where(w > 0, y, np.inf).min(0)
    y = np.nan_to_num(y)
    residual = (w * (y - m) ** 2).sum(0)
    # The mean of equal numbers may be off by a rounding error, and their spread with it.
    spread = np.where(is_constant, 0.0, (w * (y - (w * y).sum(0) / w.sum(0)) ** 2).sum(0))
    constant = np.where(residual > 0, 0.0, 1.0)
    return float(np.mean(np.where(spread > 0, 1.0 - residual / np.where(spread > 0, spread, 1.0), constant)))
