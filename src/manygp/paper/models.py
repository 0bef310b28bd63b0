"""Models by name: the library's estimators, the plain rival, and what others register."""

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import numpy as np

from manygp.data import Scaling, as_table
from manygp.data.factorisation import choose_rank, factorise
from manygp.data.grid import Grid
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators import ESTIMATORS

__all__ = ["FACTORISATION", "LowRank", "build", "find_model", "register_model", "title_of"]

FACTORISATION = "factorisation"

_TITLES = {
    "tlvmogp": "T-LVMOGP",
    "ind-gp": "Ind-GP",
    "sv-lmc": "SV-LMC",
    "oilmm": "OILMM",
    "sgprn": "SGPRN",
    "g-mogp": "G-MOGP",
    "lvmogp": "LV-MOGP",
    "gs-lvmogp": "GS-LVMOGP",
    FACTORISATION: "low-rank factorisation",
}

Factory = Callable[..., Any]


class LowRank:
    """Masked low-rank factorisation: no uncertainty, no new inputs or outputs, and the MSE that a model has to beat.

    Parameters
    ----------
    rank
        Number of factors; "auto" chooses it by cells held out in the pattern of the gaps.
    random_state
        Seed.
    """

    def __init__(self, rank: int | str = "auto", random_state: int = 0):
        self.rank = rank
        self.random_state = random_state

    def fit(self, X: Any, Y: Any, *, output_names: Sequence[Hashable] | None = None) -> Self:
        """Factorise a grid with gaps."""
        table = as_table(X, Y, None, output_names)
        assert isinstance(table, Grid)
        scaling = Scaling.fit(table, outputs="global")
        rank = choose_rank(table, scaling).rank if isinstance(self.rank, str) else self.rank
        rng = np.random.default_rng(self.random_state)
        self.factorisation_ = factorise(table, scaling, rank, rng=rng)
        self.scaling_ = scaling
        return self

    def predict(self, X: Any) -> FloatArray:
        """The completed grid; X must be the inputs of the fit."""
        mean = self.scaling_.unscale_mean(self.factorisation_.predict())
        if len(X) != len(mean):
            raise SettingError(f"X has {len(X)} rows, but a factorisation knows only the {len(mean)} it was fitted to.")
        return np.asarray(mean)

    def evaluate(self, X: Any, Y: Any) -> dict[str, float]:
        """Mean squared error over the cells of Y that are not NaN."""
        return {"mse": float(np.nanmean((self.predict(X) - np.asarray(Y)) ** 2))}

    @property
    def num_parameters(self) -> int:
        """Means of the rows, factors and loadings."""
        parts = self.factorisation_
        return int(parts.row_mean.size + parts.row_factors.size + parts.loadings.size)


_REGISTERED: dict[str, Factory] = {FACTORISATION: LowRank}


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
    known = inspect.signature(factory).parameters
    quiet = {"random_state": seed, "progress": False}
    return factory(**settings, **{name: value for name, value in quiet.items() if name in known})
