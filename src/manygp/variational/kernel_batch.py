"""Several kernels of one kind as one object, each with parameters of its own."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import gpytorch
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from manygp.kernels import (
    LatentKernel,
    cross_covariance,
    is_fused,
    kernel_diagonal,
    make_kernel,
    smoothness,
    stationary,
)

# Numbers of covariances that are mixed at a time.
_MIXED_NUMBERS = 4_000_000


class Mixture(nn.Module):
    """Weights of a few priors in those of many processes."""

    @abstractmethod
    def forward(self, which: Int[Tensor, " r"] | None = None) -> Float[Tensor, "r q"]:
        """Positive weights w_rj of the kernels in those of some processes, of all by default."""

    @abstractmethod
    def means(self, which: Int[Tensor, " r"] | None = None) -> Float[Tensor, " r"]:
        """Prior means of some processes, of all by default."""

    @abstractmethod
    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with one row per process."""

    @property
    @abstractmethod
    def num_weights(self) -> int:
        """Number of parameters of the weights."""


class KernelBatch(nn.Module):
    """k_1, …, k_q: one GPyTorch kernel whose parameters have a first axis of length q.

    Scaled RBF and Matern kernels are evaluated in a few batched operations, any other kernel by GPyTorch.

    Parameters
    ----------
    kernel
        Name of a kernel, or a GPyTorch kernel of which every process gets a copy.
    dim
        Number of input dimensions.
    size
        Number of kernels q.
    log_parameters
        Whether positive parameters of named kernels are exponentials of free ones; otherwise softplus.
    mixture
        If given, the kernels of the processes, however many there are, are Σ_j w_rj k_j with its weights.
    """

    def __init__(
        self, kernel: str | Kernel, dim: int, size: int, log_parameters: bool = False, mixture: Mixture | None = None
    ):
        super().__init__()
        self.kernel = make_kernel(kernel, dim, log_parameters)
        self.size, self.mixture = size, mixture
        for module in self.kernel.modules():
            if isinstance(module, Kernel):
                # Only the number of batch axes matters to GPyTorch, so that any rows can be put in their place.
                module.batch_shape = torch.Size([size])
        for parameter in self.kernel.parameters():
            parameter.data = parameter.data.expand(size, *parameter.shape).clone()

    @property
    def name(self) -> str | None:
        """Name of the kernels, or None if they are of the user's own making."""
        if not self.is_fused:
            return None
        return {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}.get(smoothness(self.kernel), "rbf")

    @property
    def is_fused(self) -> bool:
        """Whether the closed form computes these kernels: scaled RBF or Matern on all dimensions, nothing more."""
        return is_fused(self.kernel) and not isinstance(self.kernel, LatentKernel)

    def rows(self, which: Int[Tensor, " r"] | None = None, sparse: bool = False) -> dict[str, Tensor]:
        """Free parameters of some kernels by name, first axis r; those of all kernels by default.

        `which` may be longer than q only if there is a single kernel, which then serves for all. With `sparse`,
        gradients hold the rows asked for alone. Of a mixture, the weights of the kernels.
        """
        if self.mixture is not None:
            return {"weight": self.mixture(which)}
        if which is None or self.size == 1:
            return dict(self.kernel.named_parameters())
        return {name: pick(parameter, which, sparse) for name, parameter in self.kernel.named_parameters()}

    def covariance(
        self, rows: dict[str, Tensor], a: Float[Tensor, "*#q n d"], b: Float[Tensor, "*#q m d"]
    ) -> Float[Tensor, "r n m"]:
        """k_r(a, b) for all pairs, in the dtype of a."""
        if "weight" in rows:
            return self._mix(rows["weight"], a, b)
        if not self.is_fused:
            return self._call(rows, a.double(), b.double()).to(a.dtype)
        lengthscale, outputscale = self.scales(rows)
        lengthscale, outputscale = lengthscale.unsqueeze(-2).to(a.dtype), outputscale.to(a.dtype)
        return stationary(a / lengthscale, b.to(a.dtype) / lengthscale, outputscale, smoothness(self.kernel))

    def diagonal(self, rows: dict[str, Tensor], a: Float[Tensor, "*#q n d"]) -> Float[Tensor, "r n"]:
        """k_r(aᵢ, aᵢ) for every row of a, in float64."""
        if "weight" in rows:
            return self._mix(rows["weight"], a)
        if not self.is_fused:
            wide = a.double().expand(max(len(next(iter(rows.values()))), *a.shape[:-2], 1), *a.shape[-2:])
            return torch.func.functional_call(self.kernel, rows, (wide,), {"diag": True})
        outputscale = self.scales(rows)[1]
        return outputscale.unsqueeze(-1).expand(*torch.broadcast_shapes(outputscale.shape, a.shape[:-2]), a.shape[-2])

    def scales(self, rows: dict[str, Tensor]) -> tuple[Float[Tensor, "r d"], Float[Tensor, " r"]]:
        """Lengthscales and output scales of named kernels."""
        base = self.kernel.base_kernel
        lengthscale = base.raw_lengthscale_constraint.transform(rows["base_kernel.raw_lengthscale"])
        return lengthscale.squeeze(-2), self.kernel.raw_outputscale_constraint.transform(rows["raw_outputscale"])

    @torch.no_grad()
    def rescale(self, lengthscale: Float[Tensor, "#q d"], outputscale: Float[Tensor, "#q"]) -> None:
        """Set lengthscales and output scales of named kernels; leave any other kernel as it is."""
        if self.is_fused:
            self.kernel.base_kernel.lengthscale = lengthscale.unsqueeze(-2).expand(self.size, 1, -1)
            self.kernel.outputscale = outputscale.expand(self.size)

    def row_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters with one row per process."""
        if self.mixture is not None:
            yield from self.mixture.row_parameters()
        elif self.size > 1:
            yield from self.kernel.parameters()

    def _mix(self, weight: Float[Tensor, "r q"], a: Tensor, b: Tensor | None = None) -> Tensor:
        """Σ_j w_rj k_j(a, b), or of k_j(aᵢ, aᵢ) without b, some kernels at a time."""
        numbers = len(weight) * a.shape[-2] * (1 if b is None else b.shape[-2])
        parts = torch.split(torch.arange(self.size, device=a.device), max(1, _MIXED_NUMBERS // max(numbers, 1)))
        if len(parts) == 1:
            return self._mix_part(weight, parts[0], a, b)
        total = self._mix_part(weight[:, parts[0]], parts[0], a, b)
        for part in parts[1:]:
            # Of many kernels the covariances of a part are made again for its backward pass rather than kept.
            total = total + checkpoint(self._mix_part, weight[:, part], part, a, b, use_reentrant=False)
        return total

    def _mix_part(self, weight: Float[Tensor, "r j"], part: Int[Tensor, " j"], a: Tensor, b: Tensor | None) -> Tensor:
        r, j = weight.shape
        own = {name: parameter.index_select(0, part.repeat(r)) for name, parameter in self.kernel.named_parameters()}
        a = a.expand(r, *a.shape[-2:]).repeat_interleave(j, 0)
        if b is None:
            return (weight.unsqueeze(1) @ self.diagonal(own, a).view(r, j, -1)).squeeze(1)
        b = b.expand(r, *b.shape[-2:]).repeat_interleave(j, 0)
        K = self.covariance(own, a, b)
        mixed = weight.unsqueeze(1).to(K.dtype) @ K.reshape(r, j, -1)
        return mixed.view(r, *K.shape[-2:])

    def _call(self, rows: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        # A composed kernel passes its inputs on as they are, so that all need the batch axis.
        size = max(len(next(iter(rows.values()))), *a.shape[:-2], *b.shape[:-2], 1)
        a, b = a.expand(size, *a.shape[-2:]), b.expand(size, *b.shape[-2:])
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return torch.func.functional_call(self.kernel, rows, (a, b)).to_dense()


@dataclass(frozen=True)
class Covariance:
    """k(a, b) and k(aᵢ, aᵢ) of one kernel, or of some kernels of a batch with their parameters at hand."""

    kernel: Kernel | KernelBatch
    rows: dict[str, Tensor] | None

    def __call__(self, a: Float[Tensor, "*#q n d"], b: Float[Tensor, "*#q m d"]) -> Float[Tensor, "*q n m"]:
        """k(a, b) for all pairs, in the dtype of a."""
        if isinstance(self.kernel, KernelBatch):
            return self.kernel.covariance(self.rows or {}, a, b)
        return cross_covariance(self.kernel, a, b)

    def diagonal(self, a: Float[Tensor, "*#q n d"]) -> Float[Tensor, "*q n"]:
        """k(aᵢ, aᵢ) for every row of a."""
        if isinstance(self.kernel, KernelBatch):
            return self.kernel.diagonal(self.rows or {}, a)
        return kernel_diagonal(self.kernel, a)


def covariance_of(
    kernel: Kernel | KernelBatch, which: Int[Tensor, " r"] | None = None, sparse: bool = False
) -> Covariance:
    """A kernel, or those of some processes of a batch, of all by default, as a function; see `KernelBatch.rows`."""
    return Covariance(kernel, kernel.rows(which, sparse) if isinstance(kernel, KernelBatch) else None)


def pick(parameter: Tensor, which: Int[Tensor, " r"], sparse: bool = False) -> Tensor:
    """Rows of a parameter of any shape, whose gradient is sparse if so wanted."""
    if not sparse:
        return parameter.index_select(0, which)
    index = which.view(-1, *[1] * (parameter.dim() - 1)).expand(-1, *parameter.shape[1:])
    return torch.gather(parameter, 0, index, sparse_grad=True)
