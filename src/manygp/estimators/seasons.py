"""Seasons of a kernel that is written as text, in the units of a table."""

from typing import TYPE_CHECKING

from manygp.data import Table
from manygp.data.seasons import find_seasons
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.kernels.composed import seasons_of

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

__all__ = ["seasons_in"]


def seasons_in(estimator: "Estimator", table: Table) -> FloatArray | None:
    """Column and period of every season of an estimator's kernel, shape (k, 2); None where there are none."""
    settings = estimator.get_params(deep=False)
    if seasons_of(settings.get("latent_kernel")):
        raise SettingError("latent_kernel has no seasons, which belong to inputs: write them into kernel.")
    seasons = seasons_of(settings.get("kernel"))
    return find_seasons([(season.period, season.column) for season in seasons], table) if seasons else None
