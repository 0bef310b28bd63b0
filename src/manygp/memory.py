"""Memory: how much there is, and refusals before it is asked for rather than after."""

import logging
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from manygp.errors import SettingError

__all__ = ["Allotment", "TooLarge", "bytes_in_words", "check_memory", "foreseen", "free_memory", "total_memory"]

logger = logging.getLogger("manygp")

# The share of the memory that one result of a fit may take: what is learnt needs as much again for gradients and twice
# as much for Adam. And the share of what is free that all results together may take without a warning.
_LARGEST_SHARE, _MUCH = 0.25, 0.8
# Where Linux tells how much memory the processes of a container may take, and how much is free.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_FREE = "/proc/meminfo"


class TooLarge(Exception):
    """More was asked for than allotted, by one result or by `all` that there are; carries the number of bytes."""

    def __init__(self, num_bytes: float, are_many: bool = False):
        super().__init__(f"{bytes_in_words(num_bytes)} of memory are asked for")
        self.num_bytes, self.are_many = num_bytes, are_many


class Allotment(TorchDispatchMode):
    """A context in which no operation of torch may have a result of more than so many bytes, nor more operations be.

    Sizes are found on torch's device without memory, before anything is allocated.

    Parameters
    ----------
    num_bytes
        The most that one result may take.
    operations
        The most operations; more raise `TooLarge` too.
    in_all
        The most that all results may take that are there at the same time.
    much, tell
        What is called, once, before all results together take more than so many bytes.

    Attributes
    ----------
    peak
        The most bytes that results have taken together so far.
    """

    def __init__(
        self,
        num_bytes: float,
        operations: float = math.inf,
        in_all: float = math.inf,
        much: float = math.inf,
        tell: Callable[[], None] | None = None,
    ):
        super().__init__()
        self.num_bytes, self.operations, self.in_all = num_bytes, operations, in_all
        self.much, self.tell, self.peak = much, tell, 0.0
        # What operations on given shapes ask for: most occur many times.
        self._asked: dict[Any, int] = {}
        # Bytes of what is there, by its place in memory.
        self._held: dict[int, int] = {}
        self._sum = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.operations -= 1
        key = func, _shapes(args), _shapes(tuple(kwargs.items()))
        if key not in self._asked:
            self._asked[key] = _result_bytes(func, args, kwargs)
        asked = self._asked[key]
        if asked > self.num_bytes or self.operations < 0:
            raise TooLarge(asked)
        together = self._sum + (0 if _is_view(func) else asked)
        if together > self.in_all:
            raise TooLarge(together, are_many=True)
        if together > self.much and self.tell is not None:
            self.tell()
            self.tell = None
        results = func(*args, **kwargs)
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.layout is torch.strided:
                self._hold(result)
        return results

    def _hold(self, result: Tensor) -> None:
        """Count the memory of a result until it is given back; views have that of others."""
        storage = result.untyped_storage()
        if storage._cdata not in self._held:
            self._held[storage._cdata] = storage.nbytes()
            self._sum += storage.nbytes()
            self.peak = max(self.peak, self._sum)
            weakref.finalize(storage, self._release, storage._cdata)

    def _release(self, place: int) -> None:
        self._sum -= self._held.pop(place)


def _is_view(func: Any) -> bool:
    """Whether an operation returns what it was given, or a view of it."""
    return func is torch.ops.aten._unsafe_view.default or any(one.alias_info for one in func._schema.returns)


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
    """Look ahead at the memory that work in a block takes, of which later work takes as much again.

    It is refused where one result, or all together, would take too much of what there is, and warned of where that is
    more than is free, before it is asked for.
    """
    memory, free = total_memory(device), free_memory(device)

    def tell() -> None:
        warnings.warn(
            f"{what} takes more than {bytes_in_words(_MUCH * free)} of memory, and there are {bytes_in_words(free)} "
            f"free: {advice}, or make room.",
            UserWarning,
            stacklevel=2,
        )

    allotment = Allotment(_LARGEST_SHARE * memory, in_all=memory, much=_MUCH * free, tell=tell)
    try:
        with allotment:
            yield
    except TooLarge as error:
        part = "takes" if error.are_many else "has a part of"
        raise SettingError(
            f"{what} {part} {bytes_in_words(error.num_bytes)}, and there are {bytes_in_words(memory)} of memory "
            f"in all: {advice}."
        ) from error
    logger.info("%s takes %s of memory", what, bytes_in_words(allotment.peak))


def total_memory(device: torch.device | None = None) -> float:
    """Bytes of memory of a device, the machine or container itself by default; infinite where that is not known."""
    if device is not None and device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    found = math.inf
    with suppress(AttributeError, ValueError, OSError):
        found = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        # Where there is no limit, that of version 2 says "max".
        with suppress(ValueError, OSError):
            found = min(found, float(Path(path).read_text()))
    return found


def free_memory(device: torch.device | None = None) -> float:
    """Bytes of memory of a device that nobody uses, as far as that is known."""
    if device is not None and device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    found = total_memory(device)
    with suppress(ValueError, OSError, LookupError):
        told = dict(line.split(":") for line in Path(_FREE).read_text().splitlines())
        found = min(found, 1024.0 * float(told["MemAvailable"].split()[0]))
    return found


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
