"""Fits by several processes: each has some of the outputs, and all have the same model.

    # fit.py, run by: torchrun --nproc-per-node 4 fit.py
    model = manygp.distributed.fit(manygp.TLVMOGP(num_neighbors=0), X, Y)
    if manygp.distributed.is_first():
        model.save("model")

A step of K processes, or ranks, is that of one process on a batch K times as large. What they exchange is the mean of
what they say about q(u), and the sum of the gradients of what outputs share; rows of outputs stay where they are, but
for neighbours, of which every rank has groups and all know the rows.

Predictions and scores of any model, however it was fitted, are shared out in the same way: `predict_dist`,
`predict_to` and `evaluate` have the chunks of a prediction computed by the ranks in turn.
"""

import atexit
import math
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from manygp.errors import RankError, SettingError
from manygp.estimators import TLVMOGP
from manygp.estimators.estimator import Estimator
from manygp.exchange import ALONE, Exchange
from manygp.prediction import Prediction
from manygp.training.interrupts import noted
from manygp.training.journal import Journal, State

__all__ = ["RankExchange", "Traffic", "evaluate", "fit", "is_first", "predict_dist", "predict_to"]

Fitted = TypeVar("Fitted", bound=Estimator)
Made = TypeVar("Made")
Given = TypeVar("Given")

# How long ranks wait for one that lives: the first looks at the whole table before it begins.
_PATIENCE = timedelta(hours=2)


def is_first() -> bool:
    """Whether this process is the one that writes: the first of its ranks, or one that was not started by torchrun."""
    return not dist.is_torchelastic_launched() or os.environ["RANK"] == "0"


def fit(estimator: Fitted, *data: Any, traffic: "Traffic | None" = None, **settings: Any) -> Fitted:
    """Fit a model by all ranks of a job that torchrun has started; by this process alone in any other program.

    Every rank calls it with the same settings and data, and has the same model afterwards.

    Parameters
    ----------
    estimator
        A `TLVMOGP`. Sizes of batches are those of a rank.
    data, settings
        As in `Estimator.fit`. A checkpoint is read and written by the first rank alone, and any smaller number of ranks
        goes on with it.
    traffic
        Counts what this rank sends.

    Raises
    ------
    RankError
        If another rank is gone.
    """
    if _is_alone():
        return estimator.fit(*data, **settings)
    _check(estimator, settings)
    with _shared(estimator, traffic) as exchange, exchange.listening():
        return estimator.fit(*data, **settings)


def predict_dist(estimator: Estimator, *asked: Any, **settings: Any) -> Prediction:
    """The prediction of `Estimator.predict_dist`, whose chunks the ranks compute in turn.

    Every rank asks it the same questions in the same order, and has the answers that one process would have, to the
    bit. What is drawn (`sample`) and what tells of cells together (`aggregate` and its like) every rank computes for
    itself. With `write`, one rank writes what all have computed.

    Parameters
    ----------
    estimator
        A fitted model of any kind, the same on all ranks.
    asked, settings
        As in `Estimator.predict_dist`.
    """
    with _shared(estimator):
        return estimator.predict_dist(*asked, **settings)


def predict_to(estimator: Estimator, *asked: Any, **settings: Any) -> None:
    """`Estimator.predict_to` by all ranks: each computes its share of every part, and the first writes the file."""
    with _shared(estimator):
        estimator.predict_to(*asked, **settings)


def evaluate(estimator: Estimator, *asked: Any, **settings: Any) -> dict[str, float]:
    """`Estimator.evaluate` by all ranks: each computes its share of the cells, and all have the scores."""
    with _shared(estimator):
        return estimator.evaluate(*asked, **settings)


def _is_alone() -> bool:
    return not dist.is_torchelastic_launched() or os.environ["WORLD_SIZE"] == "1"


