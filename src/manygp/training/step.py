"""One step of training on one batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from manygp.exchange import Exchange
from manygp.likelihoods import Likelihood
from manygp.variational import CellBatch, ElboTerms


class Trainable(Protocol):
    """What the loop needs of a model."""

    likelihood: Likelihood

    def elbo(self, batch: CellBatch, generator: torch.Generator) -> ElboTerms:
        """An unbiased estimate of the bound."""

    def natural_elbo(self, batch: CellBatch, generator: torch.Generator, rate: float) -> ElboTerms:
        """A natural step on q(u), then the estimate at the new q(u)."""

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with one row per output."""

    def row_units(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Parameters among these whose steps are shares of units, and the units."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters with their names."""

    def state_dict(self) -> dict[str, Any]:
        """Parameters and all else that changes, by name."""

    def load_state_dict(self, state: Mapping[str, Any]) -> Any:
        """Take back what `state_dict` gave."""

    def train(self, mode: bool = True) -> object:
        """Switch training mode."""


@dataclass(frozen=True)
class TrainingSettings:
    """How to train."""

    #: Whether q(u) moves by natural steps; otherwise everything moves by Adam.
    natural: bool = True
    #: Whether step sizes follow the schedule; otherwise the learning rate is constant.
    schedule: bool = True
    #: Whether parameters with one row per output have sparse gradients.
    sparse_rows: bool = True
    #: Number of epochs for which the likelihood's parameters stay where they are.
    frozen_epochs: float = 0.0
    #: Largest norm of the gradient; None does not clip.
    max_grad_norm: float | None = None
    #: What makes a step take less memory, for whoever has not enough.
    advice: str = "choose smaller batches"


def take_step(
    model: Trainable,
    batch: CellBatch,
    generator: torch.Generator,
    optimizers: list[torch.optim.Optimizer],
    rates: tuple[float, float],
    settings: TrainingSettings,
    num_observed: int,
) -> Tensor:
    """One step on one batch; returns the bound and its terms."""
    (learning_rate, natural_rate), exchange = rates, batch.exchange
    if settings.natural:
        terms = model.natural_elbo(batch, generator, natural_rate)
    else:
        terms = model.elbo(batch, generator)
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    # Per observed cell, so that a gradient norm means the same on every table.
    (-terms.bound / (num_observed * exchange.size)).backward()
    told = torch.stack([terms.bound, terms.expected_log_lik, terms.kl_u, terms.kl_h]).detach() / exchange.size
    rows, shared = _by_kind(model)
    _count_steps(rows, settings.sparse_rows)
    told = exchange.add_gradients(shared, told)
    if batch.groups is not None:
        # Cells are conditioned on those of outputs anywhere, so all processes know all rows.
        exchange.add_rows([row for row in rows if row.grad is not None])
        rows, shared = [], rows + shared
    if settings.max_grad_norm is not None:
        _clip(rows, shared, settings.max_grad_norm, exchange)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    return told


def _count_steps(rows: list[nn.Parameter], sparse: bool) -> None:
    """Let rows of a batch without any cell have a gradient of nothing: optimisers count steps that have one."""
    for row in rows:
        if row.requires_grad and row.grad is None:
            none = row.new_zeros(0, *row.shape[1:])
            where = none.new_zeros(1, 0, dtype=torch.int64)
            empty = torch.sparse_coo_tensor(where, none, row.shape, check_invariants=False)
            row.grad = empty if sparse else torch.zeros_like(row)


def _by_kind(model: Trainable) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with a row for each output, and all others."""
    rows = [parameter for parameter in model.row_parameters() if parameter.numel()]
    known = {id(parameter) for parameter in rows}
    return rows, [parameter for parameter in model.parameters() if parameter.numel() and id(parameter) not in known]


def make_optimizers(model: Trainable, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Adam for what all outputs share, and for rows of outputs, by the rows that a batch has touched."""
    rows, rest = _by_kind(model)
    if not settings.sparse_rows:
        return [torch.optim.Adam(rest + rows)]
    # A model may have nothing but rows, or none; torch refuses an optimiser of nothing.
    shared: list[torch.optim.Optimizer] = [torch.optim.Adam(rest, fused=True)] if rest else []
    return [*shared, RowAdam(rows, dict(model.row_units()))] if rows else shared


class RowAdam(torch.optim.SparseAdam):
    """Adam for the rows that a batch has touched, some of whose steps are shares of units."""

    def __init__(self, rows: list[nn.Parameter], units: dict[nn.Parameter, Tensor]):
        super().__init__(rows)
        self._units = {row: unit for row, unit in units.items() if bool((unit != 1.0).any())}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step, and leave that share of it."""
        touched = dict[nn.Parameter, Tensor]()
        for row in self._units:
            if row.grad is not None:
                # Once for all: a device is waited for here.
                row.grad = row.grad.coalesce()
                touched[row] = row.grad.indices()[0]
        before = {row: row.index_select(0, which) for row, which in touched.items()}
        result = super().step(closure)
        for row, which in touched.items():
            made = row.index_select(0, which) - before[row]
            row.index_copy_(0, which, before[row] + self._units[row] * made)
        return result


@torch.no_grad()
def _clip(rows: list[nn.Parameter], shared: list[nn.Parameter], max_norm: float, exchange: Exchange) -> None:
    """Shrink all gradients together to a norm of at most `max_norm`; torch's own function refuses sparse ones."""
    own, common = _gradients(rows), _gradients(shared)
    zero = (own + common)[0].new_zeros(())
    # Every process has rows of its own.
    (mean,) = exchange.mean(sum((part.square().sum() for part in own), zero))
    norm = (exchange.size * mean + sum((part.square().sum() for part in common), zero)).sqrt()
    for part in (*own, *common):
        part.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Values of the gradients that there are, to be changed in place."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.values() if gradient.is_sparse else gradient for gradient in found]
