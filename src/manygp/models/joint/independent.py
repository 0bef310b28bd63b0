"""Processes of single outputs: Ind-GP, exact or sparse, and G-MOGP."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.functions import OWN, At, Block, Known, Left, Process, Spectrum, View, cell_keys
from manygp.linalg import matvec, safe_cholesky
from manygp.variational import InducingGP, KernelBatch, covariance_of
from manygp.variational.layout import pad_groups

if TYPE_CHECKING:
    from manygp.models.exact import ExactBatch

__all__ = ["ExactJoint", "SparseIndependentJoint", "batch_process"]

# Random features of each output's process.
_NUM_FEATURES = 128
KNOWN, LEFT = 1, 2


def batch_process(processes: InducingGP, which: Int[Tensor, " r"] | None, num_features: int, seed: int) -> Process:
    """Some sparse GPs of a batch, all by default."""
    Z = processes.Z.detach()
    q, Linv = processes.posterior.moments(which), processes.whitening()
    if which is not None:
        Z, Linv = (part if len(part) == 1 else part[which] for part in (Z, Linv))
    spectrum = Spectrum.of_batch(processes.kernels, which, num_features, seed)
    return Process(
        covariance_of(processes.kernels, which), Z, Linv, q.mean, safe_cholesky(q.covariance), spectrum=spectrum
    )


def own_prior(
    kernels: KernelBatch, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
) -> dict[str, Float[Tensor, "a b"]]:
    """Covariances before any data between some cells and others: none between outputs. Inputs are in units."""
    total = x.new_zeros(len(x), len(other_x))
    for output in outputs.unique():
        i, j = (torch.nonzero(which == output).squeeze(-1) for which in (outputs, other_outputs))
        if len(j):
            k = covariance_of(kernels, output.view(1))
            total[i.unsqueeze(-1), j] = k(x[i].unsqueeze(0), other_x[j].unsqueeze(0))[0].to(total)
    return {OWN: total}


class SparseIndependentJoint:
    """f of any cells together, where every output has a sparse GP of its own.

    Parameters
    ----------
    processes
        The sparse GPs.
    bias
        Constants of the outputs, or None.
    seed
        Of the random features.
    """

    num_components, num_points, output_places = 1, 1, None

    def __init__(self, processes: InducingGP, bias: Float[Tensor, " p"] | None, seed: int):
        self.processes, self.bias, self.seed = processes, bias, seed
        self.width = 2 * processes.num_inducing + _NUM_FEATURES

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        distinct, column = outputs.unique(return_inverse=True)
        padding = pad_groups(column, len(distinct))
        process = batch_process(self.processes, distinct, _NUM_FEATURES, self.seed)
        at = At(process, padding.pad(x / self.processes.units))
        mean = padding.take(at.mean()).unsqueeze(0)
        mean = mean if self.bias is None else mean + self.bias.detach()[outputs]
        key = outputs if process.spectrum is not None else cell_keys(x, outputs)
        blocks: list[Block] = [
            Known(stream=KNOWN, at=at, padding=padding, key=outputs),
            Left(stream=LEFT, at=at, padding=padding, key=key),
        ]
        return View(mean, blocks)

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others."""
        units = self.processes.units
        return own_prior(self.processes.kernels, x / units, outputs, other_x / units, other_outputs)


class ExactJoint:
    """f of any cells together, where every output has an exact GP of its own.

    Parameters
    ----------
    model
        The GPs.
    Linv
        Inverse Cholesky factors of the covariances of observations, one for each group of outputs that share them.
    """

    num_components, num_points, output_places = 1, 1, None

    def __init__(self, model: "ExactBatch", Linv: Float[Tensor, "u n n"], seed: int):
        self.model, self.Linv, self.seed = model, Linv, seed
        self.width = 3 * Linv.shape[-1] + _NUM_FEATURES

    def __call__(self, x: Float[Tensor, "b d"], outputs: Int[Tensor, " b"]) -> View:
        """The joint distribution of f at cells."""
        model = self.model
        distinct, column = outputs.unique(return_inverse=True)
        padding, Linv = pad_groups(column, len(distinct)), self.Linv[model.group[distinct]]
        k, X, seen = covariance_of(model.kernels, distinct), model.x[model.index[distinct]], model.seen[distinct]

        def explained(points: Tensor) -> Tensor:
            return torch.where(seen.unsqueeze(-2), k(points, X), 0.0) @ Linv.mT

        process = Process(
            k,
            X,
            Linv,
            matvec(Linv, model.y[distinct]),
            noise=model.likelihood.noise_of(distinct).detach().unsqueeze(-1).expand(seen.shape),
            spectrum=Spectrum.of_batch(model.kernels, distinct, _NUM_FEATURES, self.seed),
            explain=explained,
        )
        at = At(process, padding.pad(x))
        key = outputs if process.spectrum is not None else cell_keys(x, outputs)
        return View(padding.take(at.mean()).unsqueeze(0), [Left(stream=LEFT, at=at, padding=padding, key=key)])

    def prior(
        self, x: Tensor, outputs: Tensor, other_x: Tensor, other_outputs: Tensor
    ) -> dict[str, Float[Tensor, "a b"]]:
        """Covariances before any data between some cells and others."""
        return own_prior(self.model.kernels, x, outputs, other_x, other_outputs)
