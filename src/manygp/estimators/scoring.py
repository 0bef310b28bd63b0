"""How an estimator is held against observations that it has not seen."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from manygp.data import Grid, as_table
from manygp.data.adapters import own_names
from manygp.data.annotated import is_annotated
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray
from manygp.errors import DataError
from manygp.prediction import Prediction

__all__ = ["ScoringMixin"]


class ScoringMixin(RegressorMixin):
    """The scores of whatever predicts: scikit-learn's `score` with gaps left out, and those of a distribution."""

    output_names_: tuple[Hashable, ...]
    n_outputs_: int

    @abstractmethod
    def predict(self, X: Any, return_std: bool = False, outputs: Any = None, *, exposure: Any = None) -> Any:
        """Predictive mean of the observations, shape (n, p)."""

    @abstractmethod
    def predict_dist(
        self, X: Any, outputs: Any = None, *, observation_noise: bool = True, exposure: Any = None
    ) -> Prediction:
        """Predictive distribution at all pairs of inputs and outputs."""

    @abstractmethod
    def _check_fitted(self) -> None:
        """Refuse to go on before a fit."""

    def evaluate(
        self,
        X: Any,
        Y: Any = None,
        outputs: Any = None,
        *,
        exposure: Any = None,
        plug_in: bool = False,
        layer: str | None = None,
    ) -> dict[str, float]:
        """Scores of the predictions over the cells of Y that are not NaN, see `Prediction.score`.

        Parameters
        ----------
        X, Y
            Inputs (n, d) and values (n, p), or an AnnData.
        outputs
            Names or positions of the outputs that the columns of Y are; all by default.
        exposure
            For counts: the exposure of each row, shape (n,); 1 by default.
        plug_in
            Whether the nll takes the mean of f for f, as the paper does for counts.
        layer
            As in `fit`.
        """
        self._check_fitted()
        table = as_table(X, Y, layer=layer)
        outputs = self._outputs_of(table, own_names(X if is_annotated(X) else Y), outputs)
        inputs = table.X if X is None else X
        return self.predict_dist(inputs, outputs, exposure=exposure).score(_values(table), plug_in=plug_in)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R², averaged over outputs; cells that are NaN are left out."""
        self._check_fitted()
        table = as_table(X, y)
        mean = self.predict_dist(table.X if X is None else X, self._outputs_of(table, own_names(y))).mean
        Y = _values(table)
        weight = np.ones(len(Y)) if sample_weight is None else as_numbers(sample_weight, "sample_weight")
        if weight.shape != (len(Y),):
            raise DataError(f"sample_weight has shape {weight.shape} and X has {len(Y)} rows; give one for each row.")
        w = np.where(np.isnan(Y), 0.0, weight[:, None])
        filled = np.nan_to_num(Y)
        total = np.maximum(w.sum(0), np.finfo(float).tiny)
        center = (w * filled).sum(0) / total
        explained, spread = (w * (filled - mean) ** 2).sum(0), (w * (filled - center) ** 2).sum(0)
        usable = spread > 0
        if not usable.any():
            return float(np.mean(np.where(explained > 0, 0.0, 1.0)))
        return float(np.mean(1.0 - explained[usable] / spread[usable]))

    def _outputs_of(self, table: Grid, names: Sequence[Hashable] | None, outputs: Any = None) -> Any:
        """Which outputs of the model the columns of a table are, for `predict_dist`."""
        if outputs is not None:
            return outputs
        known = set(self.output_names_)
        unknown = [name for name in table.output_names if name not in known]
        if names is not None and not unknown:
            # Columns that say which outputs they are may come in any order.
            return list(table.output_names)
        if names is not None and len(unknown) < table.num_outputs:
            raise DataError(
                f"Y has a column {unknown[0]!r}, which is no output of the model as others of its columns are; leave "
                "it out, or say with outputs= which outputs the columns are."
            )
        if table.num_outputs != self.n_outputs_:
            raise DataError(
                f"Y has {table.num_outputs} outputs, but the model was fitted with {self.n_outputs_}; give all of them "
                "in the same order, or name them with outputs=."
            )
        return None


def _values(table: Grid) -> FloatArray:
    return table.values(slice(0, table.num_inputs))
