"""Checkpoints: how far a fit has come, in a folder from which the same call goes on as if it had never stopped.

A folder holds the start of a fit, so that the survey of the table is not made again, and the last states of its loops.
It is written like a model: beside and renamed, with digests, without pickle. What lies between loops follows from these
and is computed again.
"""

import copy
import hashlib
import json
import math
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save as as_bytes
from torch import Tensor, nn

from manygp._version import __version__
from manygp.data import Scaling, Table
from manygp.errors import ModelFileError, SettingError
from manygp.estimators.encoding import encode_setting
from manygp.estimators.folders import (
    CHECKPOINT,
    FORMAT,
    check_target,
    model_path,
    read_folder,
    remove_folder,
    write_folder,
)
from manygp.estimators.folders import reason as in_words
from manygp.estimators.schema import check_state
from manygp.estimators.settings import resolve_device
from manygp.training.interrupts import held_back
from manygp.training.journal import Journal, State

if TYPE_CHECKING:
    from manygp.estimators.estimator import Estimator

__all__ = ["Checkpoint", "open_checkpoint", "recalled_start", "remove_checkpoint", "told_start"]

# Settings that do not change what is learnt.
_IDLE = ("progress", "num_samples")
# Share of a time limit after which training has to be over.
_TRAINING_SHARE = 0.8
# Writing may take this share of the time.
_SHARE = 0.02
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h)\s*")


def open_checkpoint(estimator: "Estimator", table: Table, path: Any, every: Any) -> Journal:
    """The checkpoint of a fit in a folder, found or new; without a folder, a journal that forgets."""
    if path is None:
        return Journal()
    return Checkpoint(model_path(path), _seconds(every, "checkpoint_every"), _key(estimator, table))


def deadline_of(time_limit: Any) -> float:
    """When the training of a fit that begins now has to be over, in seconds of `time.perf_counter`."""
    if time_limit is None:
        return math.inf
    return time.perf_counter() + _TRAINING_SHARE * _seconds(time_limit, "time_limit")


def remove_checkpoint(path: Any) -> None:
    """Remove a checkpoint that is not needed any more, and its folder if nothing else is in it."""
    remove_folder(model_path(path), CHECKPOINT)


def told_start(estimator: "Estimator", model: nn.Module, scaling: Scaling, survey: dict[str, str]) -> State:
    """Where a fit begins, and what the survey has found, as a state."""
    described = copy.copy(estimator)
    described.model_, described.scaling_ = model, scaling
    described.n_features_in_, described.n_outputs_ = scaling.num_features, scaling.num_outputs
    return {
        "sizes": described._sizes(),
        "model": {name: value.detach().clone() for name, value in model.state_dict().items()},
        "fixed": [name for name, parameter in model.named_parameters() if not parameter.requires_grad],
        "scaling": scaling.arrays(),
        "survey": survey,
    }


