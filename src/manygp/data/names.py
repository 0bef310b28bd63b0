"""Names of outputs: what may be one, and which output a name or a number stands for."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from manygp.errors import DataError


def find_outputs(names: Sequence[Hashable], outputs: Any = None) -> npt.NDArray[np.int64]:
    """Return the positions of outputs given by name or position, one or several, shape (k,); all of them for None.

    An integer that is no name is a position, unless names are numbers of another order.
    """
    if _is_scalar(outputs):
        outputs = outputs[()]
    if outputs is None:
        return np.arange(len(names), dtype=np.int64)
    positions = {name: position for position, name in enumerate(names)}
    # Among numbers as names, a position would pass for a name that was misspelt.
    takes_positions = all(name == position for position, name in enumerate(names) if _is_number(name))

    def named(value: Any) -> int | None:
        key = _plain(value)
        found = positions.get(key) if _is_hashable(key) else None
        # True equals 1, but who asks for it does not mean the output of that name.
        return None if found is None or _is_bool(names[found]) != _is_bool(key) else found

    def position(name: Any) -> int:
        found = named(name)
        if found is not None:
            return found
        is_integer = isinstance(name, int | np.integer) and not _is_bool(name)
        if is_integer and takes_positions and 0 <= name < len(names):
            return int(name)
        known = ", ".join(repr(known) for known in names[:5]) + (", ..." if len(names) > 5 else "")
        other = (
            f" or a position from 0 to {len(names) - 1}"
            if takes_positions
            else ", since positions are not taken where names are numbers"
        )
        raise DataError(f"Output {name!r} is unknown; expected one of the {len(names)} output names ({known}){other}.")

    if isinstance(outputs, str) or not isinstance(outputs, Iterable) or named(outputs) is not None:
        outputs = [outputs]
    return np.array([position(name) for name in outputs], dtype=np.int64)


def as_positions(values: Any, length: int, num_outputs: int) -> npt.NDArray[np.int64]:
    """Return positions of outputs, shape (length,), or refuse numbers that are none."""
    positions = np.asarray(values)
    is_good = positions.shape == (length,) and positions.dtype.kind in "iu"
    if not is_good or (length and not 0 <= positions.min() <= positions.max() < num_outputs):
        raise DataError(f"These are no {length} positions from 0 to {num_outputs - 1}.")
    return positions.astype(np.int64)


def match_names(asked: Sequence[Hashable], known: Sequence[Hashable]) -> list[Hashable]:
    """Return the outputs that are meant by some names: in text, as files have it, numbers are known too."""
    by_text: dict[Hashable, Hashable] = {str(name): name for name in known}
    by_name = set(known)
    return [name if name in by_name else by_text.get(str(name), name) for name in asked]


def given_names(names: Any) -> tuple[Hashable, ...]:
    """Return names of outputs as a user gave them; what is no text or number, such as a date, becomes text.

    Names are written to files and typed by hand, which dates, intervals and the like survive as text only.
    """
    if isinstance(names, str | bytes) or not isinstance(names, Iterable) or _is_scalar(names):
        raise DataError(f"output_names={names!r} is no list of names; give one name for each output.")
    return tuple(_plain(name) for name in names)


def checked_names(names: Iterable[Hashable] | None, num_outputs: int) -> tuple[Hashable, ...]:
    """Return one distinct name for each output; 0, 1, 2, ... where none are given."""
    if names is None:
        return tuple(range(num_outputs))
    checked = given_names(names)
    if len(checked) != num_outputs:
        raise DataError(f"There are {len(checked)} output names and {num_outputs} outputs; give one name for each.")
    seen: set[Hashable] = set()
    for name in checked:
        if not _is_lasting(name):
            raise DataError(f"Output name {name!r} cannot be looked up; give strings, numbers or tuples of them.")
        if name in seen:
            raise DataError(f"Output name {name!r} occurs more than once; give every output a name of its own.")
        seen.add(name)
    return checked


def label_cells(outputs: Any, names: tuple[Hashable, ...] | None) -> tuple[npt.NDArray[np.int64], tuple[Hashable, ...]]:
    """Return the position of each cell's output, and all names in order."""
    labels = pd.Series(_as_labels(outputs))
    if labels.isna().any():
        raise DataError("outputs contains missing values; name the output of every cell.")
    is_categorical = isinstance(labels.dtype, pd.CategoricalDtype)
    try:
        codes, distinct = (labels.cat.codes, labels.cat.categories) if is_categorical else labels.factorize()
    except TypeError as error:
        message = "outputs contains names that cannot be looked up; give strings, numbers or tuples of them."
        raise DataError(message) from error
    found = given_names(distinct)
    if names is None:
        names = found if is_categorical else _sorted_names(found)
    # Tuples as names would become a MultiIndex, which does not look tuples up as such.
    index = pd.Index(names, tupleize_cols=False)
    if not index.is_unique:
        raise DataError("Output names occur more than once; give every output a name of its own.")
    positions = index.get_indexer(pd.Index(found, dtype=object, tupleize_cols=False))[np.asarray(codes)]
    if (positions < 0).any():
        unknown = found[codes[int(np.flatnonzero(positions < 0)[0])]]
        raise DataError(f"outputs contains {unknown!r}, which is not among output_names; add it or drop its cells.")
    return positions.astype(np.int64), tuple(index.tolist())


def _as_labels(outputs: Any) -> Any:
    labels = outputs
    if not isinstance(outputs, pd.Series | pd.Index | pd.Categorical | np.ndarray):
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise DataError(f"outputs={outputs!r} is no list of names; give one output name for each cell.")
        held = list(outputs)
        # Through an empty object array, because numpy would spread tuples over a second axis.
        labels = np.empty(len(held), dtype=object)
        labels[:] = held
    if np.ndim(labels) != 1:
        raise DataError(f"outputs has shape {np.shape(labels)}; expected one output name for each cell.")
    return labels


def _sorted_names(names: tuple[Any, ...]) -> tuple[Hashable, ...]:
    try:
        return tuple(sorted(names))
    except TypeError:
        # Names of mixed kinds have no order; that of their first appearance is as good as any.
        return names


def _plain(name: Any) -> Any:
    if isinstance(name, tuple):
        return tuple(_plain(part) for part in name)
    if isinstance(name, bytes):
        return name.decode(errors="replace")
    if isinstance(name, np.generic) and name.dtype.kind not in "mM":
        name = name.item()
    is_kept = name is None or isinstance(name, str | int | float) or _is_missing(name) or not _is_hashable(name)
    return name if is_kept else str(name)


def _is_missing(name: Any) -> bool:
    # NaN is not equal to itself, and pandas' NA does not say.
    return name is pd.NA or name is pd.NaT or bool(_is_hashable(name) and name != name)


def _is_lasting(name: Any) -> bool:
    """Whether a name can be looked up, and written to a file."""
    if isinstance(name, tuple):
        return all(map(_is_lasting, name))
    is_infinite = isinstance(name, float) and math.isinf(name)
    return _is_hashable(name) and not _is_missing(name) and not is_infinite


def _is_bool(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not _is_bool(value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, np.ndarray) and not value.ndim


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
