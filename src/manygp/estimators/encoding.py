"""Settings and names as JSON and back: plain values as they are, others as an object with one telling key."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from manygp.errors import DataError, ModelFileError


def check_names(names: Iterable[Any]) -> None:
    """Refuse names of outputs that a saved model could not hold, before a fit rather than after it."""
    for name in names:
        encode_name(name)


def encode_setting(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """A setting as JSON; arrays go to the tensors, and of modules only the class is told."""
    if isinstance(value, np.bool_):
        return bool(value)
    if value is None or isinstance(value, str | bool | int | float | np.number):
        return encode_name(value)
    if isinstance(value, nn.Module):
        return {"module": type(value).__name__}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, pd.DataFrame):
        tensors[f"setting.{key}"] = torch.as_tensor(np.array(value, dtype=np.float64))
        labels = {axis: [encode_name(name) for name in getattr(value, axis)] for axis in ("index", "columns")}
        return {"frame": f"setting.{key}", **labels}
    if isinstance(value, tuple) and all(isinstance(part, int | str | np.integer) for part in value):
        return encode_name(value)
    tensors[f"setting.{key}"] = torch.as_tensor(np.asarray(value, dtype=np.float64)).clone()
    return {"tensor": f"setting.{key}"}


def decode_setting(key: str, value: Any, tensors: dict[str, Tensor], modules: dict[str, Any], path: Any) -> Any:
    """What `encode_setting` was given; modules are those of the user."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"tensor"}:
        return tensors[f"setting.{key}"].numpy()
    if set(value) == {"frame", "index", "columns"}:
        index, columns = ([decode_name(name) for name in value[axis]] for axis in ("index", "columns"))
        return pd.DataFrame(tensors[f"setting.{key}"].numpy(), pd.Index(index, tupleize_cols=False), columns)
    if set(value) != {"module"}:
        return decode_name(value)
    if key not in modules:
        raise ModelFileError(
            f"{path} was fitted with {key}={value['module']}(...), a module of your own, whose code is not in the "
            f"folder: pass one like it, manygp.load({str(path)!r}, {key}=...)."
        )
    return modules[key]


def encode_name(name: Any) -> Any:
    """A name as JSON: tuples become {"tuple": [...]}, infinities {"float": "inf"}."""
    if isinstance(name, tuple):
        return {"tuple": [encode_name(part) for part in name]}
    if isinstance(name, np.generic):
        name = name.item()
    if isinstance(name, float) and not math.isfinite(name):
        return {"float": str(name)}
    if name is None or isinstance(name, str | bool | int | float):
        return name
    raise DataError(
        f"Output name {name!r} is a {type(name).__name__}, which a saved model cannot hold: give text, numbers or "
        "tuples of them."
    )


def decode_name(name: Any) -> Any:
    """What `encode_name` was given."""
    if not isinstance(name, dict):
        if isinstance(name, list):
            raise ValueError("a name is a list")
        return name
    if set(name) == {"float"}:
        return float(name["float"])
    if set(name) != {"tuple"} or not isinstance(name["tuple"], list):
        raise ValueError(f"{', '.join(name)[:40]!r} is no kind of value")
    return tuple(decode_name(part) for part in name["tuple"])
