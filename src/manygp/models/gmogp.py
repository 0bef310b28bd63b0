"""G-MOGP: a sparse GP for every output, whose prior is a mixture of the priors of all outputs by attention."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.variational import Mixture

# Slope of the leaky ReLU of the attention, as published.
_SLOPE = 0.2
# Numbers of a P x P matrix of weights that training holds: similarity, two parameters, and for each of these what the
# optimiser remembers; with dense gradients also those, and averages.
_SPARSE_MATRICES, _DENSE_MATRICES = 7, 11


class Attention(Mixture):
    """Weights of the outputs in each other's priors.

    a_ii = 1 and, for j ≠ i, a_ij = exp s_ij / (1 + Σ_l≠i exp s_il) with s_ij = LeakyReLU(c_ij w_ij + b_ij), where c_ij
    is the cosine similarity of the columns of outputs i and j. Output i has the prior mean Σ_j a_ij μ_j and the kernel
    Σ_j a_ij k_j. With R shared kernels, k_j = Σ_r s_jr k_r with shares s of its own; otherwise every output has one.
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
