"""What the setting `standardize` asks for: how inputs and outputs are scaled before a model sees them."""

from typing import Any

import numpy as np

from manygp.data import Scaling, Table
from manygp.errors import SettingError
from manygp.initialise import choose_scaling
from manygp.initialise.indgp import choose_prior_scaling
from manygp.initialise.start import ScalingChoice
from manygp.likelihoods import Likelihood

__all__ = ["check_scaled", "independent_scaling", "mixing_scaling", "published_scaling", "scaling_kinds"]


def check_scaled(standardize: bool | str, likelihood: Likelihood) -> None:
    """Refuse to scale outputs that a likelihood takes as they are."""
    if not likelihood.is_affine and standardize not in (True, False):
        raise SettingError(
            f"standardize={standardize!r} would scale the outputs, but {type(likelihood).__name__} observations are "
            f"{likelihood.support}: leave standardize at True or False."
        )


def scaling_kinds(standardize: bool | str) -> tuple[str, ...]:
    """Names of the scalings of the outputs, as `choose_scaling` knows them, among which the data may choose."""
    if standardize is True:
        return ("global", "completed", "output")
    return ("none",) if standardize is False else (str(standardize),)


def published_scaling(standardize: bool | str, table: Table, is_affine: bool) -> Scaling:
    """The scaling of the published procedure: raw inputs, and one scale for all outputs unless another is named."""
    if standardize == "completed":
        raise SettingError("standardize='completed' goes with preset='fast' only: use 'global' or 'output'.")
    return Scaling.fit(table, inputs=False, outputs=_outputs(standardize, is_affine))


def mixing_scaling(
    standardize: bool | str, values: Table, is_affine: bool, rank: int, rng: np.random.Generator
) -> ScalingChoice:
    """The scaling for a model that mixes outputs: of values of f where outputs themselves are not scaled."""
    if is_affine:
        return choose_scaling(values, scaling_kinds(standardize), rank, rng)
    return ScalingChoice(Scaling.fit(values, inputs=standardize is not False, outputs="none"), "none", 0.0)


def independent_scaling(
    standardize: bool | str, preset: str, table: Table, is_affine: bool, rng: np.random.Generator
) -> Scaling:
    """The scaling for a model in which an output returns to its centre far from its own cells."""
    if preset == "paper":
        return published_scaling(standardize, table, is_affine)
    if standardize is True and is_affine:
        return choose_prior_scaling(table, rng)
    return Scaling.fit(table, inputs=standardize is not False, outputs=_outputs(standardize, is_affine))


def _outputs(standardize: bool | str, is_affine: bool) -> Any:
    named = {True: "global", False: "none"}.get(standardize, standardize)  # type: ignore[arg-type]
    return named if is_affine else "none"