@contextmanager
def _shared(estimator: Any, traffic: "Traffic | None" = None) -> Iterator[Exchange]:
    """Let an estimator know the other ranks within a block, if there are any."""
    if _is_alone():
        yield ALONE
        return
    _join()
    exchange, shown = RankExchange(dist.get_world_size(), traffic or Traffic()), estimator.progress
    with warnings.catch_warnings():
        if exchange.rank:
            # One of them speaks for all.
            estimator.progress = False
            warnings.simplefilter("ignore", UserWarning)
        estimator._exchange = exchange
        try:
            yield exchange
        finally:
            estimator.progress = shown
            estimator.__dict__.pop("_exchange", None)


def _check(estimator: Estimator, settings: dict[str, Any]) -> None:
    """Refuse what one process must have all outputs for."""
    if not isinstance(estimator, TLVMOGP):
        raise SettingError(f"{type(estimator).__name__} is fitted by one process: use TLVMOGP, or leave torchrun out.")
    if settings.get("output_coordinates") is not None:
        raise SettingError(
            "output_coordinates need latent vectors of all outputs in every process: leave them or torchrun out."
        )


def _join() -> None:
    """Meet the other ranks, unless that has been done."""
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with _one_sentence():
            dist.init_process_group(backend, timeout=_PATIENCE)
        atexit.register(dist.destroy_process_group)


@dataclass
class Traffic:
    """What a rank has sent so far: numbers of exchanges and of bytes, in steps and between them."""

    steps: int = 0
    exchanges: int = 0
    num_bytes: int = 0
    row_bytes: int = 0


@dataclass
class _Requests:
    """Signals that asked this rank to end, and whether all ranks know of one."""

    came: list[int] = field(default_factory=list)
    are_known: bool = False


