"""Gaussian noise that the user has fixed, in the units that outputs are scaled to."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manygp.data import Scaling
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.initialise.evidence import Lengthscales
from manygp.likelihoods import Gaussian, Likelihood, make_likelihood

# Variances of scaled outputs below this are as good as none, and models cannot compute with them.
_LEAST_NOISE = 1e-6


def is_fixed(given: Any) -> bool:
    """Whether the setting `likelihood` is Gaussian noise that is not to be learned."""
    return isinstance(given, Gaussian) and given.is_fixed


def fixed_noise(given: Any, scaling: Scaling) -> FloatArray | None:
    """Noise variances that the setting `likelihood` fixes, of every output in scaled units; None if it does not."""
    if not is_fixed(given):
        return None
    p = scaling.num_outputs
    own = make_likelihood(given, p)
    assert isinstance(own, Gaussian)
    # σ² / s_p²
    return np.maximum(own.variances(p).cpu().numpy() / scaling.y_scale**2, _LEAST_NOISE)


def hold_noise(likelihood: Likelihood, given: Any, scaling: Scaling) -> None:
    """Put the noise of a model to where the setting `likelihood` fixes it, if it does."""
    noise = fixed_noise(given, scaling)
    if noise is not None:
        assert isinstance(likelihood, Gaussian)
        likelihood.noise = torch.as_tensor(noise)


def typical_noise(given: Any, scaling: Scaling) -> float | None:
    """The noise variance that is typical of scaled outputs if the setting `likelihood` fixes it."""
    noise = fixed_noise(given, scaling)
    return None if noise is None else float(np.exp(np.log(noise).mean()))


def with_fixed_noise(found: Lengthscales, given: Any, scaling: Scaling) -> Lengthscales:
    """What the data say about the functions, with the noise that is typical of outputs if it is fixed."""
    noise = typical_noise(given, scaling)
    return found if noise is None else replace(found, noise=noise)


def one_scale(standardize: bool | str, given: Any) -> bool | str:
    """The setting `standardize` of a model with one noise for all outputs: a fixed one leaves one scale to choose."""
    return "global" if standardize is True and is_fixed(given) else standardize


def check_one_noise(standardize: bool | str, given: Any) -> None:
    """Refuse a fixed noise that would not be one for all outputs once they are scaled."""
    if not is_fixed(given):
        return
    if not given.is_shared:
        raise SettingError("The likelihood fixes a noise for each output, but this model has one for all: give one.")
    if one_scale(standardize, given) not in (False, "global"):
        raise SettingError(
            f"standardize={standardize!r} scales outputs each by itself, but the likelihood fixes one for all: use "
            "'global', True or False."
        )
