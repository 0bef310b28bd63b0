"""What the container of a fit called its inputs and outputs, as plain text that can be saved."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Axes:
    """Names of the axes that observations were given along."""

    #: Names of the input columns; empty where they had none.
    inputs: tuple[str, ...] = ()
    #: Names of what tells outputs apart: one, or one for each entry of output names that are tuples. Empty where values
    #: had no axis of outputs.
    outputs: tuple[str, ...] = ("output",)
    #: Kinds of these labels, since names of outputs keep dates as text.
    dtypes: tuple[str, ...] = ("object",)
    #: The one dimension that several of them share; None where each is a dimension.
    stacked: str | None = None
    #: What each input column holds, such as numbers or dates; empty where that is not known.
    kinds: tuple[str, ...] = ()
    #: What values came in, and predictions go out in: "numpy", "pandas", "xarray", or another library of frames.
    container: str = "numpy"
    #: Name of the values themselves, such as that of a DataArray.
    label: str | None = None
    #: All labels along each axis of a field, those of places that were never observed included; else empty.
    grid: tuple[tuple[Hashable, ...], ...] = ()
    #: Attributes of the values, under "", and of their coordinates, as JSON; empty where there were none.
    attributes: str = ""

    @classmethod
    def from_plain(cls, plain: dict[str, Any] | None) -> Self:
        """Return axes as `dataclasses.asdict` and JSON leave them; None has no labels."""
        values: dict[str, Any] = {} if plain is None else plain
        return cls(**{key: _frozen(part) for key, part in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