@dataclass(frozen=True)
class RankExchange(Exchange):
    """An exchange with the other ranks of torch's process group.

    Attributes
    ----------
    traffic
        What was sent.
    """

    traffic: Traffic = field(default_factory=Traffic)
    _requests: _Requests = field(default_factory=_Requests)

    def __post_init__(self) -> None:
        if self.shards < self.size:
            raise SettingError(
                f"This fit was begun by {self.shards} ranks, and cannot go on with {self.size}: use {self.shards} or "
                "fewer."
            )

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    @property
    def is_stopping(self) -> bool:
        return self._requests.are_known

    def journal(self, make: Callable[..., Journal], *given: Any) -> Journal:
        """The journal of the first rank, which keeps it for all."""
        made = self.common(lambda: make(*given), lambda journal: journal.is_active, lambda is_active: Journal())
        return _SharedJournal(made, self)

    def common(
        self,
        make: Callable[[], Made],
        pack: Callable[[Made], Any] | None = None,
        unpack: Callable[[Any], Made] | None = None,
    ) -> Made:
        told: list[Any] = [None, None]
        if self.rank == 0:
            try:
                made = make()
                told[0] = made if pack is None else pack(made)
            except Exception as error:
                told[1] = error
        with _one_sentence():
            dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise told[1]
        if self.rank == 0:
            return made
        return told[0] if unpack is None else unpack(told[0])

    def total(self, numbers: np.ndarray) -> np.ndarray:
        self._reduce(torch.from_numpy(numbers), dist.ReduceOp.SUM)
        return numbers

    def lead(self, work: Callable[[Given], Made], write: Callable[[Callable[[Given], Made]], None]) -> None:
        if self.rank:
            while (told := self.common(lambda: cast("tuple[Given] | None", None))) is not None:
                work(*told)
            return
        is_busy = False

        def led(given: Given) -> Made:
            nonlocal is_busy
            self.common(lambda: (given,))
            is_busy = True
            made = work(given)
            is_busy = False
            return made

        try:
            write(led)
        except Exception as error:
            if not is_busy:
                # The others wait for what comes next.
                self.common(partial(_raised, error))
            raise
        self.common(lambda: None)

    def mean(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(total / self.size for total in self._totals(tensors))

    def largest(self, value: Tensor) -> Tensor:
        number = value.to(torch.float64)
        self._reduce(number, dist.ReduceOp.MAX)
        return number.to(value.dtype)

    @torch.no_grad()
    def add_gradients(self, parameters: Iterable[nn.Parameter], told: Tensor) -> Tensor:
        learned = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in learned]
        is_asked = told.new_full((1,), float(bool(self._requests.came)))
        *totals, told, is_asked = self._totals([*gradients, told, is_asked])
        for parameter, total in zip(learned, totals, strict=True):
            parameter.grad = total
        self._requests.are_known = bool(is_asked)
        self.traffic.steps += 1
        return told

    @torch.no_grad()
    def add_rows(self, rows: Iterable[nn.Parameter]) -> None:
        rows = list(rows)
        touched = [cast("Tensor", row.grad).coalesce() for row in rows]
        own = [(gradient.indices().cpu(), gradient.values().cpu()) for gradient in touched]
        parts: list[Any] = [None] * self.size
        with _one_sentence():
            dist.all_gather_object(parts, own)
        for row, *told in zip(rows, *parts, strict=True):
            where, values = torch.cat([at for at, _ in told], 1), torch.cat([value for _, value in told])
            total = torch.sparse_coo_tensor(where, values, row.shape, check_invariants=False)
            row.grad = total.to(row.device).coalesce()
        self.traffic.exchanges += 1
        self.traffic.num_bytes += sum(part.nbytes for pair in own for part in pair)

    @torch.no_grad()
    def fill_rows(self, tensors: Iterable[Tensor]) -> None:
        for rows in tensors:
            owner = torch.arange(len(rows), device=rows.device) % self.shards % self.size
            is_mine = (owner == self.rank).view(-1, *[1] * (rows.dim() - 1))
            total = torch.where(is_mine, rows, 0.0)
            with _one_sentence():
                dist.all_reduce(total)
            self.traffic.row_bytes += total.nbytes
            rows.copy_(total)

    def listening(self) -> AbstractContextManager[None]:
        return noted(self._requests.came)

    def _totals(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over all ranks, in one buffer."""
        flat = torch.cat([tensor.detach().reshape(-1).to(torch.float64) for tensor in tensors])
        self._reduce(flat, dist.ReduceOp.SUM)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    def _reduce(self, numbers: Tensor, operation: Any) -> None:
        with _one_sentence():
            dist.all_reduce(numbers, operation)
        self.traffic.exchanges += 1
        self.traffic.num_bytes += numbers.nbytes


class _SharedJournal(Journal):
    """The journal of the first rank, to which the others listen."""

    def __init__(self, own: Journal, exchange: RankExchange):
        self._own, self._exchange = own, exchange
        self.is_active, self.start = exchange.common(lambda: own.is_active), own.start

    def seed(self, seed: int) -> int:
        return self._own.seed(seed)

    def shards(self, shards: int) -> int:
        return self._exchange.common(lambda: self._own.shards(shards))

    def keep_start(self, start: State) -> None:
        self._own.keep_start(start)

    @property
    def is_due(self) -> bool:
        return self.is_active and self._exchange.common(lambda: self._own.is_due)

    @property
    def seconds_left(self) -> float:
        # Ranks end together, by the clock of the first.
        if math.isinf(self.deadline):
            return math.inf
        return self._exchange.common(lambda: self.deadline - time.perf_counter())

    def begin(self) -> State | None:
        return self._exchange.common(self._own.begin) if self.is_active else None

    def note(self, state: State) -> None:
        self._own.note(state)

    def flush(self) -> None:
        self._own.flush()


def _raised(error: Exception) -> None:
    raise error


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Say what it means when an exchange fails."""
    try:
        yield
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise RankError(
            f"Another rank is gone or does not answer ({reason}): start the job again, which goes on where it was if "
            "it has a checkpoint."
        ) from error
