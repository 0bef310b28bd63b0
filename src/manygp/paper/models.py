"""Models by name: the library's estimators, plain methods, and what others register."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np

from manygp.baselines import BASELINES, Baseline
from manygp.baselines.baseline import Filled
from manygp.data.coordinates import CoordinateMap
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators import ESTIMATORS
from manygp.paper.sources import digest_of

_LEFT_OUT = 0.2

_TITLES = {
    "tlvmogp": "T-LVMOGP",
    "ind-gp": "Ind-GP",
    "sv-lmc": "SV-LMC",
    "oilmm": "OILMM",
    "sgprn": "SGPRN",
    "g-mogp": "G-MOGP",
    "lvmogp": "LV-MOGP",
    "gs-lvmogp": "GS-LVMOGP",
    "interpolation": "interpolation",
    "nearest-rows": "nearest rows",
    "ridge-outputs": "ridge on the other outputs",
    "low-rank": "low rank",
    "boosting": "gradient boosting",
}

Factory = Callable[..., Any]


class Plain:
    """A plain method of `manygp.baselines`, whose error bars are what each output is off by on cells held out."""

    def __init__(self, kind: type[Baseline], coordinate_system: str = "flat", **settings: Any):
        self.method, self.coordinate_system = kind(**settings), coordinate_system

    def fit(self, X: FloatArray, Y: FloatArray, output_coordinates: FloatArray | None = None) -> Self:
        """Fill the gaps of Y, and keep where its outputs are."""
        self._X, self._Y, self._places = X, Y, output_coordinates
        if output_coordinates is None:
            self._mean, self._std = self.method.fill(X, Y), self.method.error_std(X, Y)
        else:
            # Every cell is known, and of new outputs nothing has been asked yet.
            self._mean, self._std = Y, np.std(Y, axis=0)
        return self

    def predict(self, X: FloatArray) -> FloatArray:
        """The completed table; X must be the inputs of the fit."""
        if not np.array_equal(X, self._X):
            raise SettingError("A plain method fills the gaps of its table and knows no other inputs; give those.")
        return self._mean

    def predict_new_outputs(self, X: FloatArray, output_coordinates: FloatArray) -> "Filled":
        """Outputs that were never observed, from where they are: rows of the table turned on its side."""
        assert self._places is not None
        where = np.vstack([self._places, output_coordinates])
        places = CoordinateMap.fit(where, self.coordinate_system).features(where)
        known, table = len(self._places), np.vstack([self._Y.T, np.full((len(output_coordinates), len(X)), np.nan)])
        mean = self.method.fill(places, table)[known:].T
        # Places that are left out as a whole tell how far off new ones are.
        lost = np.random.default_rng(self.method.random_state).random(known) < _LEFT_OUT
        rehearsal = self.method.fill(places[:known], np.where(lost[:, None], np.nan, self._Y.T))
        std = np.sqrt(np.mean((rehearsal - self._Y.T)[lost] ** 2, axis=0))
        return Filled(mean, np.broadcast_to(std[:, None], mean.shape))

    def evaluate(self, X: FloatArray, Y: FloatArray, plug_in: bool = False) -> dict[str, float]:
        """Scores on the cells of Y that are not NaN."""
        return Filled(self.predict(X), np.broadcast_to(self._std, self._mean.shape)).score(Y, plug_in)


_REGISTERED: dict[str, Factory] = {name: partial(Plain, kind) for name, kind in BASELINES.items()}


def register_model(name: str, factory: Factory, title: str | None = None) -> None:
    """Make a model known by a name.

    Parameters
    ----------
    name
        For the command line.
    factory
        Called with the settings; returns an object with `fit(X, Y)`, where NaN in Y is missing, and `evaluate(X, Y)`,
        which returns "mse" and what else it knows of "nll", "crps", "coverage50" and "coverage90". The seed comes as
        `random_state` if the factory takes that.
    title
        For tables; the name unless given.
    """
    if name in _REGISTERED or name in ESTIMATORS:
        raise SettingError(f"There is already a model {name!r}; choose another name.")
    _REGISTERED[name] = factory
    _TITLES[name] = title or name


def find_model(name: str) -> Factory:
    """Look a model up by its name."""
    factory = _REGISTERED.get(name) or ESTIMATORS.get(name)
    if factory is None:
        known = ", ".join(sorted({*_REGISTERED, *ESTIMATORS}))
        raise SettingError(f"There is no model {name!r}; choose one of: {known}.")
    return factory


def title_of(name: str) -> str:
    """A model's name in tables."""
    return _TITLES.get(name, name)


def build(factory: Factory, settings: dict[str, Any], seed: int) -> Any:
    """A model with its settings, its seed, and no progress bar of its own."""
    known = inspect.signature(_inner(factory)).parameters
    quiet = {"random_state": seed, "progress": False}
    return factory(**settings, **{name: value for name, value in quiet.items() if name in known})


def class_of(name: str) -> Any:
    """What has the settings of a model and its sources: the class of a plain method, or else the factory."""
    return _inner(find_model(name))


def sources_of(name: str) -> str | None:
    """Digest of the sources of a model, see `manygp.paper.sources`."""
    return digest_of(class_of(name))


def _inner(factory: Factory) -> Any:
    return factory.args[0] if isinstance(factory, partial) else factory
