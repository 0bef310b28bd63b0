"""The training loop."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from manygp.data import Plan
from manygp.errors import NumericalError
from manygp.likelihoods import Likelihood
from manygp.training.history import EpochRecord, History
from manygp.training.progress import Progress
from manygp.training.schedule import Schedule
from manygp.variational import CellBatch, ElboTerms

__all__ = ["Trainable", "TrainingSettings", "settle", "train"]


class Trainable(Protocol):
    """What the loop needs of a model."""

    likelihood: Likelihood

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound."""

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """A natural step on q(u), then the estimate at the new q(u)."""

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with one row per output."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters."""

    def train(self, mode: bool = True) -> object:
        """Switch training mode."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train.

    Parameters
    ----------
    natural
        Whether q(u) moves by natural steps; otherwise everything moves by Adam.
    schedule
        Whether step sizes follow the schedule; otherwise the learning rate is constant.
    sparse_rows
        Whether parameters with one row per output have sparse gradients.
    frozen_epochs
        Number of epochs for which the likelihood's parameters stay where they are.
    max_grad_norm
        Largest norm of the gradient; None does not clip.
    """

    natural: bool = True
    schedule: bool = True
    sparse_rows: bool = True
    frozen_epochs: float = 0.0
    max_grad_norm: float | None = None


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
) -> History:
    """Maximise the bound of a model over the batches of a plan.

    Ctrl-C ends the run early and keeps what was learnt. `before_epoch` is called with the number of epochs done.

    Raises
    ------
    NumericalError
        If the bound is no longer finite.
    """
    rng = np.random.default_rng(seed)
    generator = torch.Generator(device=device).manual_seed(seed)
    optimizers = _optimizers(model, settings)
    history, step = History(), 0
    # What somebody has fixed for good stays so.
    learned = [parameter for parameter in model.likelihood.parameters() if parameter.requires_grad]
    model.train(True)
    with progress:
        try:
            while not schedule.is_over:
                if before_epoch is not None:
                    before_epoch(len(history))
                frozen = len(history) < settings.frozen_epochs
                for parameter in learned:
                    parameter.requires_grad_(not frozen)
                started, sums = time.perf_counter(), torch.zeros(4, dtype=torch.float64, device=device)
                for batch in plan.epoch(rng):
                    rates = schedule.rates(step) if settings.schedule else (schedule.learning_rate, 0.0)
                    cells = CellBatch.from_arrays(batch, dtype, device)
                    sums += _step(model, cells, generator, optimizers, rates, settings, plan.table.num_observed)
                    step += 1
                record = _record(len(history) + 1, sums / len(plan), rates, time.perf_counter() - started)
                history.records.append(record)
                schedule.record(record.bound / plan.table.num_observed)
                progress.update(len(history), schedule.end, record.bound / plan.table.num_observed)
            history.stop_reason = schedule.stop_reason
        except KeyboardInterrupt:
            history.stop_reason = "interrupted"
    for parameter in learned:
        parameter.requires_grad_(True)
    model.train(False)
    return history


@torch.no_grad()
def settle(model: Trainable, plan: Plan, *, dtype: torch.dtype, device: torch.device, seed: int) -> float:
    """Move q(u) to its optimum for all cells, with everything else as it is; returns the bound per cell.

    Natural steps of rates 1, 1/2, 1/3, … average what the batches of an epoch ask for. With Gaussian noise that is the
    optimum itself, whatever q(u) was before, but for the draws of latent vectors.
    """
    generator, bound = torch.Generator(device=device), torch.zeros((), dtype=torch.float64, device=device)
    for is_step in (True, False):
        generator.manual_seed(seed)
        for i, batch in enumerate(plan.epoch(np.random.default_rng(seed))):
            cells = CellBatch.from_arrays(batch, dtype, device)
            if is_step:
                model.natural_elbo(cells, generator, 1.0 / (i + 1))
            else:
                bound += model.elbo(cells, generator).bound
    return float(bound) / len(plan) / plan.table.num_observed


def _step(
    model: Trainable,
    batch: CellBatch,
    generator: torch.Generator,
    optimizers: list[torch.optim.Optimizer],
    rates: tuple[float, float],
    settings: TrainingSettings,
    num_observed: int,
) -> Tensor:
    """One step on one batch; returns the bound and its terms."""
    learning_rate, natural_rate = rates
    if settings.natural:
        terms = model.natural_elbo(batch, generator, natural_rate)
    else:
        terms = model.elbo(batch, generator)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    # Per observed cell, so that a gradient norm means the same on every table.
    (-terms.bound / num_observed).backward()
    if settings.max_grad_norm is not None:
        _clip(_parameters(optimizers), settings.max_grad_norm)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    return torch.stack([terms.bound, terms.expected_log_lik, terms.kl_u, terms.kl_h]).detach()


def _optimizers(model: Trainable, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    rows = [parameter for parameter in model.row_parameters() if parameter.numel()]
    known = {id(parameter) for parameter in rows}
    rest = [parameter for parameter in model.parameters() if parameter.numel() and id(parameter) not in known]
    if not settings.sparse_rows:
        return [torch.optim.Adam(rest + rows)]
    # A model may have nothing but rows, or none; torch refuses an optimiser of nothing.
    shared: list[torch.optim.Optimizer] = [torch.optim.Adam(rest, fused=True)] if rest else []
    return [*shared, torch.optim.SparseAdam(rows)] if rows else shared


def _parameters(optimizers: list[torch.optim.Optimizer]) -> Iterable[Tensor]:
    return [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]


@torch.no_grad()
def _clip(parameters: Iterable[Tensor], max_norm: float) -> None:
    """Shrink all gradients together to a norm of at most `max_norm`; torch's own function refuses sparse ones."""
    parts = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            parts.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm = torch.stack([part.square().sum() for part in parts]).sum().sqrt()
    for part in parts:
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))


def _record(epoch: int, means: Tensor, rates: tuple[float, float], seconds: float) -> EpochRecord:
    bound, expected_log_lik, kl_u, kl_h = means.tolist()
    if not np.isfinite(bound):
        raise NumericalError(
            f"The bound became {bound} in epoch {epoch}: lower learning_rate, use dtype='float64', or check the data "
            "for extreme values."
        )
    return EpochRecord(epoch, bound, expected_log_lik, kl_u, kl_h, *rates, seconds)
