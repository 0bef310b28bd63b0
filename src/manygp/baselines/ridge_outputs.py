"""Linear regression of every output on the others."""

import numpy as np
from sklearn.linear_model import Ridge, RidgeCV

from manygp.baselines.baseline import Baseline, closest_outputs
from manygp.baselines.interpolation import Interpolation
from manygp.data.table import FloatArray

_PENALTIES = tuple(10.0**power for power in range(-4, 5))


class RidgeOutputs(Baseline):
    """Ridge regression of every output on the other outputs and the inputs, iterated over the gaps of the predictors.

    Gaps begin as `Interpolation` fills them. A round regresses every output on the completed others over the rows where
    it is observed, and fills its gaps anew, as scikit-learn's `IterativeImputer` does, which takes minutes for hundreds
    of outputs. Generalised cross-validation chooses the penalty of each output in the first round.

    Parameters
    ----------
    num_predictors
        Most other outputs to regress on: those most correlated.
    max_rounds, tolerance
        Most rounds, and the root mean squared change of the gaps, in units of each output's spread, that ends them.
    random_state
        Seed of the cells held out in `error_std`.
    """

    def __init__(self, num_predictors: int = 100, max_rounds: int = 20, tolerance: float = 1e-3, random_state: int = 0):
        self.num_predictors = num_predictors
        self.max_rounds = max_rounds
        self.tolerance = tolerance
        self.random_state = random_state

    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        gaps = np.isnan(Y)
        filled = Interpolation()._fill(X, Y)
        others = closest_outputs(Y, self.num_predictors)
        penalties: dict[int, float] = {}
        incomplete = np.flatnonzero(gaps.any(0)).tolist()
        for _ in range(self.max_rounds):
            before = filled[gaps]
            for j in incomplete:
                design, gap = np.hstack([filled[:, others[j]], X]), gaps[:, j]
                # Once only: gaps that were filled from each other would ask for ever smaller penalties.
                if j not in penalties:
                    penalties[j] = _best_penalty(design[~gap], Y[~gap, j])
                model = Ridge(penalties[j], solver="cholesky").fit(design[~gap], Y[~gap, j])
                filled[gap, j] = model.predict(design[gap])
            if np.sqrt(np.mean((filled[gaps] - before) ** 2)) < self.tolerance:
                break
        return filled


def _best_penalty(design: FloatArray, y: FloatArray) -> float:
    """The penalty with the least error under generalised cross-validation."""
    return float(RidgeCV(_PENALTIES).fit(design, y).alpha_) if len(y) > 2 else _PENALTIES[-1]
