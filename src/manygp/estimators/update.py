"""New observations for a fitted model: taken in, corrected and taken back in seconds, without a fit."""

import copy
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from manygp.data import Table
from manygp.data.exposure import as_exposure
from manygp.data.names import find_outputs
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators.tables import given_table
from manygp.initialise.pseudo_values import check_support
from manygp.likelihoods import Gaussian
from manygp.models import TransformedLatentModel
from manygp.models.update import (
    Base,
    Since,
    assimilate,
    base_of,
    forgotten,
    is_among,
    restored,
    with_cells,
    without_cells,
)
from manygp.terms import RowEffects

if TYPE_CHECKING:
    from manygp.estimators.adapted import AdaptiveEstimator

__all__ = ["Arrivals", "updated"]

# Cells of an update whose surprise is looked at, which is also how many of the last ones count; the least number that
# says anything; nats a cell at which the parameters of a model no longer fit.
_LAST_CELLS, _LEAST_CELLS, _MOST_SURPRISE = 200, 30, 0.5


@dataclass(frozen=True)
class Arrivals:
    """Cells that came since the fit, and what the fit had left of all that they change."""

    since: Since
    base: Base

    @property
    def surprise(self) -> float:
        """Mean surprise of the last cells that came; NaN if there are none."""
        return float(self._last().mean())

    @property
    def advises_refit(self) -> bool:
        """Whether what came is so unlike what was expected that parameters should be learned anew."""
        return len(self._last()) >= _LEAST_CELLS and self.surprise > _MOST_SURPRISE

    def _last(self) -> Tensor:
        surprise = self.since.y.new_zeros(0) if self.since.surprise is None else self.since.surprise
        return surprise[~surprise.isnan()][-_LAST_CELLS:]

    def arrays(self) -> dict[str, FloatArray]:
        """All of it as arrays by name, to be saved."""
        parts = {f"since_{name}": part for name, part in vars(self.since).items() if part is not None}
        parts |= {f"base_{name}": torch.as_tensor(part) for name, part in vars(self.base).items()}
        return {name: part.cpu().numpy() for name, part in parts.items()}

    @classmethod
    def from_arrays(cls, data: dict[str, Any], device: torch.device) -> Self:
        """What `arrays` gave."""

        def of(prefix: str) -> dict[str, Any]:
            names = [name for name in data if name.startswith(prefix)]
            return {name.removeprefix(prefix): torch.as_tensor(data[name], device=device) for name in names}

        base = of("base_")
        return cls(Since(**of("since_")), Base(**base | {"num_rows": int(base["num_rows"])}))


@torch.inference_mode(False)
@torch.no_grad()
def updated(
    estimator: "AdaptiveEstimator", X: Any, y: Any, mask: Any, outputs: Any, exposure: Any, forget: Any
) -> "AdaptiveEstimator":
    """A copy of an estimator that has taken in, corrected or forgotten cells, see `TLVMOGP.update`."""
    estimator._check_fitted()
    model, seed = estimator.model_, estimator._seed
    _check_model(model)
    nothing = X is None and y is None
    if nothing and forget is None:
        raise DataError("update got no observations: give X and y, or cells to forget.")
    new = None if nothing else _cells(estimator, X, y, mask, outputs, exposure)
    wrong = None if forget is None else _forgotten_cells(estimator, forget)
    new = None if new is None else replace(new, surprise=_surprise(estimator, new))
    old = estimator._arrivals
    since = _none(model) if old is None else old.since
    model = copy.deepcopy(model) if old is None else restored(model, old.base, since)
    for gone in (wrong, new):
        if gone is not None:
            _take_out(model, gone, since, is_known=gone is wrong, seed=seed)
    since = since if wrong is None else forgotten(since, wrong)
    since = since if new is None else with_cells(since, new)
    base = base_of(model, since.outputs.unique())
    assimilate(model, since, seed)
    result = copy.copy(estimator)
    result.model_, result._arrivals = model, Arrivals(since, base)
    return result


def _check_model(model: Any) -> None:
    assert isinstance(model, TransformedLatentModel)
    if model.cell_noise is not None:
        raise SettingError(
            "This model has noise that differs between cells (y_std or noise='per-input'), which update does not know: "
            "fit it anew with all data."
        )
    if model.terms.of(RowEffects) and not isinstance(model.likelihood, Gaussian):
        raise SettingError(
            "This model has effects of single inputs beside a likelihood that is not Gaussian, which update does not "
            "know: fit it with corrections=('noise',), or anew with all data."
        )


