"""Exact GPs of many outputs at once: evidence, and predictions, by batched Cholesky factorisations.

Outputs that share a kernel and were observed at the same inputs share the factorisation.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.table import IntArray
from manygp.functions import Joint
from manygp.likelihoods import Gaussian
from manygp.linalg import safe_cholesky, triangular_inverse
from manygp.models.joint.independent import ExactJoint
from manygp.variational import KernelBatch
from manygp.variational.layout import distinct_inputs, pad_groups

# Numbers of covariance matrices that are worked on together: what fits into a cache.
_CHUNK_NUMBERS = 400_000


@dataclass(frozen=True)
class Columns:
    """Observed cells of every output, padded to the same length n."""

    #: Distinct inputs, shape (N, d).
    x: Float[Tensor, "N d"]
    #: Input of each observed cell, shape (p, n), anything in the padding.
    index: Int[Tensor, "p n"]
    #: Which entries are cells and which padding, shape (p, n); cells come first.
    seen: Bool[Tensor, "p n"]
    #: Their values, zero in the padding, shape (p, n).
    y: Float[Tensor, "p n"]
    #: A number for each output, the same for outputs that were observed at the same inputs, shape (p,).
    group: Int[Tensor, " p"]


def stack_columns(table: Table, scaling: Scaling) -> Columns:
    """The observed cells of a table by output, in scaled units."""
    if isinstance(table, Cells):
        order = np.argsort(table.output, kind="stable")
        row, output, y = order, table.output[order], table.y[order]
        group = np.arange(table.num_outputs)
    else:
        assert isinstance(table, Grid)
        parts = [_observed(table, chunk) for chunk in np.array_split(np.arange(table.num_outputs), _num_parts(table))]
        output, row, y = (np.concatenate(values) for values in zip(*(part[:3] for part in parts), strict=True))
        packed = np.concatenate([part[3] for part in parts])
        group = np.unique(packed, axis=0, return_inverse=True)[1].reshape(-1)
    padding = pad_groups(torch.as_tensor(output), table.num_outputs)
    seen = padding.pad(torch.ones(len(y), dtype=torch.float64)).bool()
    index = torch.zeros(seen.shape, dtype=torch.int64).view(-1).index_copy(0, padding.place, torch.as_tensor(row))
    return Columns(
        torch.as_tensor(scaling.scale_x(table.X)),
        index.view(seen.shape),
        seen,
        padding.pad(torch.as_tensor(scaling.scale_y(y, output))),
        torch.as_tensor(group),
    )


def _num_parts(table: Grid) -> int:
    return max(1, table.num_inputs * table.num_outputs // 1_000_000)


def _observed(table: Grid, outputs: IntArray) -> tuple[IntArray, IntArray, Any, Any]:
    """Output, row and value of the observed cells of some outputs, and their patterns as packed bits."""
    Y = table.block(np.arange(table.num_inputs), outputs).T
    seen = ~np.isnan(Y)
    output, row = np.nonzero(seen)
    return outputs[output], row, Y[output, row], np.packbits(seen, axis=1)


class ExactBatch(nn.Module):
    """f_p ~ GP(0, k_p) and y_np = f_p(x_n) + ε, ε ~ N(0, σ²_p): independent exact GPs, with one kernel or one each."""

    x: Tensor
    index: Tensor
    seen: Tensor
    y: Tensor
    group: Tensor

    def __init__(self, kernels: KernelBatch, likelihood: Gaussian, columns: Columns):
        super().__init__()
        self.kernels, self.likelihood = kernels, likelihood
        for name in ("x", "index", "seen", "y", "group"):
            self.register_buffer(name, None)
        self.tell(columns)

    def tell(self, columns: Columns) -> None:
        """Have these observations and no others."""
        self.x, self.index, self.seen, self.y = columns.x, columns.index, columns.seen, columns.y
        self.group = columns.group if self.is_shared else torch.arange(len(columns.group))

    @property
    def is_shared(self) -> bool:
        """Whether all outputs have the same kernel and noise."""
        return self.kernels.size == 1

    # -- parameters as rows of numbers ---------------------------------------------------------------------------

    def parameter_rows(self) -> Float[Tensor, "q k"]:
        """Free parameters of every kernel and, last, its noise if that is learned."""
        noise = [] if self.likelihood.is_fixed else [self.likelihood.raw_noise]
        parts = [*self.kernels.kernel.parameters(), *noise]
        return torch.cat([part.detach().reshape(self.kernels.size, -1) for part in parts], -1)

    @torch.no_grad()
    def set_parameter_rows(self, rows: Float[Tensor, "q k"]) -> None:
        """Set the parameters to what `parameter_rows` would return."""
        kernel, raw_noise = self._split(rows)
        for name, parameter in self.kernels.kernel.named_parameters():
            parameter.copy_(kernel[name])
        if raw_noise is not None:
            self.likelihood.raw_noise.copy_(raw_noise)

    def _split(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        kernel, start = {}, 0
        for name, parameter in self.kernels.kernel.named_parameters():
            size = parameter[0].numel()
            kernel[name] = rows[:, start : start + size].reshape(len(rows), *parameter.shape[1:])
            start += size
        return kernel, None if self.likelihood.is_fixed else rows[:, start]

    # -- evidence ------------------------------------------------------------------------------------------------

    def log_evidence(self, rows: Float[Tensor, "r k"], which: Int[Tensor, " r"]) -> Float[Tensor, " r"]:
        """log p(y_p) of the outputs `which` with parameters `rows`; the sum over all if the kernel is shared."""
        outputs = torch.arange(len(self.group), device=rows.device) if self.is_shared else which
        total = rows.new_zeros(len(rows))
        for members, valid in self._chunks(outputs):
            at = torch.zeros_like(members[:, 0]) if self.is_shared else torch.searchsorted(which, members[:, 0])
            K, Y = self._covariance(rows[at], members, valid)
            value = log_evidence(K, Y, valid.sum(-1))
            n = (self.seen[members[:, 0]].sum(-1) * valid.sum(-1)).to(value.dtype)
            total = total.index_add(0, at, value - 0.5 * math.log(2.0 * math.pi) * n)
        return total

    @torch.no_grad()
    def common_evidence(self, row: Float[Tensor, "1 k"]) -> Float[Tensor, " p"]:
        """log p(y_p) of every output with the same parameters for all.

        Outputs that were observed at the same inputs share a factorisation, whoever has the kernels.
        """
        pattern = torch.where(self.seen, self.index, -1)
        if self.likelihood.is_fixed:
            # A noise that is given is no parameter, and may differ.
            noise = self.likelihood.variances(len(pattern)).unique(return_inverse=True)[1]
            pattern = torch.cat([pattern, noise.unsqueeze(-1)], -1)
        group = pattern.unique(dim=0, return_inverse=True)[1]
        values = row.new_zeros(len(group))
        for members, valid in self._chunks(torch.arange(len(group), device=row.device), group):
            K, Y = self._covariance(row.expand(len(members), -1), members, valid)
            L = safe_cholesky(K)
            white = triangular_inverse(L) @ Y
            logdet = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
            n = self.seen[members].sum(-1).to(logdet.dtype)
            evidence = -0.5 * (white.square().sum(-2) + logdet + math.log(2.0 * math.pi) * n)
            values[members[valid]] = evidence[valid]
        return values

    def value_and_gradient(
        self, rows: Float[Tensor, "r k"], which: Int[Tensor, " r"]
    ) -> tuple[Float[Tensor, " r"], Float[Tensor, "r k"]]:
        """The log evidence and its gradient for the rows."""
        value, gradient = rows.new_zeros(len(rows)), torch.zeros_like(rows)
        # By pieces, so that no more than a chunk has a graph at a time.
        size = len(rows) if self.is_shared else self._chunk_size(1)
        for part in torch.split(torch.arange(len(rows), device=rows.device), size):
            with torch.enable_grad():
                leaf = rows[part].detach().requires_grad_()
                evidence = self.log_evidence(leaf, which[part])
                gradient[part] = torch.autograd.grad(evidence.sum(), leaf)[0]
            value[part] = evidence.detach()
        return value, gradient

    def _covariance(
        self, rows: Tensor, members: Int[Tensor, "u c"], valid: Bool[Tensor, "u c"]
    ) -> tuple[Float[Tensor, "u n n"], Float[Tensor, "u n c"]]:
        """Covariances of the observations of some groups, with ones for the padding, and the values."""
        first = members[:, 0]
        n = int(self.seen[first].sum(-1).max().clamp(min=1))
        x, seen = self.x[self.index[first, :n]], self.seen[first, :n]
        kernel, raw_noise = self._split(rows)
        K = self.kernels.covariance(kernel, x, x)
        if raw_noise is None:
            noise = self.likelihood.variances(len(self.y))[first]
        else:
            noise = self.likelihood.constraint.transform(raw_noise)
        noise = noise.unsqueeze(-1).expand(seen.shape)
        if not bool(seen.all()):
            K = torch.where(seen.unsqueeze(-1) & seen.unsqueeze(-2), K, 0.0)
            noise = torch.where(seen, noise, 1.0)
        Y = torch.where(valid.unsqueeze(-1), self.y[members, :n], 0.0).mT
        return K + torch.diag_embed(noise), Y

    def _chunk_size(self, width: int) -> int:
        n = self.seen.shape[1]
        return max(1, _CHUNK_NUMBERS // max(n * (n + width), 1))

    def _chunks(
        self, outputs: Int[Tensor, " k"], group: Int[Tensor, " p"] | None = None
    ) -> Iterator[tuple[Int[Tensor, "u c"], Bool[Tensor, "u c"]]]:
        """Outputs by group, (u, c) with c members each, and which of them are not padding; large groups first."""
        group = self.group if group is None else group
        _, group, count = group[outputs].unique(return_inverse=True, return_counts=True)
        largest = count.argsort(descending=True, stable=True)
        rank = torch.empty_like(largest)
        rank[largest] = torch.arange(len(largest), device=rank.device)
        members, count = outputs[rank[group].argsort(stable=True)], count[largest]
        first = count.cumsum(0) - count
        start = 0
        while start < len(count):
            width = int(count[start])
            stop = start + self._chunk_size(width)
            offset = torch.arange(width, device=members.device)
            valid = offset < count[start:stop].unsqueeze(-1)
            place = torch.where(valid, first[start:stop].unsqueeze(-1) + offset, first[start:stop].unsqueeze(-1))
            yield members[place], valid
            start = stop

    # -- prediction ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def predictor(self, num_samples: int, seed: int) -> "ExactPredictor":
        """q(f) of any cells, with the factorisations computed once."""
        p, n = self.y.shape
        slots = int(self.group.max()) + 1
        alpha, Linv = self.y.new_zeros(p, n), self.y.new_zeros(slots, n, n)
        rows = self.parameter_rows()
        for members, valid in self._chunks(torch.arange(p, device=self.y.device)):
            first = members[:, 0]
            K, Y = self._covariance(rows[torch.zeros_like(first) if self.is_shared else first], members, valid)
            inverse = triangular_inverse(safe_cholesky(K))
            m = K.shape[-1]
            Linv[self.group[first], :m, :m] = inverse
            solved = (inverse.mT @ (inverse @ Y)).mT
            alpha[members[valid], :m] = solved[valid]
        return ExactPredictor(self, alpha, Linv)

    @torch.no_grad()
    def joint(self, num_samples: int, seed: int) -> Joint:
        """The same for cells together, see `manygp.functions`."""
        return ExactJoint(self, self.predictor(num_samples, seed).Linv, seed)


class ExactPredictor:
    """Marginals of f at any cells: μ = kᵀ (K + σ² I)⁻¹ y, v = k(x, x) − kᵀ (K + σ² I)⁻¹ k."""

    def __init__(self, model: ExactBatch, alpha: Float[Tensor, "p n"], Linv: Float[Tensor, "u n n"]):
        self.model, self.alpha, self.Linv = model, alpha, Linv
        self.width = alpha.shape[1]

    @torch.no_grad()
    def __call__(
        self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]
    ) -> tuple[Float[Tensor, "1 b"], Float[Tensor, "1 b"]]:
        """Means and variances of f at cells (x, outputs)."""
        model = self.model
        inputs, at = distinct_inputs(x)
        # Outputs of one group have the same variance at the same input.
        slots = len(self.Linv)
        pair, cell = (at * slots + model.group[outputs]).unique(return_inverse=True)
        group, member = (pair % slots).unique(return_inverse=True)
        padding = pad_groups(member, len(group))
        one = model.group.new_zeros(slots).index_copy(0, model.group, torch.arange(len(model.group), device=x.device))
        first = one[group]
        kernel = model.kernels.rows(first)
        points = padding.pad(inputs[pair // slots])
        K = model.kernels.covariance(kernel, points, model.x[model.index[first]])
        K = torch.where(model.seen[first].unsqueeze(-2), K, 0.0)
        explained = (K @ self.Linv[group].mT).square().sum(-1)
        variance = padding.take(model.kernels.diagonal(kernel, points) - explained)[cell]
        mean = (padding.take(K)[cell] * self.alpha[outputs]).sum(-1)
        return mean.unsqueeze(0), variance.clamp(min=1e-8).unsqueeze(0)


def log_evidence(K: Float[Tensor, "u n n"], Y: Float[Tensor, "u n c"], count: Int[Tensor, " u"]) -> Float[Tensor, " u"]:
    """Σ log N(y | 0, K) over `count` columns of each Y, the others zero, without the constant n/2 log 2π."""
    return _LogEvidence.apply(K, Y, count)


class _LogEvidence(torch.autograd.Function):
    """Differentiating through the factorisation step by step costs several times as much as the closed form."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, Y: Tensor, count: Tensor) -> Tensor:
        L = safe_cholesky(K)
        Linv = triangular_inverse(L)
        white = Linv @ Y
        ctx.save_for_backward(Linv, white, count)
        logdet = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum((-2, -1)) + count * logdet)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        Linv, white, count = ctx.saved_tensors
        alpha = Linv.mT @ white
        # ∂/∂K = ½ (α αᵀ − c K⁻¹),  ∂/∂Y = −α
        grad_K = 0.5 * (alpha @ alpha.mT - count.view(-1, 1, 1) * (Linv.mT @ Linv))
        g = g.view(-1, 1, 1)
        return g * grad_K, -g * alpha, None
