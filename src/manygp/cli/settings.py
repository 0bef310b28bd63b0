"""From `--set key=value` to a model's parameters."""

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

from manygp.errors import SettingError

_WORDS = {"none": None, "null": None, "true": True, "false": False}
_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "none"}


def model_class(name: str, models: dict[str, type]) -> type:
    """Look a model up by its name."""
    try:
        return models[name.lower()]
    except KeyError:
        known = ", ".join(sorted(models))
        raise SettingError(f"There is no model {name!r}; choose one of: {known}.") from None


def parse_settings(model: type, pairs: Iterable[str]) -> dict[str, Any]:
    """Turn `key=value` texts into keyword arguments of a model, of the types of its parameters; the last counts."""
    constructor: Callable[..., Any] = model.__init__  # type: ignore[misc]
    known = [name for name in inspect.signature(constructor).parameters if name != "self"]
    hints = get_type_hints(constructor)
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise SettingError(f"--set was given {pair!r}; write it as key=value, for example --set {known[0]}=3.")
        if key not in known:
            raise SettingError(f"{model.__name__} has no setting {key!r}; it has: {', '.join(known)}.")
        settings[key] = _parse(key, text.strip(), hints.get(key, Any))
    return settings


def _parse(key: str, text: str, hint: Any) -> Any:
    """One value, as the first of the parameter's plain types that it can be read as."""
    choices = _plain_types(hint)
    if not choices:
        raise SettingError(f"{key} takes an object that no text can stand for; set it from Python instead.")
    word = text.lower()
    if word in _WORDS and type(_WORDS[word]) in choices:
        return _WORDS[word]
    for kind in (int, float):
        if kind in choices:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in choices and text:
        return text
    expected = " or ".join(_NAMES[kind] for kind in choices)
    raise SettingError(f"{key} was set to {text!r}; expected {expected}.")


def _plain_types(hint: Any) -> list[type]:
    """The types among an annotation's alternatives that can be written as text."""
    if hint is Any:
        return list(_NAMES)
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for part in get_args(hint) for kind in _plain_types(part)]
    if get_args(hint) and all(isinstance(value, str) for value in get_args(hint)):
        return [str]
    return [hint] if hint in _NAMES else []