def _take_out(model: TransformedLatentModel, gone: Since, since: Since, is_known: bool, seed: int) -> None:
    """Take cells of the fit out of a model: those to be forgotten, and corrected ones where the model knows them."""
    rest = forgotten(gone, since)
    if model.observed is None:
        if is_known and len(rest):
            without_cells(model, rest, seed)
        return
    cells = model.observed
    of_fit = is_among((rest.x, rest.outputs), (cells.inputs[cells.row.long()], cells.output.long()))
    if is_known and not bool(of_fit.all()):
        raise DataError(
            f"{int((~of_fit).sum())} of the cells to forget are neither cells of the fit nor of an update; give inputs "
            "and outputs as they were given then."
        )
    if bool(of_fit.any()):
        without_cells(model, rest.at(of_fit), seed)


def _cells(estimator: "AdaptiveEstimator", X: Any, y: Any, mask: Any, outputs: Any, exposure: Any) -> Since:
    """Observations as cells in the units of the model."""
    table: Table = given_table(X, y, mask)
    chosen = find_outputs(estimator.output_names_, estimator._outputs_of(table, X, y, outputs))
    if len(chosen) != table.num_outputs:
        raise DataError(
            f"outputs names {len(chosen)} outputs and y has {table.num_outputs}; name one for each of them."
        )
    estimator._check_inputs(table if X is None or y is None else X)
    likelihood = estimator.model_.likelihood
    check_support(likelihood, table)
    row, output, values = table.cells(table.places())
    given = table.exposure if exposure is None else as_exposure(exposure, table)
    if given is not None:
        estimator._check_exposure(likelihood)
    scaling, at = estimator.scaling_, chosen[output]
    tensor = estimator._tensor
    return Since(
        tensor(scaling.scale_x(table.X[row])),
        torch.as_tensor(at, device=estimator.model_.units.device),
        tensor(scaling.scale_y(values, at)),
        None if given is None else tensor(given[row]),
    )


def _forgotten_cells(estimator: "AdaptiveEstimator", forget: Any) -> Since:
    if isinstance(forget, Table):
        return _cells(estimator, forget, None, None, None, None)
    if not isinstance(forget, tuple | list) or len(forget) != 2:
        raise DataError("forget takes a pair (X, y) as update does, NaN where nothing is to be forgotten, or a table.")
    X, y = forget
    return _cells(estimator, X, y, None, None, None)


def _surprise(estimator: "AdaptiveEstimator", cells: Since) -> Tensor:
    """How many nats less likely than the model expects cells are, before it knows them; NaN for those not looked at."""
    surprise = torch.full_like(cells.y, torch.nan)
    chosen = np.sort(np.random.default_rng(estimator._seed).permutation(len(cells))[:_LAST_CELLS])
    if not len(chosen):
        return surprise
    some, scaling = cells.at(torch.as_tensor(chosen, device=cells.y.device)), estimator.scaling_
    at = some.outputs.cpu().numpy()
    names: list[Hashable] = [estimator.output_names_[i] for i in at]
    # Inputs are plain numbers here, whatever their columns are called.
    plain = copy.copy(estimator)
    plain.__dict__.pop("feature_names_in_", None)
    exposure = None if some.exposure is None else some.exposure.cpu().numpy()
    dist = plain.predict_cells(scaling.unscale_x(some.x.cpu().numpy()), names, exposure=exposure)
    values = scaling.unscale_mean(some.y.cpu().numpy(), at)
    if estimator.model_.observed is None:
        # E[log p(y*)] − log p(y) with y* as the model expects it
        told = dist.log_prob(dist.sample(1)[0]) - dist.log_prob(values)
    else:
        # The same where all is Gaussian
        told = 0.5 * (((values - dist.mean) / dist.std) ** 2 - 1.0)
    surprise[chosen] = estimator._tensor(told)
    return surprise


def _none(model: TransformedLatentModel) -> Since:
    """No cells."""
    empty = model.units.new_zeros(0)
    d = len(model.units) - model.latents.dim
    return Since(empty.view(0, 1).expand(0, d), empty.long(), empty)
