"""Memory: how much there is, and refusals before it is asked for rather than after."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from manygp.errors import SettingError

__all__ = ["Allotment", "TooLarge", "bytes_in_words", "check_memory", "foreseen", "total_memory"]

# The share of the memory that one result of a fit may take: what is learnt needs as much again for gradients and twice
# as much for Adam.
_LARGEST_SHARE = 0.25


class TooLarge(Exception):
    """More was asked for than allotted; carries the number of bytes."""

    def __init__(self, num_bytes: float):
        super().__init__(f"{bytes_in_words(num_bytes)} of memory are asked for")
        self.num_bytes = num_bytes


class Allotment(TorchDispatchMode):
    """A context in which no operation of torch may have a result of more than so many bytes, nor more operations be.

    Sizes are found on torch's device without memory, before anything is allocated.
    """

    def __init__(self, num_bytes: float, operations: float = float("inf")):
        super().__init__()
        self.num_bytes, self.operations = num_bytes, operations
        # What operations on given shapes ask for: most occur many times.
        self._asked: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations -= 1
        key = func, _shapes(args), _shapes(tuple(kwargs.items()))
        if key not in self._asked:
            self._asked[key] = _result_bytes(func, args, kwargs)
        asked = self._asked[key]
        if asked > self.num_bytes or self.operations < 0:
            raise TooLarge(asked)
        return func(*args, **kwargs)


def _shapes(value: Any) -> Any:
    """Shapes and kinds of tensors, however deep they are in lists, and all else as it is, as something to look up."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return tuple(map(_shapes, value)) if isinstance(value, list | tuple) else (type(value), value)


def _result_bytes(func: Any, args: Any, kwargs: dict[str, Any]) -> int:
    """Bytes of the tensors that an operation returns; 0 where that depends on values."""
    try:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        results = tree_leaves(func(*args, **kwargs))
    except (RuntimeError, NotImplementedError, TypeError):
        return 0
    return sum(result.numel() * result.element_size() for result in results if isinstance(result, Tensor))


@contextmanager
def foreseen(what: str, advice: str, device: torch.device | None = None) -> Iterator[None]:
    """Refuse work in a block of which one result would take too much of the memory, before it is asked for."""
    memory = total_memory(device)
    try:
        with Allotment(_LARGEST_SHARE * memory):
            yield
    except TooLarge as error:
        raise SettingError(
            f"{what} has a part of {bytes_in_words(error.num_bytes)}, and there are {bytes_in_words(memory)} of memory "
            f"in all: {advice}."
        ) from error


def total_memory(device: torch.device | None = None) -> float:
    """Bytes of memory of a device, the machine itself by default; infinite where that is not known."""
    if device is not None and device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")


def check_memory(what: str, num_bytes: float, device: torch.device | None = None) -> None:
    """Refuse what needs more memory than the device has, the machine itself by default."""
    total = total_memory(device)
    if num_bytes > total:
        raise SettingError(
            f"{what} needs about {bytes_in_words(num_bytes)} of memory, and there are {bytes_in_words(total)} in all: "
            "choose a smaller number."
        )


def bytes_in_words(num_bytes: float) -> str:
    """So many bytes as people say it: 7.5 TB."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(max(num_bytes, 1.0)) / 3), len(units) - 1)
    return f"{num_bytes / 1000**power:.3g} {units[power]}"
