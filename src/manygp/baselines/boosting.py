"""Gradient-boosted trees."""

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from manygp.baselines.baseline import Baseline, closest_outputs
from manygp.data.table import FloatArray

# Where a tenth of the cells of an output is too few to tell when to stop.
_FEWEST_TO_STOP = 200


class Boosting(Baseline):
    """Gradient-boosted trees for every output, on the inputs and the other outputs with gaps as they are.

    Parameters
    ----------
    num_predictors
        Most other outputs to predict from: those most correlated.
    max_trees
        Trees of each output; of outputs with 200 observed cells or more, training ends when a tenth of them, held out,
        is predicted no better.
    learning_rate
        What a tree's prediction is multiplied by.
    random_state
        Seed.
    """

    def __init__(
        self, num_predictors: int = 20, max_trees: int = 300, learning_rate: float = 0.1, random_state: int = 0
    ):
        self.num_predictors = num_predictors
        self.max_trees = max_trees
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fill(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        filled = Y.copy()
        others = closest_outputs(Y, self.num_predictors)
        for j, gap in enumerate(np.isnan(Y).T):
            if not gap.any():
                continue
            can_stop = int((~gap).sum()) >= _FEWEST_TO_STOP
            trees = HistGradientBoostingRegressor(
                max_iter=self.max_trees if can_stop else min(self.max_trees, 100),
                learning_rate=self.learning_rate,
                early_stopping=can_stop,
                random_state=self.random_state,
            )
            design = np.hstack([X, Y[:, others[j]]])
            # Trees cannot be grown on a column that is empty.
            design = design[:, (~np.isnan(design[~gap])).any(0)]
            filled[gap, j] = trees.fit(design[~gap], Y[~gap, j]).predict(design[gap])
        return filled
