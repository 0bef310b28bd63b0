"""Samples of equal length, (samples, steps, features) with gaps, filled behind the interface of PyPOTS's imputers."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from manygp.data.table import FloatArray
from manygp.errors import DataError, NotFittedError, SettingError
from manygp.estimators import TLVMOGP, Estimator
from manygp.extras import need

__all__ = ["WindowImputer"]


class WindowImputer:
    """Fill gaps of many short multivariate series, with the methods that imputers of PyPOTS have.

    Each feature of each sample is an output over the steps, so that series learn from each other, whether they are
    features of one sample or samples of one feature. Features are brought to one unit first. Observed values stay as
    they are.

    Parameters
    ----------
    estimator
        The model, a `TLVMOGP` by default. Samples that were not in the fit need its `adapt`.

    Attributes
    ----------
    estimator_ : the fitted model

    Examples
    --------
    >>> import numpy as np
    >>> from manygp.windows import WindowImputer
    >>> X = np.sin(np.arange(20.0)[:, None] / 3 + np.arange(2.0)) * np.linspace(1, 2, 8)[:, None, None]
    >>> X[:4, 5:10, 0] = np.nan
    >>> imputer = WindowImputer()
    >>> imputer.fit({"X": X})
    >>> imputer.impute({"X": X}).shape
    (8, 20, 2)
    """

    def __init__(self, estimator: Estimator | None = None):
        self.estimator = estimator

    def fit(self, train_set: dict[str, Any] | str, val_set: Any = None, file_type: str = "hdf5") -> None:
        """Fit the model.

        Parameters
        ----------
        train_set
            A dictionary with `X` of shape (samples, steps, features), NaN where missing, or the path of an HDF5 file
            with an array `X`.
        val_set
            Ignored: nothing is tuned on samples held out.
        file_type
            Type of the file; HDF5 is read.
        """
        X = _samples(train_set, file_type)
        if np.isnan(X).all((0, 1)).any():
            feature = int(np.flatnonzero(np.isnan(X).all((0, 1)))[0])
            raise DataError(f"Feature {feature} has no value in any sample; leave it out.")
        self._centre, scale = np.nanmean(X, (0, 1)), np.nanstd(X, (0, 1))
        self._scale = np.where(scale > 0, scale, 1.0)
        self._X, self._Y = X, self._columns(X)
        self._seen = ~np.isnan(self._Y).all(0)
        model = TLVMOGP(progress=False) if self.estimator is None else clone(self.estimator)
        self.estimator_ = model.fit(_steps(X), self._Y[:, self._seen])

    def predict(self, test_set: dict[str, Any] | str, file_type: str = "hdf5", **kwargs: Any) -> dict[str, FloatArray]:
        """Fill gaps, of samples of the fit or of others.

        Parameters
        ----------
        test_set, file_type
            As in `fit`, with the same numbers of steps and features.
        **kwargs
            Ignored, as other imputers take more.

        Returns
        -------
        dict
            `imputation`, the samples without gaps, and `std`, how sure the fillings are: 0 where a value was observed.
        """
        if not hasattr(self, "estimator_"):
            raise NotFittedError("This WindowImputer has not been fitted: call fit first.")
        X = _samples(test_set, file_type)
        if X.shape[1:] != self._X.shape[1:]:
            raise DataError(
                f"X has samples of shape {X.shape[1:]}, but those of the fit had {self._X.shape[1:]} (steps, "
                "features); give samples of the same shape."
            )
        Y = self._columns(X)
        # A series without any value is as its feature usually is.
        mean, std, seen = np.zeros_like(Y), np.ones_like(Y), ~np.isnan(Y).all(0)
        if seen.any():
            mean[:, seen], std[:, seen] = self._predicted(X, Y, seen)
        gap = np.isnan(X)
        filled = np.where(gap, self._cube(mean, X.shape) * self._scale + self._centre, X)
        return {"imputation": filled, "std": np.where(gap, self._cube(std, X.shape) * self._scale, 0.0)}

    def impute(self, test_set: dict[str, Any] | str, file_type: str = "hdf5", **kwargs: Any) -> FloatArray:
        """The samples without gaps, `imputation` of `predict`.

        Parameters
        ----------
        test_set, file_type, **kwargs
            As in `predict`.
        """
        return self.predict(test_set, file_type, **kwargs)["imputation"]

    def _predicted(self, X: FloatArray, Y: FloatArray, seen: Any) -> tuple[FloatArray, FloatArray]:
        """Means and standard deviations of the series that have a value."""
        if np.array_equal(X, self._X, equal_nan=True):
            return self.estimator_.predict(_steps(X), return_std=True)
        if not hasattr(self.estimator_, "adapt"):
            raise SettingError(
                f"{type(self.estimator_).__name__} cannot fill samples that were not in the fit; use TLVMOGP, or fit "
                "with these samples too."
            )
        known = len(self.estimator_.output_names_)
        adapted = self.estimator_.adapt(_steps(X), Y[:, seen])
        return adapted.predict(_steps(X), return_std=True, outputs=adapted.output_names_[known:])

    def _columns(self, X: FloatArray) -> FloatArray:
        """Series side by side in units of their features, (steps, samples x features)."""
        return np.moveaxis((X - self._centre) / self._scale, 1, 0).reshape(X.shape[1], -1)

    def _cube(self, columns: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        samples, steps, features = shape
        return np.moveaxis(columns.reshape(steps, samples, features), 0, 1)


def _steps(X: FloatArray) -> FloatArray:
    return np.arange(X.shape[1], dtype=np.float64)[:, None]


def _samples(given: Any, file_type: str) -> FloatArray:
    """The array X of what a user of PyPOTS gives."""
    if isinstance(given, str | Path):
        if file_type not in ("hdf5", "h5"):
            raise SettingError(f"file_type={file_type!r} is not read here: use 'hdf5', or give a dictionary with X.")
        with need("h5py", "files", "A path as a set of samples").File(given, "r") as file:
            given = {"X": file["X"][:]} if "X" in file else {}
    if not isinstance(given, dict) or "X" not in given:
        raise DataError("A set of samples is a dictionary with X, or an HDF5 file with an array X; neither was given.")
    X = np.asarray(given["X"], dtype=np.float64)
    if X.ndim != 3 or not X.size:
        raise DataError(f"X has shape {X.shape}; expected (samples, steps, features), so give a 3-D array.")
    return X
