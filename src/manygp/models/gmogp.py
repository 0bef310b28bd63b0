"""G-MOGP: a sparse GP for every output, whose prior is a mixture of the priors of all outputs by attention."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from torch import Tensor, nn

from manygp.data import Cells, Grid, Scaling, Table
from manygp.models.evidence import Lengthscales
from manygp.models.indgp import SparseIndependentModel
from manygp.models.inducing import greedy_inducing
from manygp.variational import KernelBatch, Mixture

__all__ = ["Attention", "attention_bytes", "cosine_similarity", "start_graphical", "start_means"]

_SLOPE = 0.2
# Numbers of a P x P matrix of weights that training holds: similarity, two parameters, and for each of these what the
# optimiser remembers; with dense gradients also those, and averages.
_SPARSE_MATRICES, _DENSE_MATRICES = 7, 11
# Lengthscales of shared kernels, from so many times to as many times those found, and the share of the middle one.
_RANGE, _MIDDLE_SHARE = 4.0, 0.5
_MAX_CANDIDATES = 2000


class Attention(Mixture):
    """Weights of the outputs in each other's priors.

    a_ii = 1 and, for j ≠ i, a_ij = exp s_ij / (1 + Σ_l≠i exp s_il) with s_ij = LeakyReLU(c_ij w_ij + b_ij), where c_ij
    is the cosine similarity of the columns of outputs i and j. Output i has the prior mean Σ_j a_ij μ_j and the kernel
    Σ_j a_ij k_j. With R shared kernels, k_j = Σ_r s_jr k_r with shares s of its own; otherwise every output has one.

    Parameters
    ----------
    num_outputs
        Number of outputs p.
    num_kernels
        Number of shared kernels, or None if every output has its own.
    sparse
        Whether gradients of w and b hold only the outputs of a batch.
    """

    similarity: Tensor

    def __init__(self, num_outputs: int, num_kernels: int | None = None, sparse: bool = False):
        super().__init__()
        square = num_outputs, num_outputs
        self.sparse = sparse
        self.register_buffer("similarity", torch.zeros(square, dtype=torch.float64))
        self.weight = nn.Parameter(torch.zeros(square, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(square, dtype=torch.float64))
        self.mean = nn.Parameter(torch.zeros(num_outputs, dtype=torch.float64))
        self.log_share = nn.Parameter(torch.zeros(num_outputs, num_kernels or 0, dtype=torch.float64))

    @property
    def num_weights(self) -> int:
        """Number of attention weights and biases, 2 P²."""
        return self.weight.numel() + self.bias.numel()

    def attend(self, outputs: Int[Tensor, " r"]) -> Float[Tensor, "r p"]:
        """a_ij of some outputs i."""
        w, b = (nn.functional.embedding(outputs, part, sparse=self.sparse) for part in (self.weight, self.bias))
        s = nn.functional.leaky_relu(self.similarity[outputs] * w + b, _SLOPE)
        own = outputs.unsqueeze(-1)
        s = s.scatter(1, own, -math.inf)
        # Everything by the largest exponent, that of the one included.
        top = s.detach().amax(-1, keepdim=True).clamp(min=0.0)
        share = torch.exp(s - top)
        a = share / (torch.exp(-top) + share.sum(-1, keepdim=True))
        return a.scatter(1, own, 1.0)

    def forward(self, which: Int[Tensor, " r"] | None = None) -> Float[Tensor, "r q"]:
        """Weights of the kernels in those of some outputs, of all by default."""
        a = self.attend(self._every() if which is None else which)
        return a @ self.log_share.exp() if self.log_share.numel() else a

    def means(self, which: Int[Tensor, " r"] | None = None) -> Float[Tensor, " r"]:
        """Prior means of some outputs, of all by default."""
        return self.attend(self._every() if which is None else which) @ self.mean

    def _every(self) -> Int[Tensor, " p"]:
        return torch.arange(len(self.mean), device=self.mean.device)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of which a step touches the rows of its outputs alone."""
        yield self.weight
        yield self.bias


def attention_bytes(num_outputs: int, sparse: bool) -> int:
    """Memory that the P x P matrices of a fit take."""
    return 8 * num_outputs**2 * (_SPARSE_MATRICES if sparse else _DENSE_MATRICES)


def cosine_similarity(table: Table, scaling: Scaling) -> Float[Tensor, "p p"]:
    """Cosine similarity of the columns of a table in scaled units, where missing cells count as zero."""
    p = table.num_outputs
    gram = np.zeros((p, p))
    if isinstance(table, Cells):
        # Inputs that no two outputs share leave every column orthogonal to the others.
        X, row = np.unique(table.X, axis=0, return_inverse=True)
        y = scaling.scale_y(table.y, table.output)
        columns = csr_array((y, (row.reshape(-1), table.output)), shape=(len(X), p))
        gram += (columns.T @ columns).toarray()
    else:
        assert isinstance(table, Grid)
        for rows in table.row_chunks():
            Y = np.where(table.observed(rows), scaling.scale_y(table.Y[rows]), 0.0)
            gram += Y.T @ Y
    length = np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
    return torch.as_tensor(gram / length / length[:, None])


@torch.no_grad()
def start_graphical(
    model: SparseIndependentModel,
    table: Table,
    scaling: Scaling,
    found: Lengthscales,
    rng: np.random.Generator,
) -> None:
    """Start with the attention that similarity alone suggests, kernels by evidence, inducing points among the inputs.

    Parameters
    ----------
    model
        The model to set.
    table, scaling
        The observations and their scaling.
    found
        What the evidence said about the inputs.
    rng
        Source of randomness.
    """
    processes = model.processes
    kernels, attention = processes.kernels, processes.kernels.mixture
    assert isinstance(attention, Attention)
    attention.weight.fill_(1.0)
    processes.units.copy_(torch.as_tensor(found.lengthscale))
    d = table.num_features
    ones = torch.ones(1, d, dtype=torch.float64)
    # An output's own prior and the mixture of all others have about as much weight.
    signal = torch.full((1,), 0.5 * found.signal, dtype=torch.float64)
    if attention.log_share.numel():
        q = kernels.size
        factor = torch.logspace(-1.0, 1.0, q, base=_RANGE, dtype=torch.float64) if q > 1 else ones[0, :1]
        kernels.rescale(factor.unsqueeze(-1).expand(q, d), torch.ones(1, dtype=torch.float64))
        share = torch.full((q,), (1.0 - _MIDDLE_SHARE) / max(q - 1, 1), dtype=torch.float64)
        share[q // 2] = _MIDDLE_SHARE
        attention.log_share.copy_((signal * share).log().expand_as(attention.log_share))
    else:
        kernels.rescale(ones, signal)
    chosen = rng.choice(table.num_inputs, min(table.num_inputs, _MAX_CANDIDATES), replace=False)
    candidates = torch.as_tensor(scaling.scale_x(table.X[chosen])) / processes.units
    # All outputs begin alike, so that the points of one serve all.
    one = KernelBatch(kernels.name or "rbf", d, 1)
    one.rescale(ones, signal)
    processes.Z.copy_(greedy_inducing(one, candidates, processes.num_inducing).expand_as(processes.Z))


@torch.no_grad()
def start_means(attention: Attention, level: Float[Tensor, " p"]) -> None:
    """Set the means such that those of the mixtures are at given levels."""
    attention.mean.copy_(torch.linalg.solve(attention.attend(attention._every()), level.to(attention.mean)))
