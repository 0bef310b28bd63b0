"""Likelihoods: how a function value becomes an observation, one cell at a time.

A likelihood knows nothing of masks, data set sizes or minibatches. It works element by element; parameters that differ
between outputs are picked by the output numbers that come with the cells.
"""

from manygp.errors import SettingError
from manygp.likelihoods.gaussian import Gaussian
from manygp.likelihoods.likelihood import Likelihood
from manygp.likelihoods.noiseless import Noiseless

__all__ = ["LIKELIHOODS", "Gaussian", "Likelihood", "Noiseless", "make_likelihood"]

LIKELIHOODS: dict[str, type[Likelihood]] = {"gaussian": Gaussian}


def make_likelihood(likelihood: str, num_outputs: int) -> Likelihood:
    """A likelihood for `num_outputs` outputs from its name."""
    if likelihood not in LIKELIHOODS:
        raise SettingError(f"likelihood={likelihood!r} is unknown: use one of {', '.join(LIKELIHOODS)}.")
    return LIKELIHOODS[likelihood](num_outputs)
