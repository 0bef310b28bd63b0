"""Outputs that mix a few processes of the inputs: SV-LMC and OILMM."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import (
    SHARED,
    At,
    Block,
    Combination,
    Known,
    Left,
    Process,
    Rows,
    Spectrum,
    View,
    cell_keys,
    input_keys,
    normals,
)
from manygp.linalg import matvec, safe_cholesky, triangular_inverse
from manygp.models.joint.independent import batch_process
from manygp.variational import InducingGP, KnownInputs, covariance_of
from manygp.variational.layout import pad_groups, unique_inputs

if TYPE_CHECKING:
    from manygp.models.coupled import CoupledRows
    from manygp.models.oilmm import ExactProcesses, OrthogonalMixingModel
    from manygp.models.svlmc import LinearMixingModel

__all__ = ["MixingJoint", "OrthogonalJoint"]

# Random features of each process, and of each in what is told about outputs that were never observed.
_NUM_FEATURES, _UNSEEN_FEATURES = 512, 32
KNOWN, LEFT, WHITE, UNSEEN, WEIGHTS = range(1, 6)


class Processes:
    """All processes at the distinct inputs of some cells: point l n + i is process l at input i.

    Parameters
    ----------
    process
        The batch of processes.
    inputs
        The distinct inputs in units, shape (n, d).
    """

    def __init__(self, process: Process, inputs: Float[Tensor, "n d"]):
        self.n, self.num = len(inputs), len(process.mean)
        device = inputs.device
        self.number = torch.arange(self.num, device=device).repeat_interleave(self.n)
        self.padding = pad_groups(self.number, self.num)
        self.inputs = inputs.repeat(self.num, 1)
        self.at = At(process, inputs.expand(self.num, *inputs.shape))

    @property
    def mean(self) -> Float[Tensor, "n q"]:
        """Means of the processes."""
        return self.at.mean().T

    def through(self, row: Int[Tensor, " b"], weight: Float[Tensor, "b q"]) -> Combination:
        """Σ_l weight_l z_l(x) for cells at the inputs `row`."""
        point = row.unsqueeze(-1) + self.n * torch.arange(self.num, device=row.device)
        return Combination(point, weight, self.n * self.num)

    def blocks(self, through: Combination | None) -> list[Block]:
        """What is unknown of the processes."""
        process, blocks = self.at.process, list[Block]()
        if process.root is not None:
            blocks.append(Known(stream=KNOWN, at=self.at, padding=self.padding, key=self.number, through=through))
        key = self.number if process.spectrum is not None else cell_keys(self.inputs, self.number)
        return [*blocks, Left(stream=LEFT, at=self.at, padding=self.padding, key=key, through=through)]


class MixingView(View):
    """f = Σ_l w_l z_l with independent Gaussian weights of each output: a product, whose moments are known.

    Parameters
    ----------
    mean, processes, row
        Means of cells, the processes, and the input of every cell.
    outputs
        The outputs.
    W, s
        Means and variances of the weights, shape (b, q).
    """

    def __init__(self, mean: Tensor, processes: Processes, row: Tensor, outputs: Tensor, W: Tensor, s: Tensor):
        super().__init__(mean, processes.blocks(processes.through(row, W)))
        self.processes, self.row, self.outputs, self.W, self.s = processes, row, outputs, W, s

    @property
    def is_linear(self) -> bool:
        return False

    def covariance(self, a: Int[Tensor, " a"], b: Int[Tensor, " b"]) -> Float[Tensor, "s a b"]:
        total, level = super().covariance(a, b), self.processes.mean
        own = torch.zeros_like(total)
        offset = self.processes.n
        for q in range(self.W.shape[1]):
            sd = self.s[:, q].sqrt()
            i, j = self.row[a] + q * offset, self.row[b] + q * offset
            C = sum((block.covariance(i, j) for block in self.processes.blocks(None)), torch.zeros_like(total))
            # s_l (cov z_l + μ_l μ_lᵀ) between cells of one output
            second = C + level[self.row[a], q].unsqueeze(-1) * level[self.row[b], q]
            own = own + sd[a].unsqueeze(-1) * sd[b] * second
        return total + torch.where(self.outputs[a].unsqueeze(-1) == self.outputs[b], own, 0.0)

    def variance_of_sums(self, W: Tensor) -> Float[Tensor, "s g"]:
        every, dense = torch.arange(self.mean.shape[1], device=W.device), W.to_dense()
        return ((dense @ self.covariance(every, every)) * dense).sum(-1)

    def draw(self, draws: Int[Tensor, " n"], seed: int) -> Float[Tensor, "n b"]:
        z = self.processes.mean.T.flatten().unsqueeze(-1)
        for block in self.processes.blocks(None):
            z = z + block.values(0, draws, seed)
        # (n, b, q)
        z = z.T.unflatten(-1, (self.W.shape[1], -1))[:, :, self.row].movedim(1, -1)
        keys, place = self.outputs.unique(return_inverse=True)
        ε = normals(seed, WEIGHTS, keys, draws, self.W.shape[1]).to(z)
        moved = self.s.sqrt() * ε[place].movedim(1, 0)
        level = self.mean[0] - (self.W * self.processes.mean[self.row]).sum(-1)
        return level + ((self.W + moved) * z).sum(-1)


class MixingJoint:
    """f of any cells together in an SV-LMC."""

    num_components, num_points, output_places = 1, 1, None

    def __init__(self, model: "LinearMixingModel", seed: int):
        self.model = model
        self.process = batch_process(model.processes, None, _NUM_FEATURES, seed)
        self.width = 4 * len(self.process.mean) + 64

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        inputs, row = unique_inputs(x)
        processes = Processes(self.process, inputs / self.model.processes.units)
        W, s = (part.detach() for part in self.model.mixing.moments(outputs))
        mean = (W * processes.mean[row]).sum(-1)
        if self.model.bias is not None:
            mean = mean + self.model.bias.detach()[outputs, 0]
        if self.model.mixing.posterior == "point":
            return View(mean.unsqueeze(0), processes.blocks(processes.through(row, W)))
        return MixingView(mean.unsqueeze(0), processes, row, outputs, W, s)

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others, given what is known of the weights."""
        moments, units = self.model.mixing.moments, self.model.processes.units
        (W, s), (V, t) = moments(outputs), moments(other_outputs)
        K = covariance_of(self.model.processes.kernels)(x / units, other_x / units)
        own = torch.einsum("aq,bq,qab->ab", s.sqrt(), t.sqrt(), K)
        same = outputs.unsqueeze(-1) == other_outputs
        return {SHARED: torch.einsum("aq,bq,qab->ab", W, V, K) + torch.where(same, own, 0.0)}


