"""ManyGP: Gaussian processes with many correlated outputs.

model = manygp.TLVMOGP().fit(X, Y)        # Y (n, p) with NaN where nothing was observed
mean, std = model.predict(X_new, return_std=True)
"""

from manygp._version import __version__
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
