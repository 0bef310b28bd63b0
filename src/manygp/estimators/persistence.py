"""Fitted models as folders: numbers in safetensors, the rest in JSON. Loading runs no code from the folder."""

import json
import math
import shutil
import uuid
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manygp._version import __version__
from manygp.data import Scaling
from manygp.data.axes import Axes
from manygp.data.names import checked_names
from manygp.errors import ModelFileError, SettingError
from manygp.estimators.estimator import Estimator
from manygp.estimators.settings import resolve_device
from manygp.training import EpochRecord, History

__all__ = ["check_target", "load_estimator", "save"]

FORMAT = 1
CONFIG, TENSORS = "manygp.json", "tensors.safetensors"
# What a spoilt setting or size can end in.
_DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError)


def save(estimator: Estimator, path: Path) -> None:
    """Write a fitted estimator to a folder; an older model there is replaced only once the new one is complete."""
    check_target(path)
    config, tensors = _describe(estimator)
    fresh = path.parent / f".{path.name}.{uuid.uuid4().hex}.new"
    old = fresh.with_suffix(".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        save_file(tensors, fresh / TENSORS)
        (fresh / CONFIG).write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if path.exists():
            path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    except (OSError, SafetensorError) as error:
        raise ModelFileError(
            f"The model could not be written to {path} ({error}); nothing there was changed."
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_target(path: Path) -> None:
    """Refuse to write a model over anything but a model or an empty folder."""
    is_model_folder = path.is_dir() and ((path / CONFIG).exists() or not any(path.iterdir()))
    if path.exists() and not is_model_folder:
        raise ModelFileError(f"{path} exists and is not a ManyGP model: choose another folder or remove it.")


def load_estimator(
    path: Path, estimators: dict[str, type[Estimator]], modules: dict[str, nn.Module | gpytorch.kernels.Kernel]
) -> Estimator:
    """Read an estimator from a folder.

    Parameters
    ----------
    path
        The folder.
    estimators
        Known estimator classes by class name.
    modules
        Modules of the user's own that the model was made with, by the name of the setting.
    """
    config = _read_config(path)
    name = config.get("estimator")
    if not isinstance(name, str) or name not in estimators:
        raise ModelFileError(f"{path} holds a model of the unknown kind {name!r}: known are {', '.join(estimators)}.")
    try:
        tensors = load_file(path / TENSORS)
        for key in modules:
            if not isinstance(config["settings"].get(key), dict) or "module" not in config["settings"][key]:
                raise ModelFileError(f"{path} was not fitted with a module of your own as {key}: leave {key}= out.")
        settings = {key: _decode(key, value, tensors, modules, path) for key, value in config["settings"].items()}
        estimator = estimators[name](**settings)
        estimator._check_settings()
        with torch.random.fork_rng(devices=[]):
            model = estimator._restore(config["sizes"])
        model.load_state_dict(_with_prefix(tensors, "model."))
        _attach(estimator, model.train(False).to(_device_of(estimator)), config, tensors)
    except ModelFileError:
        raise
    except (OSError, SafetensorError, *_DAMAGE) as error:
        raise ModelFileError(f"{path} is damaged and cannot be loaded ({_first_line(error)}).") from error
    return estimator


def _device_of(estimator: Estimator) -> torch.device:
    """The device that was set for the fit, or the CPU where there is none such."""
    try:
        return resolve_device(estimator.device)
    except SettingError:
        warnings.warn(
            f"The model has device={estimator.device!r}, which cannot be used here: it is loaded on the CPU.",
            UserWarning,
            stacklevel=4,
        )
        return torch.device("cpu")


def _describe(estimator: Estimator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {
        f"model.{key}": value.detach().cpu().contiguous().clone()
        for key, value in estimator.model_.state_dict().items()
    }
    tensors |= {f"scaling.{key}": torch.as_tensor(value).clone() for key, value in estimator.scaling_.arrays().items()}
    if hasattr(estimator, "exposure_"):
        tensors["exposure"] = torch.as_tensor(estimator.exposure_).clone()
    config = {
        "format": FORMAT,
        "manygp": __version__,
        "estimator": type(estimator).__name__,
        "settings": {key: _encode(key, value, tensors) for key, value in estimator.get_params(deep=False).items()},
        "sizes": estimator._sizes(),
        "seed": estimator._seed,
        "flat": estimator._flat_,
        "output_names": [_encode_name(name) for name in estimator.output_names_],
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])] or None,
        "axes": asdict(estimator._axes_),
        "history": {
            "stop_reason": estimator.history_.stop_reason,
            "records": [asdict(record) for record in estimator.history_.records],
        },
    }
    return config, tensors


