"""What a loop must remember to go on where it was, and who keeps it."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from manygp.training.history import History

#: Numbers, text, tensors and arrays in dicts and lists.
State = dict[str, Any]


class Journal:
    """Where loops tell how far they are; this one forgets it, `estimators.checkpoint.Checkpoint` writes it to a folder.

    The loops of a fit follow each other in an order that is always the same. Each calls `begin` first, which tells
    where it was left, if it ever began; then `note` now and then with a state from which it could go on, the last of
    which is where it ended.
    """

    #: Whether it is worth while to tell it anything.
    is_active = False
    #: Where the fit began, if it did.
    start: State | None = None
    #: When training has to be over, in seconds of `time.perf_counter`.
    deadline = math.inf

    @property
    def seconds_left(self) -> float:
        """Time until training has to be over; not positive once it has to be."""
        return self.deadline - time.perf_counter()

    def seed(self, seed: int) -> int:
        """The seed of the fit: that of the call which began it."""
        return seed

    def shards(self, shards: int) -> int:
        """The number of shards of the fit: that of the call which began it."""
        return shards

    def keep_start(self, start: State) -> None:
        """Take note of where the fit begins."""

    @property
    def is_due(self) -> bool:
        """Whether the next state will be written down."""
        return False

    def begin(self) -> State | None:
        """The last state of the loop that begins now, or None if there is none."""
        return None

    def note(self, state: State) -> None:
        """Take note of a state, which nobody changes any more."""

    def flush(self) -> None:
        """Let the last state be safe."""


@torch.no_grad()
def copied(state: Any) -> Any:
    """A copy of all tensors in a nest of dicts, lists and tuples."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, Mapping):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copied(value) for value in state)
    return state


def told_history(history: History) -> State:
    """A history as a state."""
    return asdict(history)


def recalled_history(state: State) -> History:
    """What `told_history` was given."""
    return History.from_plain(state)
