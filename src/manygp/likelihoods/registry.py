"""Likelihoods by name, as given, or by a look at the data."""

import copy
import inspect
from typing import Any

import gpytorch
import numpy as np

from manygp.errors import DataError, SettingError
from manygp.likelihoods.bernoulli import Bernoulli
from manygp.likelihoods.gaussian import Gaussian, PooledGaussian
from manygp.likelihoods.given import Given
from manygp.likelihoods.likelihood import Likelihood
from manygp.likelihoods.negative_binomial import NegativeBinomial
from manygp.likelihoods.poisson import Poisson
from manygp.likelihoods.student_t import StudentT
from manygp.likelihoods.zero_inflation import ZeroInflatedNegativeBinomial, ZeroInflatedPoisson

LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "pooled-gaussian": PooledGaussian,
    "student-t": StudentT,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "zinb": ZeroInflatedNegativeBinomial,
    "zip": ZeroInflatedPoisson,
}

# A count varies at least about as much as a Poisson; integers that vary less are measurements.
_LEAST_SPREAD = 0.5
_MANY_ZEROS = 0.5
_POISSON_SPREAD = 1.2


def make_likelihood(
    likelihood: str | Likelihood | gpytorch.likelihoods.Likelihood, num_outputs: int, **options: Any
) -> Likelihood:
    """A likelihood for `num_outputs` outputs.

    Parameters
    ----------
    likelihood
        A name of `LIKELIHOODS`, a likelihood of ours or a one-dimensional one of GPyTorch; the last two are copied.
        One that is made for a single output serves as many as there are. A Gaussian noise that is not to be learned
        becomes one for each output, since outputs may be scaled each in its own way.
    num_outputs
        Number of outputs.
    **options
        Settings of a named likelihood, as its class documents them.
    """
    if isinstance(likelihood, str):
        if likelihood not in LIKELIHOODS:
            raise SettingError(f"likelihood={likelihood!r} is unknown: use one of {', '.join(LIKELIHOODS)}.")
        return _by_name(likelihood, num_outputs, options)
    if options:
        raise SettingError(
            f"Options ({', '.join(options)}) are for named likelihoods: set those of a given one itself."
        )
    if not isinstance(likelihood, Likelihood):
        return Given(likelihood)
    size = max((getattr(likelihood, name).numel() for name in likelihood.rows), default=num_outputs)
    if size not in (1, num_outputs):
        raise SettingError(
            f"The likelihood given is made for {size} outputs, but there are {num_outputs}: make it for as many."
        )
    own = copy.deepcopy(likelihood) if size == num_outputs else likelihood.for_outputs(num_outputs)
    if isinstance(own, Gaussian) and own.is_fixed:
        return Gaussian(num_outputs, own.variances(num_outputs), per_output=True, learn_noise=False)
    return own


def _by_name(name: str, num_outputs: int, options: dict[str, Any]) -> Likelihood:
    known = [option for option in inspect.signature(LIKELIHOODS[name]).parameters if option != "num_outputs"]
    for option in options:
        if option not in known:
            raise SettingError(f"{name!r} has no option {option!r}: it knows {', '.join(known) or 'none'}.")
    return LIKELIHOODS[name](num_outputs, **options)


def likelihood_name(likelihood: Likelihood) -> str:
    """The name that the likelihood has in `LIKELIHOODS`, or that of its class if it has none."""
    kind = type(likelihood)
    return next((name for name, known in LIKELIHOODS.items() if known is kind), kind.__name__)


def choose_likelihood(values: np.ndarray) -> str:
    """The name of a likelihood that suits observed values, of which a sample is enough; NaN are left out.

    - nothing but 0 and 1: "bernoulli";
    - non-negative integers whose variance is at least half their mean, as counts have: "zinb" if half of them or more
      are zero, otherwise "poisson" up to a variance of 1.2 means and "negative-binomial" above;
    - anything else: "gaussian".
    """
    y = np.asarray(values, dtype=np.float64).reshape(-1)
    y = y[~np.isnan(y)]
    if not len(y):
        raise DataError("There are no observed values to choose a likelihood by: name one.")
    if np.isin(y, (0.0, 1.0)).all():
        return "bernoulli"
    mean, variance = y.mean(), y.var()
    if (y < 0).any() or (y != np.floor(y)).any() or variance < _LEAST_SPREAD * mean:
        return "gaussian"
    if np.mean(y == 0) >= _MANY_ZEROS:
        return "zinb"
    return "poisson" if variance <= _POISSON_SPREAD * mean else "negative-binomial"
