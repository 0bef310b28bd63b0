"""What a fit should say of itself: observations that it takes for something else, and nothing learnt."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gpytorch.kernels import CosineKernel, Kernel, PeriodicKernel, SpectralMixtureKernel

from manygp.data import Scaling, Table
from manygp.initialise.evidence import OutputSample
from manygp.likelihoods import choose_likelihood

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

# Cells that are looked at.
_SAMPLE = 1000
# Counts of a larger mean are as good as measurements, with a noise of their own.
_LARGE_COUNTS = 30.0
# Cells that tell whether anything was learnt, the share of their variance around means that is nothing, and the largest
# weight that one of them has in its own prediction.
_LEAST_CELLS, _NOTHING, _MOST_WEIGHT = 100, 0.02, 0.9
# The share of that variance by which a fit is worse than independent GPs.
_WORSE = 0.1


def remark_on_values(estimator: "Estimator", table: Table) -> None:
    """Warn of labels and small counts that are fitted as Gaussian measurements, and of counts too large for a model."""
    y = table.sample(_SAMPLE, np.random.default_rng(0))[2]
    likelihood = getattr(estimator, "likelihood", "gaussian")
    if not isinstance(likelihood, str) or likelihood not in ("gaussian", "pooled-gaussian"):
        if y.mean() > getattr(estimator, "_largest_counts", np.inf):
            _warn(
                f"Counts around {y.mean():.0e} differ from their means by less than {type(estimator).__name__} can "
                "follow, so that intervals will be too narrow: use likelihood='gaussian', or another model."
            )
        return
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
                f"{key} is periodic, but inputs are standardised and its period is not found from the data: write it "
                "as 'rbf * periodic(T)', T in units of the input, or give sine and cosine of the inputs beside them."
            )


def remark_on_learning(estimator: "Estimator", table: Table) -> None:
    """Warn where a fit that ran to its end predicts cells, each left out, no better than the means of the outputs do.

    So it does where it follows cells that it has seen less closely than independent GPs predict cells left out.

    A Gaussian observation whose function has the variance v after it was seen, beside a noise of variance σ², has the
    weight r = v/σ² in its own prediction, so that its error without it is e / (1 − r).
    """
    if table.num_observed < _LEAST_CELLS or not _has_run_out(estimator):
        return
    row, output, y = table.sample(_SAMPLE, np.random.default_rng(0))
    X, exposure = table.X[row], None if table.exposure is None else table.exposure[row]
    seen, weight = estimator._listed(X, output, True, exposure), np.zeros(len(y))
    if estimator.model_.likelihood.is_affine:
        v = estimator._listed(X, output, False, exposure).variance
        weight = np.minimum(v / np.maximum(seen.variance - v, v), _MOST_WEIGHT)
    unit, count = estimator.scaling_.y_scale[output], np.bincount(output)[output]
    own_mean = (np.bincount(output, y) / np.maximum(np.bincount(output), 1))[output]
    # An output with a single cell in the sample is its own mean.
    several = count > 1
    error, plain = (y - seen.mean) / unit, (y - own_mean) / unit * count / np.maximum(count - 1, 1)
    without = error / (1.0 - weight)
    fitted, left, spread = (np.square(part[several]).sum() for part in (error, without, plain))
    if estimator.model_.likelihood.is_affine and fitted > _WORSE * spread:
        alone = _left_by_independent(table)
        if fitted > (alone + _WORSE) * spread:
            _warn(
                f"The fit leaves {fitted / spread:.0%} of the variance of observations that it has seen, where "
                f"independent GPs leave {alone:.0%} of that of cells left out: something went wrong; try IndGP or "
                "SVLMC beside it, more inducing points (num_inducing), or another seed (random_state)."
            )
            return
    # What follows its own cells closely has weights that say little, and has learnt something.
    if fitted > 0.5 * spread and left > (1.0 - _NOTHING) * spread:
        _warn(
            "The fit explains next to nothing of the observations beyond the means of the outputs "
            f"({left / spread:.0%} of their variance is left where cells are left out): they may be noise, or the "
            "inputs may not tell about them; look at the data, or try IndGP beside it."
        )


@torch.no_grad()
def _left_by_independent(table: Table) -> float:
    """Share of the variance of cells that GPs of single outputs leave, each cell left out, on a few outputs."""
    sample = OutputSample.of(table, Scaling.fit(table), np.random.default_rng(0))
    found = sample.lengthscales()
    inverse = torch.linalg.inv(sample.covariance(found))
    # y − E[y | all others] = (K⁻¹ y) / diag K⁻¹
    without = (inverse @ sample.y.unsqueeze(-1)).squeeze(-1) / inverse.diagonal(dim1=-2, dim2=-1)
    return float(without.square().sum() / sample.y.square().sum().clamp(min=1e-300))


def _has_run_out(estimator: Any) -> bool:
    """Whether training ended by itself: what was cut short has said nothing yet."""
    is_whole = len(estimator.history_) > 0 and estimator.history_.stop_reason not in ("interrupted", "failed")
    return is_whole and isinstance(getattr(estimator, "epochs", "auto"), str)


def _warn(message: str) -> None:
    # From here over `Estimator._fit` and `fit` to the line that called it.
    warnings.warn(message, UserWarning, stacklevel=5)
