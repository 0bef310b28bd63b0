"""Functions that were drawn from a fitted model, to be asked again and again."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from manygp.data.table import FloatArray
from manygp.errors import ModelFileError

_FILE = "functions.json"


class DrawnFunction:
    """One function of inputs and outputs: the same value at a cell however often and with whatever it is asked.

    Parameters
    ----------
    estimator
        The fitted model.
    number, random_state
        Number of the draw, and its seed.
    """

    def __init__(self, estimator: Any, number: int, random_state: int):
        self._estimator, self.number, self.random_state = estimator, number, random_state

    def __call__(self, X: Any = None, outputs: Any = None) -> FloatArray:
        """Values at inputs X (n, d), those of the fit by default, for some outputs, all by default; shape (n, p)."""
        dist = self._estimator.predict_dist(X, outputs, observation_noise=False)
        values: FloatArray = dist._joint_draws(self.number, self.number + 1, self.random_state)[0]
        return values


class DrawnFunctions(Sequence[DrawnFunction]):
    """Functions drawn from a fitted model; each is a callable, and all of them together are one.

    Made by `sample_functions` of an estimator.

    Parameters
    ----------
    estimator
        The fitted model.
    count, random_state
        Number of functions, and their seed.
    """

    def __init__(self, estimator: Any, count: int, random_state: int):
        self._estimator, self._count, self.random_state = estimator, count, random_state

    def __repr__(self) -> str:
        return f"<{self._count} functions of {len(self._estimator.output_names_)} outputs, seed {self.random_state}>"

    def __call__(self, X: Any = None, outputs: Any = None) -> FloatArray:
        """Values of all functions at inputs X (n, d) for some outputs, shape (count, n, p)."""
        dist = self._estimator.predict_dist(X, outputs, observation_noise=False)
        values: FloatArray = dist._joint_draws(0, self._count, self.random_state)
        return values

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> DrawnFunction: ...
    @overload
    def __getitem__(self, index: slice) -> list[DrawnFunction]: ...
    def __getitem__(self, index: int | slice) -> DrawnFunction | list[DrawnFunction]:
        numbers = range(self._count)[index]
        if isinstance(numbers, range):
            return [DrawnFunction(self._estimator, number, self.random_state) for number in numbers]
        return DrawnFunction(self._estimator, numbers, self.random_state)

    def __iter__(self) -> Iterator[DrawnFunction]:
        return (self[number] for number in range(self._count))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the functions to a folder: the model that they come from, their number and their seed."""
        self._estimator.save(path, overwrite=overwrite)
        (Path(path) / _FILE).write_text(json.dumps({"count": self._count, "random_state": self.random_state}))

    @classmethod
    def load(cls, path: str | Path) -> "DrawnFunctions":
        """Read functions that `save` wrote: they have the same values as before."""
        from manygp.estimators import load

        try:
            told = json.loads((Path(path) / _FILE).read_text())
            count, seed = told["count"], told["random_state"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path} holds no functions: give a folder that DrawnFunctions.save wrote.") from error
        if type(count) is not int or type(seed) is not int or count < 1 or seed < 0:
            raise ModelFileError(f"{_FILE} in {path} is damaged: write the functions again with DrawnFunctions.save.")
        return cls(load(path), count, seed)
