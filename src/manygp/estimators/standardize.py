"""What the setting `standardize` asks for: how inputs and outputs are scaled before a model sees them."""

from typing import Any

from manygp.data import Scaling, Table
from manygp.errors import SettingError
from manygp.likelihoods import Likelihood


def check_scaled(standardize: bool | str, likelihood: Likelihood) -> None:
    """Refuse to scale outputs that a likelihood takes as they are."""
    if not likelihood.is_affine and standardize not in (True, False):
        raise SettingError(
            f"standardize={standardize!r} would scale the outputs, but {type(likelihood).__name__} observations are "
            f"{likelihood.support}: leave standardize at True or False."
        )


def published_scaling(standardize: bool | str, table: Table, is_affine: bool) -> Scaling:
    """The scaling of the published procedure: raw inputs, and one scale for all outputs unless another is named."""
    if standardize == "completed":
        raise SettingError("standardize='completed' goes with preset='fast' only: use 'global' or 'output'.")
    return Scaling.fit(table, inputs=False, outputs=_outputs(standardize, is_affine))


def _outputs(standardize: bool | str, is_affine: bool) -> Any:
    named = {True: "global", False: "none"}.get(standardize, standardize)  # type: ignore[arg-type]
    return named if is_affine else "none"
