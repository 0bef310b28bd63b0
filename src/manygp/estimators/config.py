"""What a model is, with nothing left open: the resolved configuration that builds it, is saved with it and printed."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import nn

_KINDS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}


@dataclass(frozen=True, kw_only=True)
class Config:
    """All that it takes to build an untrained model; a leaf adds what its model has, and `build`.

    Two configurations are equal if they make the same model; `print` shows one in a line. A model made for natural
    steps has logarithms as parameters, and gradients that hold only the outputs that a batch touched; otherwise it is
    as published, for Adam on everything.
    """

    num_features: int
    num_outputs: int
    natural: bool

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic | list):
                value = _plain(value)
                object.__setattr__(self, field.name, value)
            allowed = _KINDS.get(field.type, (object,))
            is_open = isinstance(value, str) and value == "auto"
            is_wrong = not isinstance(value, allowed) or (type(value) is bool and int in allowed)
            if is_open or is_wrong:
                raise ValueError(f"{field.name}={str(value)[:40]!r} is no part of a {type(self).__name__}")

    @classmethod
    def of(cls, settings: object, chosen: Mapping[str, Any]) -> Self:
        """What was chosen, and all else as the settings of an estimator have it.

        A module of the user's own that a saved model was made with is {"module": ...}, and in the settings again.
        """
        names = {field.name for field in fields(cls)}
        known = {name: value for name, value in chosen.items() if not _is_module(value)}
        if not known.keys() <= names:
            raise ValueError(f"{min(known.keys() - names)[:40]!r} is no part of a {cls.__name__}")
        given = {name: getattr(settings, name) for name in names - known.keys() if hasattr(settings, name)}
        return cls(**given, **known)

    def build(self, generator: torch.Generator | None = None) -> nn.Module:
        """An untrained model; what is random is drawn from a generator, or from one that is always the same."""
        raise NotImplementedError

    def plain(self) -> dict[str, Any]:
        """The same as JSON, with the classes of modules alone."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: {"module": type(value).__name__} if isinstance(value, nn.Module) else _listed(value)
            for name, value in values.items()
        }

    def __str__(self) -> str:
        shown = {name: value["module"] if _is_module(value) else value for name, value in self.plain().items()}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _is_module(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"module"}


def _plain(value: Any) -> Any:
    """Numbers of Python, and tuples, which can be compared."""
    if isinstance(value, list | tuple):
        return tuple(_plain(part) for part in value)
    return value.item() if isinstance(value, np.generic) else value


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value
