"""The terms of a variational bound, and the batch of cells that it is estimated from."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.data import Batch
from manygp.exchange import ALONE, Exchange
from manygp.variational.groups import Groups


@dataclass(frozen=True)
class CellBatch:
    """A `Batch` as tensors: cells (x, y) of some outputs, with the weights that make sums over them unbiased.

    `row` numbers the inputs of the table, for models that know them one by one; `groups` say which cells are
    conditioned on which, where the bound is one of groups; `noise` are known variances of the noise of cells. Where
    processes have a part of a batch each, `exchange` leads to the others, and draws of an output go by `key`.
    """

    x: Float[Tensor, "b d"]
    y: Float[Tensor, " b"]
    outputs: Int[Tensor, " p"]
    column: Int[Tensor, " b"]
    cell_weight: float
    output_weight: Float[Tensor, " p"]
    row: Int[Tensor, " b"]
    exposure: Float[Tensor, " b"] | None = None
    groups: Groups | None = None
    noise: Float[Tensor, " b"] | None = None
    key: int | None = None
    exchange: Exchange = ALONE

    @classmethod
    def from_arrays(
        cls, batch: Batch, dtype: torch.dtype, device: torch.device, exchange: Exchange = ALONE
    ) -> "CellBatch":
        """Move a batch of the table to where the model lives."""

        def move(array: object, kind: torch.dtype) -> Tensor:
            return torch.as_tensor(array).to(device=device, dtype=kind, non_blocking=True)

        groups = None
        if batch.members is not None:
            members = move(batch.members, torch.int64)
            groups = Groups(members.clamp(min=0), members >= 0, batch.num_given)
        return cls(
            x=move(batch.x, dtype),
            y=move(batch.y, dtype),
            outputs=move(batch.outputs, torch.int64),
            column=move(batch.column, torch.int64),
            cell_weight=batch.cell_weight,
            output_weight=move(batch.output_weight, torch.float64),
            exposure=None if batch.exposure is None else move(batch.exposure, dtype),
            row=move(batch.row, torch.int64),
            groups=groups,
            noise=None if batch.noise is None else move(batch.noise, torch.float64),
            key=batch.key,
            exchange=exchange,
        )

    def total(self, values: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Sum over cells, but for those that groups are merely conditioned on."""
        if self.groups is None:
            return values.sum()
        own = slice(self.groups.num_given, None)
        return (values[self.groups.index[:, own]] * self.groups.seen[:, own]).sum()


@dataclass(frozen=True)
class ElboTerms:
    """An unbiased estimate of the bound, term by term: bound = expected_log_lik − kl_u − kl_h."""

    expected_log_lik: Float[Tensor, ""]
    kl_u: Float[Tensor, ""]
    kl_h: Float[Tensor, ""]

    @property
    def bound(self) -> Float[Tensor, ""]:
        """The estimate of the bound itself."""
        return self.expected_log_lik - self.kl_u - self.kl_h
