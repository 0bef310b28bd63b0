"""`--set key=value` becomes what the parameter's annotation says, or one clear sentence."""

from typing import Any, Literal

import numpy as np
import pytest

from manygp.cli.settings import model_class, parse_settings
from manygp.errors import SettingError


class Model:
    def __init__(
        self,
        size: int = 3,
        rate: float = 0.1,
        bound: float | None = None,
        epochs: int | Literal["auto"] = "auto",
        kernel: str = "rbf",
        scale: bool | str = True,
        start: np.ndarray | None = None,
        other: Any = None,
        callback: np.ndarray = np.zeros(1),  # noqa: B008
    ) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("size=4", 4),
        (" size = 4 ", 4),
        ("rate=1e-3", 1e-3),
        ("rate=2", 2.0),
        ("bound=none", None),
        ("bound=None", None),
        ("bound=0.5", 0.5),
        ("epochs=30", 30),
        ("epochs=auto", "auto"),
        ("kernel=matern52", "matern52"),
        ("kernel=a=b", "a=b"),
        ("scale=true", True),
        ("scale=False", False),
        ("scale=global", "global"),
        ("start=none", None),
        ("other=7", 7),
        ("other=0.5", 0.5),
        ("other=true", True),
        ("other=word", "word"),
    ],
)
def test_value_has_the_type_of_its_parameter(text: str, value: object) -> None:
    (parsed,) = parse_settings(Model, [text]).values()
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("size", "key=value"),
        ("=3", "key=value"),
        ("sise=3", "no setting 'sise'; it has: size, rate"),
        ("size=big", "a whole number"),
        ("size=2.5", "a whole number"),
        ("rate=fast", "a number"),
        ("bound=tight", "a number or none"),
        ("kernel=", "a word"),
        ("start=3", "none"),
        ("callback=3", "from Python"),
    ],
)
def test_a_bad_setting_is_named(text: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        parse_settings(Model, [text])


def test_later_settings_override_earlier_ones() -> None:
    assert parse_settings(Model, ["size=1", "rate=1", "size=2"]) == {"size": 2, "rate": 1.0}


def test_models_are_found_by_name() -> None:
    assert model_class("Model", {"model": Model}) is Model
    with pytest.raises(SettingError, match="no model 'x'; choose one of: model"):
        model_class("x", {"model": Model})
