"""What a fit should say of itself: observations that it takes for something else, and nothing learnt."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from gpytorch.kernels import CosineKernel, Kernel, PeriodicKernel, SpectralMixtureKernel

from manygp.data import Table
from manygp.likelihoods import choose_likelihood

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

__all__ = ["remark_on_kernels", "remark_on_learning", "remark_on_values"]

_SAMPLE = 1000
# Counts of a larger mean are as good as measurements, with a noise of their own.
_LARGE_COUNTS = 30.0
# Cells that tell whether anything was learnt, and the share of their variance around means that is nothing.
_LEAST_CELLS, _NOTHING = 100, 0.05


def remark_on_values(estimator: "Estimator", table: Table) -> None:
    """Warn of labels and small counts that are fitted as Gaussian measurements."""
    if getattr(estimator, "likelihood", "gaussian") not in ("gaussian", "pooled-gaussian"):
        return
    y = table.sample(_SAMPLE, np.random.default_rng(0))[2]
    if len(y) < _LEAST_CELLS or y.mean() > _LARGE_COUNTS or np.ptp(y) == 0:
        return
    name = choose_likelihood(y)
    if name != "gaussian":
        kind = "zeros and ones" if name == "bernoulli" else "counts"
        _warn(
            f"The observations look like {kind} and are fitted as Gaussian measurements: "
            f"TLVMOGP(likelihood={name!r}) would know what they can be."
        )


def remark_on_kernels(estimator: "Estimator") -> None:
    """Warn of periodic kernels, whose period and place among the inputs no start can find."""
    settings = estimator.get_params(deep=False)
    if settings.get("standardize") is False:
        return
    for key, value in settings.items():
        parts = value.modules() if isinstance(value, Kernel) else ()
        if any(isinstance(part, PeriodicKernel | CosineKernel | SpectralMixtureKernel) for part in parts):
            _warn(
                f"{key} is periodic, but inputs are standardised and its period is not found from the data: give sine "
                "and cosine of the inputs as further inputs instead, with a kernel by name."
            )


def remark_on_learning(estimator: "Estimator", table: Table) -> None:
    """Warn where a fit that ran to its end predicts its own cells no better than the means of the outputs do."""
    history = estimator.history_
    if table.num_observed < _LEAST_CELLS or not _has_run_out(estimator, history.stop_reason):
        return
    row, output, y = table.sample(_SAMPLE, np.random.default_rng(0))
    names = [table.output_names[i] for i in output]
    exposure = None if table.exposure is None else table.exposure[row]
    predicted = estimator.predict_cells(table.X[row], names, exposure=exposure).mean
    unit = estimator.scaling_.y_scale[output]
    count = np.maximum(np.bincount(output), 1)
    own_mean = (np.bincount(output, y) / count)[output]
    # Some outputs have a single cell in the sample, which is its own mean.
    several = count[output] > 1
    left, spread = (np.square((y - by) / unit)[several].sum() for by in (predicted, own_mean))
    if spread > 0 and left > (1.0 - _NOTHING) * spread:
        _warn(
            f"The fit explains next to nothing of the observations beyond the means of the outputs "
            f"({left / spread:.0%} of their variance is left): they may be noise, or the inputs may not tell about "
            "them; look at the data, or try IndGP beside it."
        )


def _has_run_out(estimator: Any, stop_reason: str) -> bool:
    """Whether training ended by itself: what was cut short has said nothing yet."""
    return stop_reason != "interrupted" and isinstance(getattr(estimator, "epochs", "auto"), str)


def _warn(message: str) -> None:
    # From here over `Estimator._fit` and `fit` to the line that called it.
    warnings.warn(message, UserWarning, stacklevel=5)
