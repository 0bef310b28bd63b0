"""The training loop."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress

import numpy as np
import torch
from torch import Tensor

from manygp.data import Batch, Plan
from manygp.errors import NumericalError
from manygp.exchange import ALONE, Exchange
from manygp.memory import foreseen
from manygp.training.history import EpochRecord, History
from manygp.training.journal import Journal, State, copied, recalled_history, told_history
from manygp.training.progress import Progress
from manygp.training.schedule import Schedule
from manygp.training.step import Trainable, TrainingSettings, make_optimizers, take_step
from manygp.variational import CellBatch

# A run remembers where it is every so many steps, more where there are more numbers to copy.
_LOOK_STEPS, _NUMBERS_PER_STEP = 50, 200_000
# How often it goes back there when numbers are no longer finite, and what the learning rate is multiplied by each time.
_RETREATS, _SMALLER = 2, 0.3
# What makes a step on groups of cells take less memory.
_GROUP_ADVICE = "choose smaller num_neighbors or num_inducing"
_COUNTS = ("step", "taken", "retreats", "is_open")


def train(
    model: Trainable,
    plan: Plan,
    schedule: Schedule,
    settings: TrainingSettings,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    progress: Progress,
    before_epoch: Callable[[int], None] | None = None,
    journal: Journal | None = None,
    exchange: Exchange = ALONE,
) -> History:
    """Maximise the bound of a model over the batches of a plan.

    Ctrl-C ends the run early and keeps what was learnt; so does the deadline of the journal, before which step sizes
    fall as they do at the end of any run. `before_epoch` is called with the number of epochs done. Where
    numbers are no longer finite, the run goes back to its last good state and takes smaller steps, twice at most. A run
    that its journal has seen before goes on where it was, and ends as if it had never stopped. Where processes have a
    plan for some of the outputs each, every step leads all of them to the same place, and an interrupt of one ends all.

    Raises
    ------
    NumericalError
        If numbers are no longer finite for the third time.
    """
    run = _Run(model, plan, schedule, settings, dtype, device, seed, before_epoch, journal or Journal(), exchange)
    model.train(True)
    with progress:
        try:
            run.resume()
            while not schedule.is_over:
                if run.epoch():
                    bound = run.history.records[-1].bound / plan.table.num_observed
                    progress.update(len(run.history), schedule.expected_end, bound)
            run.history.stop_reason = schedule.stop_reason
            run.end()
        except (KeyboardInterrupt, _TimeIsUp) as reason:
            run.history.stop_reason = "time limit" if isinstance(reason, _TimeIsUp) else "interrupted"
            run.journal.flush()
    for parameter in run.learned:
        parameter.requires_grad_(True)
    model.train(False)
    return run.history


class _TimeIsUp(Exception):
    """There is no time to finish the epoch."""


class _Run:
    """A run of the loop, as far as it has come."""

    def __init__(
        self,
        model: Trainable,
        plan: Plan,
        schedule: Schedule,
        settings: TrainingSettings,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        before_epoch: Callable[[int], None] | None,
        journal: Journal,
        exchange: Exchange,
    ):
        self.model, self.plan, self.schedule, self.settings = model, plan, schedule, settings
        self.dtype, self.device, self.before_epoch, self.journal = dtype, device, before_epoch, journal
        self.exchange, self.rng = exchange, np.random.default_rng(seed)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.optimizers = make_optimizers(model, settings)
        # What somebody has fixed for good stays so.
        self.learned = [parameter for parameter in model.likelihood.parameters() if parameter.requires_grad]
        self.history, self.step, self.retreats = History(), 0, 0
        # Of the epoch at hand: where its order began, batches and seconds so far, and sums over these batches.
        self.order, self.taken, self.seconds = self.rng.bit_generator.state, 0, 0.0
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)
        self.is_open, self.good = False, State()
        # Parameters after the last step, while somebody looks at every one of them.
        self.watched: dict[str, Tensor] | None = None
        numbers = sum(parameter.numel() for parameter in model.parameters())
        self.interval = max(_LOOK_STEPS, numbers // _NUMBERS_PER_STEP)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def epoch(self) -> bool:
        """Take the steps of an epoch that are still to come; tells whether it came to its end."""
        try:
            self._finish_epoch()
        except NumericalError as error:
            self._go_back(error)
            return False
        return True

    def _finish_epoch(self) -> None:
        if not self.is_open:
            self._open()
        frozen = len(self.history) < self.settings.frozen_epochs
        for parameter in self.learned:
            parameter.requires_grad_(not frozen)
        started = time.perf_counter() - self.seconds
        for batch in self._batches():
            self.seconds = time.perf_counter() - started
            if self.journal.seconds_left <= 0.0:
                self.exchange.fill_rows(self._rows())
                raise _TimeIsUp
            self._look()
            self._take(batch)
        bound, expected_log_lik, kl_u, kl_h = (self.sums / len(self.plan)).tolist()
        self._check(bound)
        rates, seconds = self._rates(self.step - 1), time.perf_counter() - started
        record = EpochRecord(len(self.history) + 1, bound, expected_log_lik, kl_u, kl_h, *rates, seconds)
        self.history.records.append(record)
        self.schedule.record(record.bound / self.plan.table.num_observed)
        left = self.journal.seconds_left
        self.schedule.hurry(self.exchange.common(lambda: left / max(seconds, 1e-9)))
        self.is_open = False

    def _open(self) -> None:
        if self.before_epoch is not None:
            self.before_epoch(len(self.history))
        self.order, self.taken, self.seconds, self.is_open = self.rng.bit_generator.state, 0, 0.0, True
        self.sums = torch.zeros_like(self.sums)

    def _batches(self) -> Iterator[Batch]:
        """The batches of the epoch at hand that are still to come."""
        self.rng.bit_generator.state = self.order
        return itertools.islice(self.plan.epoch(self.rng), self.taken, None)

    def _take(self, batch: Batch) -> None:
        cells = CellBatch.from_arrays(batch, self.dtype, self.device, self.exchange)
        rates, num_observed = self._rates(self.step), self.plan.table.num_observed
        what = f"A step of training on {len(cells.y):,} cells"
        advice = self.settings.advice if cells.groups is None else _GROUP_ADVICE
        with nullcontext() if self.step else foreseen(what, advice, self.device):
            told = take_step(self.model, cells, self.generator, self.optimizers, rates, self.settings, num_observed)
        self.sums += told
        self.step, self.taken = self.step + 1, self.taken + 1
        if self.watched is not None:
            self._check(float(self.sums[0]))
            self.watched = copied(dict(self.model.named_parameters()))
        if self.exchange.is_stopping:
            self._note()
            raise KeyboardInterrupt

    def _rates(self, step: int) -> tuple[float, float]:
        return self.schedule.rates(step) if self.settings.schedule else (self.schedule.learning_rate, 0.0)

    # -- states --------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Go on where the journal has seen this run, if it has."""
        state = self.journal.begin()
        if state is not None:
            self._recall(state)

    def end(self) -> None:
        """Tell the journal that the run is over."""
        self._note()
        self.journal.flush()

    def _note(self) -> None:
        """Let every process have all rows, and the journal know where the run is."""
        self.exchange.fill_rows(self._rows())
        if self.journal.is_active:
            self.journal.note(self._state())

    def _rows(self) -> Iterator[Tensor]:
        """Everything with a row for each output: parameters, and what optimisers know of them."""
        for parameter in self.model.row_parameters():
            yield parameter
            for optimizer in self.optimizers:
                known = optimizer.state.get(parameter, {}).values()
                yield from (part for part in known if isinstance(part, Tensor) and part.shape == parameter.shape)

    def _state(self) -> State:
        """All that the rest of the run depends on."""
        return {
            "model": copied(self.model.state_dict()),
            "optimizers": [copied(optimizer.state_dict()) for optimizer in self.optimizers],
            "schedule": copied(vars(self.schedule)),
            "history": told_history(self.history),
            "generator": self.generator.get_state(),
            "rng": self.rng.bit_generator.state,
            "plan": self.plan.state() if self.is_open or self.step else {},
            "order": self.order,
            "sums": self.sums.clone(),
            "seconds": self.seconds,
            **{name: getattr(self, name) for name in _COUNTS},
        }

    def _recall(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(copied(own))
        vars(self.schedule).update(copied(state["schedule"]))
        self.history = recalled_history(state["history"])
        self.generator.set_state(state["generator"].cpu())
        self.rng.bit_generator.state = state["rng"]
        if state["plan"]:
            self.plan.restore(state["plan"])
        self.order, self.sums, self.seconds = state["order"], state["sums"].to(self.device, copy=True), state["seconds"]
        for name in _COUNTS:
            setattr(self, name, state[name])

    # -- numbers that are none -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Now and then, remember where the run is, if all is well."""
        if self.step % self.interval:
            return
        self._check(float(self.sums[0]))
        is_due = self.journal.is_due
        if is_due:
            self.exchange.fill_rows(self._rows())
        self.good = self._state()
        # What is not due is written at an interrupt, unless rows of it are elsewhere.
        if is_due or self.exchange.size == 1:
            self.journal.note(self.good)

    def _check(self, bound: float) -> None:
        """Refuse a bound, or parameters, that are not finite."""
        are_lost = ~torch.stack([parameter.isfinite().all() for parameter in self.model.parameters()]).all()
        if not np.isfinite(bound) or bool(self.exchange.largest(are_lost)):
            shown = bound if not np.isfinite(bound) else np.nan
            raise NumericalError(
                f"The bound became {shown} in epoch {len(self.history) + 1}: lower learning_rate, use dtype='float64', "
                "or check the data for extreme values."
            )

    def _go_back(self, error: NumericalError) -> None:
        """Begin again at the last good state with smaller steps, unless that has been tried."""
        retreats = self.retreats + 1
        if not self.good or retreats > _RETREATS:
            name = self._culprit() if self.good else None
            told = "" if name is None else f" What went wrong first is {name}."
            raise NumericalError(f"{error}{told}") from error
        epoch = len(self.history) + 1
        self._recall(self.good)
        self.retreats, self.schedule.learning_rate = retreats, _SMALLER * self.schedule.learning_rate
        warnings.warn(
            f"Numbers were no longer finite in epoch {epoch}: training goes back to step {self.step} with a learning "
            f"rate of {self.schedule.learning_rate:.2g}.",
            UserWarning,
            stacklevel=3,
        )

    def _culprit(self) -> str | None:
        """Name of the parameter that went wrong, found by taking the steps since the last good state once more."""
        self._recall(self.good)
        good = self.watched = copied(dict(self.model.named_parameters()))
        with suppress(NumericalError):
            while not self.schedule.is_over:
                self._finish_epoch()
        if bool(self.sums.isfinite().all()):
            for name, value in self.model.named_parameters():
                if not bool(value.isfinite().all()):
                    return name
        # All were finite, and led to where nothing can be computed: one of them has moved farthest.
        moves = {
            name: float(((value - good[name]).abs() / (1.0 + good[name].abs())).max())
            for name, value in self.watched.items()
            if value.numel()
        }
        farthest = max(moves, key=lambda name: moves[name], default=None)
        return farthest if farthest is not None and moves[farthest] > 0.0 else None


@torch.no_grad()
def settle(
    model: Trainable,
    plan: Plan,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
    exchange: Exchange = ALONE,
) -> float:
    """Move q(u) to its optimum for all cells, with everything else as it is; returns the bound per cell.

    Natural steps of rates 1, 1/2, 1/3, … average what the batches of an epoch ask for. With Gaussian noise that is the
    optimum itself, whatever q(u) was before, but for the draws of latent vectors.
    """
    generator, bound = torch.Generator(device=device), torch.zeros((), dtype=torch.float64, device=device)
    for is_step in (True, False):
        generator.manual_seed(seed)
        for i, batch in enumerate(plan.epoch(np.random.default_rng(seed))):
            cells = CellBatch.from_arrays(batch, dtype, device, exchange)
            if is_step:
                model.natural_elbo(cells, generator, 1.0 / (i + 1))
            else:
                bound += model.elbo(cells, generator).bound
    (bound,) = exchange.mean(bound)
    return float(bound) / len(plan) / plan.table.num_observed
