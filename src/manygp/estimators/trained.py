"""Estimators whose model is trained on minibatches by the one training loop."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import gpytorch
import numpy as np
import torch
from torch import nn

from manygp.data import CellPlan, Cells, GridPlan, Plan, Scaling, ShardPlan, Table
from manygp.errors import SettingError
from manygp.estimators.checkpoint import recalled_start, told_start
from manygp.estimators.estimator import Estimator
from manygp.estimators.noise import hold_noise
from manygp.estimators.preset import FAST, PUBLISHED, QUICK, Preset
from manygp.estimators.settings import (
    check_choice,
    check_inducing,
    check_kernel,
    check_likelihood,
    check_positive,
    check_size,
    resolve_device,
    resolve_dtype,
    resolve_seed,
)
from manygp.estimators.standardize import check_scaled
from manygp.initialise import Survey
from manygp.initialise.likelihood import likelihood_for
from manygp.initialise.pseudo_values import check_support
from manygp.likelihoods import Gaussian, Likelihood
from manygp.training import History, Schedule, TrainingSettings, make_progress, train
from manygp.training.progress import stage

PRESETS = ("fast", "quick", "paper")
# What numpy draws from.
Rng: TypeAlias = np.random.Generator
# An untrained model at its start, and the scaling of its table.
Start = tuple[Any, Scaling]
# Observed cells that an automatic batch aims at: enough for efficient products, few enough for many steps.
_BATCH_CELLS = 4096
# Multiplications that an automatic run may take: so many for each observed cell, but not fewer and not more than this
# (about a minute and ten minutes on two cores); and its epochs.
_WORK_PER_CELL, _LEAST_WORK, _MOST_WORK = 1.5e7, 1.2e12, 1e13
_MIN_EPOCHS, _MAX_EPOCHS = 10, 600
# The same for the expected log density of a cell that is not Gaussian, beside what the model does.
_WORK_PER_DENSITY = 5e4


@contextmanager
def undone_by_interrupts(model: nn.Module, history: History) -> Iterator[None]:
    """What follows training: Ctrl-C leaves the model as training has left it."""
    trained = copy.deepcopy(model.state_dict())
    try:
        yield
    except KeyboardInterrupt:
        model.load_state_dict(trained)
        history.stop_reason = "interrupted"


class Clock:
    """How long the stages of a fit take."""

    def __init__(self) -> None:
        self._started = self._begun = time.perf_counter()

    def begun(self) -> None:
        """The model is at its start."""
        self._begun = time.perf_counter()

    def tell(self, history: History, survey: Survey | None, recalled: dict[str, str] | None = None) -> None:
        """Write down what a finished fit took, and what the survey found, or is recalled to have found."""
        surveyed = 0.0 if survey is None else survey.seconds
        corrected = sum(correction.seconds for correction in history.corrections)
        history.survey = recalled or {} if survey is None else survey.report()
        history.stages = {
            "survey": surveyed,
            "start": self._begun - self._started - surveyed,
            "training": time.perf_counter() - self._begun - corrected,
            "corrections": corrected,
        }


@dataclass(repr=False, eq=False, kw_only=True)
class TrainedEstimator(Estimator):
    """An estimator whose model has a bound on minibatches.

    A leaf defines `_begin_at_data` and `_begin_at_prior`, which make a model and a scaling from a table, and says with
    `_check_settings` what is wrong with its settings. Those below are shared by all leaves, which are dataclasses too;
    `TLVMOGP` tells what they mean.
    """

    kernel: str | gpytorch.kernels.Kernel = "rbf"
    likelihood: str | nn.Module = "gaussian"
    epochs: int | str = "auto"
    batch_inputs: int | str | None = "auto"
    batch_outputs: int | str | None = "auto"
    learning_rate: float | str = "auto"
    standardize: bool | str = True
    preset: str = "fast"
    dtype: str = "float64"
    device: str = "auto"
    random_state: Any = 0
    progress: bool | str = "auto"
    freeze_likelihood: float | str = "auto"
    max_grad_norm: float | None = None

    # The published procedure.
    _published = PUBLISHED
    # What `standardize` and, beside likelihoods, `likelihood` may be.
    _scalings: ClassVar[tuple[Any, ...]] = (True, False, "output", "global", "completed")
    _automatic_likelihoods: ClassVar[tuple[str, ...]] = ()

    @property
    def _preset(self) -> Preset:
        return {"fast": FAST, "quick": QUICK}.get(self.preset, self._published)

    def _begin(self, table: Table, rng: np.random.Generator, generator: torch.Generator) -> Start:
        """A model at its start, and the scaling of the table; numpy and torch draw from these two alone.

        Whatever the noise is here, one that the user has fixed is put in its place afterwards.
        """
        check_inducing(getattr(self, "num_inducing", None), *self._places(table))
        likelihood = likelihood_for(self.likelihood, table, rng)
        self._check_likelihood(likelihood, table)
        begin = self._begin_at_data if self._preset.from_data else self._begin_at_prior
        return begin(table, likelihood, rng, generator)

    def _places(self, table: Table) -> tuple[int, str]:
        """How many places there are for inducing points, and what they are."""
        return table.num_inputs, "inputs"

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        """A model and scaling with all that is not given chosen from the data."""
        raise NotImplementedError

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        """A model and scaling after the published procedure."""
        raise SettingError(f"preset={self.preset!r} is unknown to {type(self).__name__}: nothing was published.")

    def _untrained(self, table: Table, generator: torch.Generator | None = None, **sizes: Any) -> Any:
        """An untrained model for a table; what sizes do not tell is as the settings have it."""
        own = {"num_features": table.num_features, "num_outputs": table.num_outputs}
        return self._build(own | sizes, generator)

    def _check_likelihood(self, likelihood: Likelihood, table: Table) -> None:
        """Refuse values that the likelihood cannot have, and settings that do not go with it."""
        if not likelihood.is_affine:
            check_support(likelihood, table)
        if table.exposure is not None:
            self._check_exposure(likelihood)
        check_scaled(self.standardize, likelihood)

    def _check_settings(self) -> None:
        check_kernel("kernel", self.kernel)
        check_likelihood(self.likelihood, self._automatic_likelihoods)
        check_choice("standardize", self.standardize, self._scalings)
        check_size("epochs", self.epochs, automatic=("auto",))
        check_size("batch_inputs", self.batch_inputs, automatic=("auto", None))
        check_size("batch_outputs", self.batch_outputs, automatic=("auto", None))
        check_positive("learning_rate", self.learning_rate, automatic=("auto",))
        check_size("num_samples", self.num_samples, automatic=("auto",))
        check_choice("preset", self.preset, PRESETS)
        check_choice("progress", self.progress, (True, False, "auto"))
        check_positive("max_grad_norm", self.max_grad_norm, optional=True)
        frozen = self.freeze_likelihood
        is_number = isinstance(frozen, int | float) and not isinstance(frozen, bool) and frozen >= 0
        if not is_number and not (isinstance(frozen, str) and frozen == "auto"):
            raise SettingError(
                f"freeze_likelihood={frozen!r} is out of range: use a number of epochs of at least 0, or 'auto'."
            )

    def _fit_table(self, table: Table) -> None:
        self._check_settings()
        table = table.compact()
        seed = self._exchange.common(lambda: self._journal.seed(resolve_seed(self.random_state)))
        dtype, device = resolve_dtype(self.dtype), resolve_device(self.device)
        clock = Clock()
        # One process makes the start for all.
        model, scaling = self._exchange.common(
            lambda: self._own_start(table, seed),
            lambda start: told_start(self, *start, {}),
            lambda told: recalled_start(self, told),
        )
        model.to(device)
        clock.begun()
        history = self._train(model, table, scaling, dtype, device, seed)
        # The survey of a checkpoint is not made again.
        recalled = {} if self._journal.start is None else self._journal.start["survey"]
        clock.tell(history, self.__dict__.pop("_last_survey", None), recalled)
        self.model_, self.scaling_, self.history_, self._seed = model, scaling, history, seed

    def _own_start(self, table: Table, seed: int) -> Start:
        """A model at its start and the scaling: those of a checkpoint, or made from the table."""
        journal = self._journal
        if journal.start is not None:
            return recalled_start(self, journal.start)
        rng = np.random.default_rng(seed)
        with stage(self.progress, "looking at the table"):
            model, scaling = self._begin(table.in_memory(rng), rng, torch.Generator().manual_seed(seed))
        if table.is_stored and not model.likelihood.is_affine:
            # So far only a part of it was looked at.
            check_support(model.likelihood, table)
        hold_noise(model.likelihood, self.likelihood, scaling)
        if journal.is_active:
            survey: Survey | None = getattr(self, "_last_survey", None)
            journal.keep_start(told_start(self, model, scaling, {} if survey is None else survey.report()))
        return model, scaling

    def _look_at(self, *given: Any, **more: Any) -> Survey:
        """The survey of a table, which the history will tell of."""
        self._last_survey = Survey(*given, **more)
        return self._last_survey

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        """Train a model that is at its start; a leaf that knows a shorter way takes it."""
        plan = self._plan(table, scaling)
        return self._run(model, plan, self._schedule(plan, model), dtype, device, seed)

    def _run(
        self,
        model: Any,
        plan: Plan,
        schedule: Schedule,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        before_epoch: Callable[[int], None] | None = None,
    ) -> History:
        return train(
            model,
            plan,
            schedule,
            self._training_settings(schedule.end),
            dtype=dtype,
            device=device,
            seed=seed,
            progress=make_progress(self.progress),
            before_epoch=before_epoch,
            journal=self._journal,
            exchange=self._exchange,
        )

    def _plan(self, table: Table, scaling: Scaling) -> Plan:
        exchange = self._exchange
        if exchange.shards == 1:
            return self._shard_plan(table, scaling, 0)
        return ShardPlan(lambda number: self._shard_plan(table, scaling, number), exchange.own_shards, exchange.size)

    def _shard_plan(self, table: Table, scaling: Scaling, number: int) -> Plan:
        """Batches of the outputs of a shard, as large as those of a table of one shard."""
        shard = number, self._exchange.shards
        if isinstance(table, Cells):
            return CellPlan(table, scaling, _BATCH_CELLS, shard)
        n, p = table.num_inputs, -(-table.num_outputs // shard[1])
        # Cells of the grid, gaps included, that hold as many observations as a batch should.
        budget = max(1, round(_BATCH_CELLS * n * table.num_outputs / table.num_observed))
        outputs: Any = min(p, max(32, budget // n)) if self.batch_outputs == "auto" else self.batch_outputs
        inputs: Any = max(1, budget // (outputs or p)) if self.batch_inputs == "auto" else self.batch_inputs
        return GridPlan(table, scaling, inputs, outputs, shard)

    def _work(self, model: Any, cells: float) -> float:
        """About how many multiplications a step on so many cells takes; a leaf that knows better tells."""
        return 2e8

    def _budget(self, model: Any, cells: int) -> float:
        """About how many multiplications an automatic run on a table of so many cells may take."""
        return min(max(_WORK_PER_CELL * cells, _LEAST_WORK), _MOST_WORK)

    def _schedule(self, plan: Plan, model: Any) -> Schedule:
        cells = plan.table.num_observed
        work = self._work(model, cells / len(plan)) * len(plan)
        if not isinstance(model.likelihood, Gaussian):
            work += _WORK_PER_DENSITY * cells
        most = int(self._budget(model, cells) / work)
        return Schedule(
            steps_per_epoch=len(plan),
            learning_rate=given(self.learning_rate, self._preset.learning_rate),
            epochs=given(self.epochs, self._preset.epochs),
            max_epochs=min(max(most, _MIN_EPOCHS), self._most_epochs(model, len(plan))),
        )

    def _most_epochs(self, model: Any, steps: int) -> int:
        """Epochs of so many steps that an automatic run may take; a leaf that knows better tells."""
        return _MAX_EPOCHS

    @property
    def _advice(self) -> str:
        """What makes a step take less memory."""
        sizes = "batch_inputs", "batch_outputs", "num_inducing", "num_inducing_inputs", "num_inducing_latents"
        return f"choose smaller {' or '.join(name for name in sizes if hasattr(self, name))}"

    def _training_settings(self, epochs: int) -> TrainingSettings:
        natural = self._preset.natural
        return TrainingSettings(
            natural=natural,
            schedule=natural,
            sparse_rows=natural,
            frozen_epochs=given(self.freeze_likelihood, int(self._preset.frozen_share * epochs)),
            max_grad_norm=self.max_grad_norm,
            advice=self._advice,
        )


def given(setting: Any, otherwise: Any) -> Any:
    """A setting, or something else where it is "auto"."""
    return otherwise if isinstance(setting, str) and setting == "auto" else setting
