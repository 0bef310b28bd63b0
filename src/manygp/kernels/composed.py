"""Kernels with seasons, written as text: "rbf * periodic(24)", "rbf + periodic('year')"."""

import ast
from dataclasses import dataclass
from typing import Any

from manygp.errors import SettingError

_HOW = "write it as 'rbf * periodic(24)' or 'rbf + periodic(\"year\")'"


@dataclass(frozen=True)
class Season:
    """What repeats itself: a period in units of an input, or "hour", "day", "week" or "year" of dates.

    `column` is the input, by number or name; None is the only one, or the only one of dates.
    """

    period: float | str
    column: int | str | None = None


@dataclass(frozen=True)
class Part:
    """One summand: a named kernel of the inputs, or None for none, times a periodic one for every season.

    The periodic kernel exp(−2 sin²(π(x − x')/T)/ℓ²) is an RBF kernel of the point (sin 2πx/T, cos 2πx/T) on a circle,
    with the lengthscale ℓ. A product of an RBF kernel and periodic ones is therefore one RBF kernel, of inputs and
    circles together, and Matern kernels are taken in the same way.
    """

    base: str | None
    seasons: tuple[Season, ...]


def parts_of(kernel: str) -> tuple[Part, ...]:
    """The summands of a kernel that is written as text."""
    try:
        tree = ast.parse(kernel.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SettingError(f"kernel={kernel!r} cannot be read: {_HOW}.") from None
    return tuple(_part(factors, kernel) for factors in _split(tree, ast.Add, kernel, ast.Mult))


def seasons_of(kernel: Any) -> tuple[Season, ...]:
    """All seasons of a kernel, each once; none where it is not text."""
    if not isinstance(kernel, str):
        return ()
    return tuple(dict.fromkeys(season for part in parts_of(kernel) for season in part.seasons))


def _split(tree: ast.expr, operation: type[ast.operator], kernel: str, *inner: type[ast.operator]) -> list[Any]:
    """Operands of sums, and for each those of products."""
    waiting, found = [tree], list[ast.expr]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, operation):
            waiting += [node.right, node.left]
        else:
            found.append(node)
    return [_split(node, inner[0], kernel) for node in found] if inner else found


def _part(factors: list[ast.expr], kernel: str) -> Part:
    bases = [factor.id for factor in factors if isinstance(factor, ast.Name)]
    seasons = tuple(_season(factor, kernel) for factor in factors if not isinstance(factor, ast.Name))
    if len(bases) > 1:
        raise SettingError(f"kernel={kernel!r} multiplies {bases[0]} and {bases[1]}, which are one kernel: name one.")
    return Part(bases[0] if bases else None, seasons)


def _season(factor: ast.expr, kernel: str) -> Season:
    try:
        assert isinstance(factor, ast.Call)
        assert ast.unparse(factor.func) == "periodic"
        season = Season(
            *(ast.literal_eval(argument) for argument in factor.args),
            **{str(keyword.arg): ast.literal_eval(keyword.value) for keyword in factor.keywords},
        )
    except (AssertionError, TypeError, ValueError):
        raise SettingError(f"kernel={kernel!r} has a part that is neither a name nor periodic(...): {_HOW}.") from None
    period = season.period
    if not isinstance(period, str) and not (isinstance(period, int | float) and 0 < period < float("inf")):
        raise SettingError(f"kernel={kernel!r} has the period {period!r}: use a positive number, or 'day' of dates.")
    return season
