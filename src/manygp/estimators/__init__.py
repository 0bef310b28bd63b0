"""Estimators: the public face, after scikit-learn's conventions.

An estimator joins data, model, training and prediction. `ESTIMATORS` lists them by the name used on the command line.
"""

from pathlib import Path

import gpytorch
from torch import nn

from manygp.estimators.drawn import DrawnFunction, DrawnFunctions
from manygp.estimators.estimator import Estimator
from manygp.estimators.gmogp import GMOGP
from manygp.estimators.gslvmogp import GSLVMOGP, LVMOGP
from manygp.estimators.imputer import Imputer
from manygp.estimators.indgp import IndGP
from manygp.estimators.oilmm import OILMM
from manygp.estimators.persistence import load_estimator
from manygp.estimators.scoring import scorer
from manygp.estimators.sgprn import SGPRN
from manygp.estimators.svlmc import SVLMC
from manygp.estimators.tlvmogp import TLVMOGP

__all__ = [
    "ESTIMATORS",
    "GMOGP",
    "GSLVMOGP",
    "LVMOGP",
    "OILMM",
    "SGPRN",
    "SVLMC",
    "TLVMOGP",
    "DrawnFunction",
    "DrawnFunctions",
    "Estimator",
    "Imputer",
    "IndGP",
    "load",
    "scorer",
]

ESTIMATORS: dict[str, type[Estimator]] = {
    "tlvmogp": TLVMOGP,
    "ind-gp": IndGP,
    "lvmogp": LVMOGP,
    "gs-lvmogp": GSLVMOGP,
    "sgprn": SGPRN,
    "sv-lmc": SVLMC,
    "oilmm": OILMM,
    "g-mogp": GMOGP,
}


def load(path: str | Path, **modules: nn.Module | gpytorch.kernels.Kernel) -> Estimator:
    """Load a fitted estimator from the folder that `save` wrote.

    Parameters
    ----------
    path
        The folder.
    modules
        If the model was fitted with a module of your own, one like it, such as `kernel=` or `embedding=`: its learned
        numbers are in the folder, its code is not.
    """
    return load_estimator(path, {cls.__name__: cls for cls in ESTIMATORS.values()}, modules)
