"""What may be changed once a T-LVMOGP is trained, each by its name, with its reason and what came of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from manygp.data import Scaling, Table
from manygp.likelihoods import Gaussian
from manygp.models import TransformedLatentModel
from manygp.models.calibration import calibrate_noise
from manygp.models.row_effects import find_row_effects
from manygp.models.site_effects import find_site_effects
from manygp.training import Correction

__all__ = ["CORRECTIONS", "NOISE", "ROW_EFFECTS", "correct"]

NOISE, ROW_EFFECTS = "noise", "row_effects"


@dataclass(frozen=True)
class _Trained:
    """A trained model and what it was trained on."""

    model: TransformedLatentModel
    table: Table
    scaling: Scaling
    rng: np.random.Generator

    def correct_noise(self) -> str:
        if not isinstance(self.model.likelihood, Gaussian):
            return "none: the likelihood has no noise variance"
        factor = calibrate_noise(self.model, self.table, self.scaling, self.rng)
        return "none: cells left out do not ask for it" if factor == 1.0 else f"noise variance times {factor:.2f}"

    def find_row_effects(self) -> str:
        if self.model.cell_noise is not None:
            return "none: noise differs between cells, and would pass for effects"
        find = find_row_effects if isinstance(self.model.likelihood, Gaussian) else find_site_effects
        found = find(self.model, self.table, self.scaling, self.rng)
        self.model.terms.extend(found)
        if not found:
            return "none: effects would not predict cells held out"
        also = "" if isinstance(self.model.likelihood, Gaussian) else "; levels and likelihood learnt again beside them"
        return f"{found[0].loadings.shape[1]} effects of single inputs on all outputs{also}"


#: Reason and way of every correction, in the order in which they are made.
CORRECTIONS: dict[str, tuple[str, Callable[[_Trained], str]]] = {
    NOISE: ("the bound takes what the model cannot follow for noise; cells left out tell", _Trained.correct_noise),
    ROW_EFFECTS: (
        "outputs observed at an input may tell about the others there, beyond what changes slowly",
        _Trained.find_row_effects,
    ),
}


def correct(
    model: TransformedLatentModel,
    table: Table,
    scaling: Scaling,
    seed: int,
    names: Sequence[str],
) -> list[Correction]:
    """Make the named corrections of a trained model, and tell what came of each.

    Parameters
    ----------
    model, table, scaling
        The trained model, the observations and their scaling.
    seed
        Source of randomness.
    names
        Which corrections to make.
    """
    trained, made = _Trained(model, table, scaling, np.random.default_rng(seed)), []
    for name, (reason, make) in CORRECTIONS.items():
        if name in names:
            started = time.perf_counter()
            effect = make(trained)
            made.append(Correction(name, reason, effect, time.perf_counter() - started))
    return made