def recalled_start(estimator: "Estimator", start: State) -> tuple[Any, Scaling]:
    """Where a fit began: the model and the scaling."""
    model = estimator._build(start["sizes"])
    check_state(model, start["model"])
    model.load_state_dict(start["model"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in start["fixed"])
    return model, Scaling.from_arrays(start["scaling"])


class Checkpoint(Journal):
    """A journal in a folder.

    Parameters
    ----------
    path
        The folder.
    every
        Seconds between two writes; more, if writing takes longer than a small share of them.
    key
        What the fit depends on: version, class, settings, table. A folder with another one is refused.
    """

    is_active = True

    def __init__(self, path: Path, every: float, key: dict[str, Any]):
        self._path, self._every, self._key = path, every, key
        check_target(path, name=CHECKPOINT)
        found: State = {"seed": None, "shards": None, "start": None, "loops": []}
        found |= self._found() if (path / CHECKPOINT).exists() else {}
        self._seed: int | None = found["seed"]
        self._shards: int | None = found["shards"]
        self.start: State | None = found["start"]
        self._loops: list[State] = found["loops"]
        self._current, self._is_written, self._due = -1, True, time.monotonic() + every

    def _found(self) -> State:
        manifest, tensors = read_folder(self._path, CHECKPOINT)
        key = manifest.get("key")
        try:
            change = _change(key, self._key)
            if change:
                raise ModelFileError(
                    f"{self._path} holds the checkpoint of another fit ({change}): call fit as it was called, or give "
                    "another folder."
                )
            return _unpacked(manifest["state"], tensors)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(f"{self._path} is damaged ({in_words(error)}): remove it to begin anew.") from error

    def keep_start(self, start: State) -> None:
        self.start, self._is_written = start, False
        if self.is_due:
            self._write()

    def seed(self, seed: int) -> int:
        self._seed = seed if self._seed is None else self._seed
        return self._seed

    def shards(self, shards: int) -> int:
        self._shards = shards if self._shards is None else self._shards
        return self._shards

    def begin(self) -> State | None:
        self._current += 1
        return self._loops[self._current] if self._current < len(self._loops) else None

    def note(self, state: State) -> None:
        self._loops[self._current :] = [state]
        self._is_written = False
        if self.is_due:
            self._write()

    def flush(self) -> None:
        if not self._is_written:
            self._write()

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due

    def _write(self) -> None:
        """Write all that is known; a disk that does not take it is no reason to end a fit."""
        started, tensors = time.monotonic(), dict[str, Tensor]()
        known = {"seed": self._seed, "shards": self._shards, "start": self.start, "loops": self._loops}
        told = _packed(known, tensors, "state")
        manifest = {"format": FORMAT, "manygp": __version__, "estimator": self._key["model"], "key": self._key}
        try:
            with held_back():
                write_folder(self._path, manifest | {"state": told}, as_bytes(tensors), name=CHECKPOINT)
            self._is_written = True
        except (OSError, ModelFileError, MemoryError) as error:
            cause = error.__cause__ or error
            warnings.warn(
                f"The checkpoint could not be written to {self._path} ({in_words(cause)}): the fit goes on without it.",
                UserWarning,
                stacklevel=2,
            )
        now = time.monotonic()
        self._due = now + max(self._every, (now - started) / _SHARE if self._every else 0.0)


def _seconds(every: Any, name: str) -> float:
    """A duration such as "90s", "5min", "2h" or a number of seconds."""
    if isinstance(every, int | float) and not isinstance(every, bool) and 0 <= every < float("inf"):
        return float(every)
    match = _DURATION.fullmatch(every) if isinstance(every, str) else None
    if match is None:
        raise SettingError(f"{name}={every!r} is no duration: give text such as '90s', '5min' or '2h', or seconds.")
    return float(match[1]) * _UNITS[match[2]]


# -- what a fit depends on ---------------------------------------------------------------------------------------------


def _key(estimator: "Estimator", table: Table) -> dict[str, Any]:
    settings = {key: value for key, value in estimator.get_params(deep=False).items() if key not in _IDLE}
    return {
        "version": __version__,
        "model": type(estimator).__name__,
        "device": resolve_device(estimator.device).type,
        "settings": {key: _fingerprint(value) for key, value in settings.items()},
        "table": table.digest(),
    }


def _fingerprint(value: Any) -> str:
    """A text that is another one for another value of a setting."""
    tensors: dict[str, Tensor] = {}
    told = json.dumps(encode_setting("value", value, tensors), sort_keys=True)
    if isinstance(value, nn.Module):
        told, tensors = repr(value), value.state_dict()
    if not tensors:
        return told
    digest = hashlib.blake2b(told.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _change(old: Any, new: dict[str, Any]) -> str:
    """What has changed between two keys, in a few words; nothing if all is the same."""
    if old["version"] != new["version"]:
        return f"it was written by ManyGP {old['version']}, and this is {new['version']}"
    if old["model"] != new["model"]:
        return f"of {old['model']}, and this is {new['model']}"
    for key in {**old["settings"], **new["settings"]}:
        if old["settings"].get(key) != new["settings"].get(key):
            return f"{key} was another"
    if old["table"] != new["table"]:
        return "the table was another"
    return "" if old["device"] == new["device"] else f"it ran on {old['device']}, and this is {new['device']}"


# -- states as JSON and tensors ----------------------------------------------------------------------------------------


def _packed(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """A nest of dicts, lists and tuples as JSON; tensors and arrays go to `tensors`, by where they are in the nest."""
    if isinstance(value, Tensor | np.ndarray):
        # One tensor may occur twice, and a file holds none that share memory.
        tensors[name] = torch.as_tensor(value).detach().cpu().contiguous().clone()
        return {"tensor" if isinstance(value, Tensor) else "array": name}
    if isinstance(value, dict):
        return {"dict": [[key, _packed(part, tensors, f"{name}.{key}")] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_packed(part, tensors, f"{name}.{i}") for i, part in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        # JSON knows no infinity, and this keeps every bit.
        return {"float": value.hex()}
    return value


def _unpacked(told: Any, tensors: dict[str, Tensor]) -> Any:
    """What `_packed` was given."""
    if not isinstance(told, dict):
        return told
    ((kind, value),) = told.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "array":
        return tensors[value].numpy()
    if kind == "dict":
        return {key: _unpacked(part, tensors) for key, part in value}
    if kind == "float":
        return float.fromhex(value)
    parts = [_unpacked(part, tensors) for part in value]
    return tuple(parts) if kind == "tuple" else parts
