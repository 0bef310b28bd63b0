"""Fitted models as folders: numbers in safetensors, the rest in JSON. Loading runs no code from the folder."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from safetensors.torch import save as as_bytes
from torch import Tensor, nn

from manygp._version import __version__
from manygp.data import Scaling
from manygp.data.axes import Axes
from manygp.data.names import checked_names
from manygp.errors import ModelFileError, SettingError
from manygp.estimators.encoding import decode_name, decode_setting, encode_name, encode_setting
from manygp.estimators.estimator import Estimator
from manygp.estimators.folders import FORMAT, check_target, model_path, read_folder, write_folder
from manygp.estimators.schema import check_manifest, check_scaling, check_state
from manygp.estimators.settings import resolve_device, resolve_dtype, resolve_seed
from manygp.memory import Allotment, TooLarge
from manygp.training import History
from manygp.training.interrupts import held_back

# What a spoilt setting or size can end in.
_DAMAGE = (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError, TooLarge)
# Building a model may take a few times the largest of its tensors, and so many operations for each of them.
_SPARE_BYTES, _TIMES_LARGEST, _OPERATIONS = 2**22, 4, 150


def save(estimator: Estimator, path: Any, overwrite: bool = False) -> None:
    """Write a fitted estimator to a folder; an older model there is replaced only once the new one is complete.

    Ctrl-C waits until all is written.
    """
    folder = model_path(path)
    check_target(folder, overwrite)
    manifest, tensors = _describe(estimator)
    try:
        check_manifest(manifest, tensors)
        check_scaling(_with_prefix(tensors, "scaling."), estimator._sizes()["num_features"], estimator.n_outputs_)
        check_state(_build(estimator, manifest["sizes"], tensors), _with_prefix(tensors, "model."))
    except _DAMAGE as error:
        raise ModelFileError(f"This model could not be loaded again ({_first_line(error)}): fit it anew.") from error
    with held_back():
        write_folder(folder, manifest, as_bytes(tensors), overwrite)


@torch.inference_mode(False)
def load_estimator(
    path: Any, estimators: dict[str, type[Estimator]], modules: dict[str, nn.Module | gpytorch.kernels.Kernel]
) -> Estimator:
    """Read an estimator, of a known class by name, from a folder.

    `modules` are those of the user's own that the model was made with, by the name of the setting.
    """
    folder = model_path(path)
    manifest, tensors = read_folder(folder)
    name = manifest["estimator"]
    if not isinstance(name, str) or name not in estimators:
        known = ", ".join(estimators)
        raise ModelFileError(f"{folder} holds a model of the unknown kind {str(name)[:40]!r}: known are {known}.")
    try:
        check_manifest(manifest, tensors)
        estimator = estimators[name](**_settings(folder, manifest["settings"], tensors, modules))
        estimator._check_settings()
        resolve_seed(estimator.random_state), resolve_dtype(estimator.dtype)
        model, state = _build(estimator, manifest["sizes"], tensors), _with_prefix(tensors, "model.")
        check_state(model, state)
        model.load_state_dict(state)
        _attach(estimator, model.train(False).to(_device_of(estimator)), manifest, tensors)
    except ModelFileError:
        raise
    except _DAMAGE as error:
        raise ModelFileError(f"{folder} is damaged and cannot be loaded ({_first_line(error)}).") from error
    return estimator


def _settings(
    path: Path, settings: dict[str, Any], tensors: dict[str, Tensor], modules: dict[str, Any]
) -> dict[str, Any]:
    for key in modules:
        if not isinstance(settings.get(key), dict) or "module" not in settings[key]:
            raise ModelFileError(f"{path} was not fitted with a module of your own as {key}: leave {key}= out.")
    return {key: decode_setting(key, value, tensors, modules, path) for key, value in settings.items()}


def _build(estimator: Estimator, sizes: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """An untrained model, unless the sizes ask for more than the tensors that it is to have."""
    largest = max((tensor.numel() * tensor.element_size() for tensor in tensors.values()), default=0)
    with Allotment(_SPARE_BYTES + _TIMES_LARGEST * largest, _OPERATIONS * (10 + len(tensors))):
        return estimator._restore(sizes)


def _device_of(estimator: Estimator) -> torch.device:
    """The device that was set for the fit, or the CPU where there is none such."""
    try:
        return resolve_device(estimator.device)
    except SettingError:
        warnings.warn(
            f"The model has device={estimator.device!r}, which cannot be used here: it is loaded on the CPU.",
            UserWarning,
            stacklevel=5,
        )
        return torch.device("cpu")


def _describe(estimator: Estimator) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tensors = {f"model.{key}": value for key, value in estimator.model_.state_dict().items()}
    tensors |= {f"scaling.{key}": torch.as_tensor(value) for key, value in estimator.scaling_.arrays().items()}
    tensors |= {f"data.{key}": torch.as_tensor(value) for key, value in estimator._kept_data().items()}
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    manifest = {
        "format": FORMAT,
        "manygp": __version__,
        "estimator": type(estimator).__name__,
        "settings": {
            key: encode_setting(key, value, tensors) for key, value in estimator.get_params(deep=False).items()
        },
        "sizes": estimator._sizes(),
        "seed": estimator._seed,
        "flat": estimator._flat_,
        "output_names": [encode_name(name) for name in estimator.output_names_],
        "feature_names": [str(name) for name in getattr(estimator, "feature_names_in_", [])] or None,
        "axes": asdict(estimator._axes_),
        "history": asdict(estimator.history_),
    }
    return manifest, tensors


def _attach(estimator: Estimator, model: nn.Module, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    sizes, scaling = manifest["sizes"], _with_prefix(tensors, "scaling.")
    check_scaling(scaling, sizes["num_features"], sizes["num_outputs"])
    estimator.model_ = model
    estimator.scaling_ = Scaling.from_arrays({key: value.numpy() for key, value in scaling.items()})
    estimator.n_features_in_, estimator.n_outputs_ = estimator.scaling_.num_features, sizes["num_outputs"]
    estimator.history_ = History.from_plain(manifest["history"])
    estimator._settings_ = estimator.get_params(deep=False)
    estimator._seed, estimator._flat_ = manifest["seed"], manifest["flat"]
    names = [decode_name(name) for name in manifest["output_names"]]
    estimator.output_names_ = checked_names(names, estimator.n_outputs_)
    estimator._axes_ = Axes.from_plain(manifest.get("axes"))
    estimator._keep_data({key: value.numpy() for key, value in _with_prefix(tensors, "data.").items()})
    if manifest["feature_names"] is not None:
        estimator.feature_names_in_ = np.asarray(manifest["feature_names"], dtype=object)


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
