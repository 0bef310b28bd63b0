"""What a manifest may say: every field has a kind and a range, and sizes are those of the tensors beside it."""

import json
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from manygp.data.axes import Axes
from manygp.training import History

_LONGEST_TEXT = 10_000
# The largest numbers that may occur, whose squares are still numbers.
_FARTHEST = 1e150
_REQUIRED = ("format", "manygp", "estimator", "settings", "sizes", "seed", "flat", "output_names", "feature_names")
_KNOWN = (*_REQUIRED, "history", "axes", "tensors", "sha256")
# Sizes that are no counts: least and most.
_RANGES = {"jitter": (0.0, 1e-2), "linear_share": (0.0, 1.0), "spectral_bound": (0.0, 1e6)}


def check_manifest(manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Refuse a manifest with a field that is missing, unknown, of the wrong kind or out of range."""
    for key in manifest:
        _expect(key in _KNOWN, f"{key[:40]!r} is unknown")
    for key in (*_REQUIRED, "history"):
        _expect(key in manifest, f"{key!r} is missing")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    _expect(isinstance(manifest["settings"], dict), "settings are no object")
    _expect(isinstance(manifest["sizes"], dict), "sizes are no object")
    for key, value in manifest["sizes"].items():
        _check_size(key, value, numbers)
    sizes = {key: manifest["sizes"].get(key) for key in ("num_features", "num_outputs")}
    _expect(all(type(size) is int and size > 0 for size in sizes.values()), "num_features or num_outputs is missing")
    _expect(type(manifest["seed"]) is int and 0 <= manifest["seed"] < 2**63, "the seed is out of range")
    _expect(type(manifest["flat"]) is bool, "flat is neither true nor false")
    _check_length("output_names", manifest["output_names"], sizes["num_outputs"])
    if manifest["feature_names"] is not None:
        circles = 2 * len(tensors.get("scaling.seasons", ()))
        _check_length("feature_names", manifest["feature_names"], sizes["num_features"] - circles)
        _expect(all(isinstance(name, str) for name in manifest["feature_names"]), "feature_names are not all text")
    _check_axes(manifest.get("axes"))
    _expect(_has_kind(manifest["history"], History), "history is no history")


def check_scaling(scaling: dict[str, Tensor], num_features: int, num_outputs: int) -> None:
    """Refuse centres and scales that are not one positive number for each feature and output."""
    for axis, size in (("x", num_features), ("y", num_outputs)):
        for part in ("center", "scale"):
            value = scaling.get(f"{axis}_{part}")
            _expect(value is not None and value.dtype == torch.float64, f"scaling.{axis}_{part} is missing")
            assert value is not None
            low, high = (1.0 / _FARTHEST, _FARTHEST) if part == "scale" else (-_FARTHEST, _FARTHEST)
            is_good = value.shape == (size,) and bool(((value >= low) & (value <= high)).all())
            _expect(is_good, f"scaling.{axis}_{part} holds a number out of range, or not {size} of them")
    seasons = scaling.get("seasons")
    if seasons is not None:
        is_good = seasons.dtype == torch.float64 and seasons.dim() == 2 and seasons.shape[1] == 2
        _expect(is_good and 2 * len(seasons) < num_features, "scaling.seasons are not a column and a period each")
        column, period = seasons[:, 0], seasons[:, 1]
        is_column = (column == column.round()) & (column >= 0) & (column < num_features - 2 * len(seasons))
        is_good = bool((is_column & (period > 0) & (period <= _FARTHEST)).all())
        _expect(is_good, "scaling.seasons hold a number out of range")


def check_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of a model: other names, shapes or kinds, or numbers that are not finite.

    Infinite by meaning is what the model, as it was built, has infinite too: the end of an open interval.
    """
    expected = model.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        raise ValueError(f"tensor {name} is {'missing' if name in expected else 'unknown'}")
    for name, value in state.items():
        own = expected[name]
        if own.shape != value.shape or _kind(own) != _kind(value):
            kinds = (f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in (value, own))
            raise ValueError("tensor {} is {} instead of {}".format(name, *kinds))
        if value.is_floating_point() and not bool(((value.abs() <= _FARTHEST) | (value == own.to(value.device))).all()):
            raise ValueError(f"tensor {name} holds a number that is not finite, or too large to square")
        if name.rpartition(".")[2] == "units" and not bool((value > 0).all()):
            raise ValueError(f"tensor {name} holds a unit that is not positive")


def _kind(tensor: Tensor) -> object:
    """What kind of numbers a tensor holds; real numbers of any precision are one kind."""
    return tensor.is_floating_point() or tensor.dtype


def _check_size(key: str, value: Any, numbers: int) -> None:
    """Counts are at most as large as the file of tensors; what is no count has a range, or is a plain value."""
    if key in _RANGES:
        low, high = _RANGES[key]
        is_number = isinstance(value, int | float) and type(value) is not bool
        _expect(value is None or (is_number and low <= value <= high), f"{key}={str(value)[:20]} is out of range")
    elif type(value) is int:
        _expect(0 <= value <= numbers, f"{key}={str(value)[:20]}, but there are {numbers} numbers")
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            _check_size("", part, numbers)
    elif isinstance(value, str):
        _expect(_is_line(value), f"{key} is no line of text")


def _check_axes(axes: Any) -> None:
    if axes is None:
        return
    _expect(isinstance(axes, dict) and axes.keys() <= {field.name for field in fields(Axes)}, "axes are not axes")
    for key, value in axes.items():
        if key in ("stacked", "label", "container", "attributes"):
            _expect(
                isinstance(value, str) or (value is None and key in ("stacked", "label")), f"{key} of axes is no text"
            )
            continue
        _expect(isinstance(value, list | tuple), f"{key} of axes is no list")
        for part in value:
            labels = part if key == "grid" and isinstance(part, list | tuple) else [part]
            kinds = str | int | float if key == "grid" else str
            _expect(all(isinstance(label, kinds) for label in labels), f"{key} of axes is no text")
    _expect(_is_attributes(axes.get("attributes", "")), "attributes of axes are none")


def _is_attributes(text: str) -> bool:
    try:
        held = json.loads(text) if text else {}
    except ValueError:
        return False
    return isinstance(held, dict) and all(isinstance(part, dict) for part in held.values())


def _has_kind(value: Any, kind: Any) -> bool:
    """Whether a value that was read from JSON is what a dataclass, or the annotation of one of its fields, asks for."""
    if is_dataclass(kind):
        known = get_type_hints(kind)
        is_whole = isinstance(value, dict) and value.keys() == known.keys()
        return is_whole and all(_has_kind(value[name], hint) for name, hint in known.items())
    inner = get_args(kind)
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_has_kind(part, inner[0]) for part in value)
    if get_origin(kind) is dict:
        pairs = value.items() if isinstance(value, dict) else [(None, None)]
        return all(_has_kind(key, inner[0]) and _has_kind(part, inner[1]) for key, part in pairs)
    if kind is int:
        return type(value) is int and value >= 0
    return _is_line(value) if kind is str else isinstance(value, int | float)


def _check_length(key: str, value: Any, length: Any) -> None:
    _expect(isinstance(value, list) and len(value) == length, f"{key} are not {length}")


def _is_line(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable()


def _expect(condition: bool | np.bool_, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)
