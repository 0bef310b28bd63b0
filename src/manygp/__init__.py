"""ManyGP: Gaussian processes with many correlated outputs.

model = manygp.TLVMOGP().fit(X, Y)        # Y (n, p) with NaN where nothing was observed
mean, std = model.predict(X_new, return_std=True)

Names and rooms are imported when they are first asked for.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from manygp._version import __version__

if TYPE_CHECKING:
    from manygp.comparison import Comparison, compare
    from manygp.errors import (
        DataError,
        ManyGPError,
        ModelFileError,
        NotFittedError,
        NumericalError,
        RankError,
        SettingError,
    )
    from manygp.estimators import (
        GMOGP,
        GSLVMOGP,
        LVMOGP,
        OILMM,
        SGPRN,
        SVLMC,
        TLVMOGP,
        DrawnFunctions,
        Imputer,
        IndGP,
        load,
        scorer,
    )
    from manygp.prediction import Prediction
    from manygp.summaries import Aggregate, Probability

__all__ = [
    "GMOGP",
    "GSLVMOGP",
    "LVMOGP",
    "OILMM",
    "SGPRN",
    "SVLMC",
    "TLVMOGP",
    "Aggregate",
    "Comparison",
    "DataError",
    "DrawnFunctions",
    "Imputer",
    "IndGP",
    "ManyGPError",
    "ModelFileError",
    "NotFittedError",
    "NumericalError",
    "Prediction",
    "Probability",
    "RankError",
    "SettingError",
    "__version__",
    "compare",
    "load",
    "scorer",
]

# Where public names live, the cheapest to import first.
_HOMES = ("manygp.errors", "manygp.summaries", "manygp.prediction", "manygp.estimators", "manygp.comparison")


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = next(module for module in map(import_module, _HOMES) if name in module.__all__)
        value = globals()[name] = getattr(home, name)
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
