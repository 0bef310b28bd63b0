"""Plain ways to fill the gaps of a table: what a model has to beat, and what users compare with.

A `Baseline` is a scikit-learn object with one method that matters, `fill(X, Y)`: the table with every gap filled.
Settings left at "auto" are chosen by observed cells held out in the pattern of the gaps, and `error_std(X, Y)` measures
on such cells how far off each output's fillings are, for those who want error bars. Nothing here knows torch.
"""

from manygp.baselines.baseline import Baseline, normal_scores
from manygp.baselines.boosting import Boosting
from manygp.baselines.interpolation import Interpolation
from manygp.baselines.low_rank import LowRank
from manygp.baselines.nearest_rows import NearestRows
from manygp.baselines.ridge_outputs import RidgeOutputs

BASELINES: dict[str, type[Baseline]] = {
    "interpolation": Interpolation,
    "nearest-rows": NearestRows,
    "ridge-outputs": RidgeOutputs,
    "low-rank": LowRank,
    "boosting": Boosting,
}

__all__ = [
    "BASELINES",
    "Baseline",
    "Boosting",
    "Interpolation",
    "LowRank",
    "NearestRows",
    "RidgeOutputs",
    "normal_scores",
]