class OrthogonalJoint:
    """f = H (z + ξ) of any cells together in an OILMM, see `OrthogonalPredictor` for single ones.

    Parameters
    ----------
    model
        The model.
    rows
        What rows with gaps say, where they are taken as they are, or None.
    unseen_variance
        Variance of outputs that were never observed.
    seed
        Of the random features.
    """

    num_components, num_points, output_places = 1, 1, None

    def __init__(
        self, model: "OrthogonalMixingModel", rows: "CoupledRows | None", unseen_variance: Float[Tensor, ""], seed: int
    ):
        self.model, self.rows, self.unseen_variance = model, rows, unseen_variance
        processes = model.processes
        if isinstance(processes, InducingGP):
            self.process = batch_process(processes, None, _NUM_FEATURES, seed)
        else:
            self.process = self._exact(processes, seed)
        self.unseen = Spectrum.of_batch(processes.kernels, None, _UNSEEN_FEATURES, seed)
        basis = model.basis
        self.known, self.U, self.S, self.D = KnownInputs(model.x), basis.U.detach(), basis.S.detach(), basis.D.detach()
        self.width = 4 * len(self.S) + 64

    def _exact(self, processes: "ExactProcesses", seed: int) -> Process:
        """Processes that are observed at the inputs of the table."""
        model, x = self.model, self.model.x / processes.units
        noise = (model.site_noise + model.basis.D.detach()).T
        Linv = triangular_inverse(safe_cholesky(processes.covariance(x, noise)))
        spectrum = Spectrum.of_batch(processes.kernels, None, _NUM_FEATURES, seed)
        mean = matvec(Linv, model.site_mean.T)
        return Process(covariance_of(processes.kernels), x.unsqueeze(0), Linv, mean, noise=noise, spectrum=spectrum)

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        inputs, row = unique_inputs(x)
        place = self.known.find(inputs)
        processes = Processes(self.process, inputs / self.model.processes.units)
        # Of a = S^½ z at an input: a + ξ = kept a + told + white ε
        kept, told, white = self._white(place)
        seen = self.model.basis.seen[outputs]
        U = torch.where(seen.unsqueeze(-1), self.U[outputs], 0.0)
        weight = (U.unsqueeze(-2) @ kept[row]).squeeze(-2) * self.S.sqrt()
        mean = (weight * processes.mean[row]).sum(-1) + (U * told[row]).sum(-1)
        key = torch.where(place >= 0, place, input_keys(inputs))[row]
        blocks = [
            *processes.blocks(processes.through(row, weight)),
            Rows(stream=WHITE, key=key, values_of=(U.unsqueeze(-2) @ white[row]).squeeze(-2).unsqueeze(0)),
        ]
        if not bool(seen.all()):
            blocks.append(self._unseen(x, outputs, seen))
        return View(mean.unsqueeze(0), blocks)

    def _white(self, place: Int[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor]:
        """What observations of an input tell about the white noise ξ of the processes there."""
        model, is_known, at = self.model, (place >= 0).view(-1, 1, 1), place.clamp(min=0)
        Δ, eye = self.S * self.D, torch.eye(len(self.S), dtype=self.S.dtype, device=self.S.device)
        kept, told, covariance = eye.expand(len(place), -1, -1), Δ.new_zeros(len(place), len(Δ)), Δ.diag()
        if not bool(is_known.any()):
            return kept, told, Δ.sqrt().diag().expand_as(kept)
        if self.rows is not None:
            # ξ | a, y has mean Δ (t − Q a) and covariance Δ − Δ Q Δ
            ΔQ = Δ.unsqueeze(-1) * self.rows.Q[self.rows.pattern[at]]
            found = eye - ΔQ, Δ * self.rows.t[at], Δ.diag() - ΔQ * Δ
        else:
            # ξ | z, ẑ has mean D (ẑ − z) / (D + r) and variance D r / (D + r)
            r = model.site_noise[at]
            share = self.D / (self.D + r)
            told_z = self.S.sqrt() * share * model.site_mean[at]
            found = (1.0 - share).diag_embed(), told_z, (self.S * share * r).diag_embed()
        kept = torch.where(is_known, found[0], kept)
        covariance = torch.where(is_known, found[2], covariance)
        return kept, torch.where(is_known[:, 0], found[1], told), safe_cholesky(covariance)

    def _unseen(self, x: Tensor, outputs: Tensor, seen: Tensor) -> Block:
        """An output without observations is like any other, but nobody knows which."""
        if self.unseen is None:
            rows, key = torch.ones_like(x[:, :1]), cell_keys(x, outputs)
        else:
            points = (x / self.model.processes.units).expand(len(self.S), *x.shape)
            rows = self.unseen(points).movedim(0, 1).flatten(1)
            key = outputs
        rows = rows / rows.norm(dim=-1, keepdim=True) * self.unseen_variance.sqrt()
        return Rows(stream=UNSEEN, key=key, values_of=torch.where(seen.unsqueeze(-1), 0.0, rows).unsqueeze(0))

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others: those of z, and of ξ at one input."""
        units, H = self.model.processes.units, self.U * self.S.sqrt()
        K = covariance_of(self.model.processes.kernels)(x / units, other_x / units)
        same = (input_keys(x).unsqueeze(-1) == input_keys(other_x)).to(K)
        return {SHARED: torch.einsum("aq,bq,qab->ab", H[outputs], H[other_outputs], K + self.D.view(-1, 1, 1) * same)}
