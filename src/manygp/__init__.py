"""ManyGP: Gaussian processes with many correlated outputs.

model = manygp.TLVMOGP().fit(X, Y)        # Y (n, p) with NaN where nothing was observed
mean, std = model.predict(X_new, return_std=True)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from manygp._version import __version__

if TYPE_CHECKING:
    from manygp.errors import DataError, ManyGPError, ModelFileError, NotFittedError, NumericalError, SettingError
    from manygp.estimators import GMOGP, GSLVMOGP, LVMOGP, OILMM, SGPRN, SVLMC, TLVMOGP, IndGP, load
    from manygp.prediction import Prediction

__all__ = [
    "GMOGP",
    "GSLVMOGP",
    "LVMOGP",
    "OILMM",
    "SGPRN",
    "SVLMC",
    "TLVMOGP",
    "DataError",
    "IndGP",
    "ManyGPError",
    "ModelFileError",
    "NotFittedError",
    "NumericalError",
    "Prediction",
    "SettingError",
    "__version__",
    "load",
]

_ROOMS = ("data", "embeddings", "errors", "estimators", "kernels", "likelihoods", "models", "prediction", "training")


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is: torch takes seconds, in which the command line would not hear Ctrl-C."""
    if name in __all__:
        room = "prediction" if name == "Prediction" else "errors" if name.endswith("Error") else "estimators"
        value = globals()[name] = getattr(import_module(f"manygp.{room}"), name)
        return value
    if name in _ROOMS:
        return import_module(f"manygp.{name}")
    raise AttributeError(f"module 'manygp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_ROOMS]