def _attach(estimator: Estimator, model: nn.Module, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    scaling = {key: value.numpy() for key, value in _with_prefix(tensors, "scaling.").items()}
    estimator.model_, estimator.scaling_ = model, Scaling.from_arrays(scaling)
    history = config["history"]
    estimator.history_ = History([EpochRecord(**record) for record in history["records"]], history["stop_reason"])
    estimator._settings_ = estimator.get_params(deep=False)
    estimator._seed, estimator._flat_ = int(config["seed"]), bool(config["flat"])
    estimator.n_features_in_ = int(config["sizes"]["num_features"])
    estimator.n_outputs_ = int(config["sizes"]["num_outputs"])
    names = [_decode_name(name) for name in config["output_names"]]
    estimator.output_names_ = checked_names(names, estimator.n_outputs_)
    estimator._axes_ = Axes.from_plain(config.get("axes"))
    if "exposure" in tensors:
        estimator.exposure_ = tensors["exposure"].numpy()
    if config["feature_names"] is not None:
        estimator.feature_names_in_ = np.asarray(config["feature_names"], dtype=object)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a folder: give the folder that save() wrote.")
    try:
        config = json.loads((path / CONFIG).read_text(encoding="utf-8"))
        version = config["format"]
    except FileNotFoundError as error:
        raise ModelFileError(f"{path} is not a ManyGP model: it has no {CONFIG}.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path / CONFIG} cannot be read ({_first_line(error)}).") from error
    if not isinstance(version, int) or version > FORMAT:
        raise ModelFileError(
            f"{path} was written by ManyGP {config.get('manygp')} in format {version}, but this is {__version__} with "
            f"format {FORMAT}: upgrade ManyGP to load it."
        )
    return config


def _encode(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """A setting as JSON; arrays go to the tensors, and of modules only the class is told."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, nn.Module):
        return {"module": type(value).__name__}
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, pd.DataFrame):
        tensors[f"setting.{key}"] = torch.as_tensor(np.array(value, dtype=np.float64))
        labels = {axis: [_encode_name(name) for name in getattr(value, axis)] for axis in ("index", "columns")}
        return {"frame": f"setting.{key}", **labels}
    if isinstance(value, tuple) and all(isinstance(part, int | np.integer) for part in value):
        return _encode_name(value)
    tensors[f"setting.{key}"] = torch.as_tensor(np.asarray(value, dtype=np.float64)).clone()
    return {"tensor": f"setting.{key}"}


def _decode(key: str, value: Any, tensors: dict[str, Tensor], modules: dict[str, Any], path: Path) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]].numpy()
    if "tuple" in value:
        return _decode_name(value)
    if "frame" in value:
        index, columns = ([_decode_name(name) for name in value[axis]] for axis in ("index", "columns"))
        return pd.DataFrame(tensors[value["frame"]].numpy(), pd.Index(index, tupleize_cols=False), columns)
    if "float" in value:
        return float(value["float"])
    if key not in modules:
        raise ModelFileError(
            f"{path} was fitted with {key}={value['module']}(...), a module of your own, whose code is not in the "
            f"folder: pass one like it, manygp.load({str(path)!r}, {key}=...)."
        )
    return modules[key]


def _encode_name(name: Any) -> Any:
    """An output name as JSON; tuples become {"tuple": [...]}."""
    if isinstance(name, tuple):
        return {"tuple": [_encode_name(part) for part in name]}
    if isinstance(name, np.generic):
        name = name.item()
    return name if name is None or isinstance(name, str | int | float | bool) else str(name)


def _decode_name(name: Any) -> Any:
    return tuple(_decode_name(part) for part in name["tuple"]) if isinstance(name, dict) else name


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
