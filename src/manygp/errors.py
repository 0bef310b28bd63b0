"""The exception tree: everything ManyGP raises on purpose derives from `ManyGPError`."""

from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

__all__ = [
    "DataError",
    "ManyGPError",
    "ModelFileError",
    "NotFittedError",
    "NumericalError",
    "RankError",
    "SettingError",
]


class ManyGPError(Exception):
    """Base of all errors that ManyGP raises on purpose."""


class DataError(ManyGPError, ValueError):
    """The data cannot be used: wrong shapes, infinities, unknown outputs."""


class SettingError(ManyGPError, ValueError):
    """A setting of a model is unknown, out of range or does not fit the others."""


class NotFittedError(ManyGPError, _SklearnNotFittedError):
    """A prediction was asked of a model that has not been fitted."""


class NumericalError(ManyGPError, ArithmeticError):
    """A computation broke down and could not be repaired."""


class ModelFileError(ManyGPError, ValueError):
    """A model folder is missing, corrupt, foreign or from a newer version."""


class RankError(ManyGPError, RuntimeError):
    """Another process of a fit by several of them is gone."""
