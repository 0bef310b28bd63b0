"""Base kernels on the embedding space.

Every kernel is a GPyTorch kernel, which holds the parameters and their constraints. The scaled ARD-RBF and Matern
kernels are evaluated by one fused function with a closed-form backward; any other kernel by GPyTorch itself.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.errors import SettingError

__all__ = [
    "KERNELS",
    "CovarianceRows",
    "cross_covariance",
    "is_fused",
    "kernel_diagonal",
    "make_kernel",
    "matern",
    "plain_covariance",
    "rescale_kernel",
    "smoothness",
    "stationary",
]

KERNELS = ("rbf", "matern12", "matern32", "matern52")
# Numbers of a covariance matrix, and rows at least, that are worked on together.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 250_000, 512
# The same for visitors who do more with every chunk, and for rows that are kept.
_VISIT_NUMBERS, _KEPT_NUMBERS = 1_000_000, 600_000
_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def make_kernel(kernel: str | Kernel, dim: int, log_parameters: bool = False) -> Kernel:
    """A GPyTorch kernel on `dim` dimensions, from its name or as a copy of the one given.

    Positive parameters of a named kernel are softplus of a free one, as is GPyTorch's custom, or with `log_parameters`
    its exponential, so that a step of the optimiser is a relative change at every scale.
    """
    if isinstance(kernel, Kernel):
        given = copy.deepcopy(kernel).double()
        _check_dimensions(given, dim)
        return given
    if kernel not in KERNELS:
        raise SettingError(f"kernel={kernel!r} is unknown: use one of {', '.join(KERNELS)}, or a GPyTorch kernel.")
    constraint = Positive(transform=torch.exp, inv_transform=torch.log) if log_parameters else Positive()
    base: Kernel
    if kernel == "rbf":
        base = RBFKernel(ard_num_dims=dim, lengthscale_constraint=constraint)
    else:
        base = MaternKernel(nu=_SMOOTHNESS[kernel], ard_num_dims=dim, lengthscale_constraint=constraint)
    return ScaleKernel(base, outputscale_constraint=copy.deepcopy(constraint)).double()


def _check_dimensions(kernel: Kernel, dim: int) -> None:
    points = torch.zeros(2, dim, dtype=torch.float64)
    try:
        with torch.no_grad():
            shape = tuple(kernel(points, points).to_dense().shape)
    except (RuntimeError, IndexError) as error:
        raise SettingError(
            f"The kernel {type(kernel).__name__} cannot take embeddings of {dim} dimensions ({error}): set its "
            "ard_num_dims and active_dims to fit."
        ) from error
    if shape != (2, 2):
        raise SettingError(
            f"The kernel {type(kernel).__name__} gives covariances of shape {shape} for 2 embeddings: give one kernel "
            "without a batch shape."
        )


def is_fused(kernel: Kernel) -> bool:
    """Whether the closed form computes this kernel: a scaled RBF or Matern on all dimensions, nothing more."""
    if type(kernel) is not ScaleKernel or kernel.active_dims is not None:
        return False
    base = kernel.base_kernel
    if type(base) not in (RBFKernel, MaternKernel) or base.active_dims is not None:
        return False
    # Lengthscales with the axes of the output scales of a batch, if there are any.
    return base.raw_lengthscale.dim() == kernel.raw_outputscale.dim() + 2


def rescale_kernel(kernel: Kernel, lengthscale: Float[Tensor, " e"], outputscale: float) -> None:
    """Set the lengthscales and the output scale of a named kernel; leave any other kernel as it is."""
    if is_fused(kernel):
        kernel.base_kernel.lengthscale = lengthscale
        # A plain number would be rounded to the default dtype.
        kernel.outputscale = torch.as_tensor(outputscale, dtype=torch.float64)


def cross_covariance(
    kernel: Kernel, a: Float[Tensor, "*#q b e"], b: Float[Tensor, "*#q m e"]
) -> Float[Tensor, "*q b m"]:
    """k(a, b) for all pairs, in the dtype of a and b; of every kernel, if it has a batch shape."""
    if not is_fused(kernel):
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return kernel(a.double(), b.double()).to_dense().to(a.dtype)
    return stationary(*_scaled(kernel, a, b), smoothness(kernel))


def plain_covariance(
    kernel: Kernel, a: Float[Tensor, "*#q b e"], b: Float[Tensor, "*#q m e"]
) -> Float[Tensor, "*q b m"]:
    """k(a, b) for all pairs by elementary operations, for gradients of gradients."""
    if not is_fused(kernel):
        return cross_covariance(kernel, a, b)
    a, b, outputscale = _scaled(kernel, a, b)
    s, nu = (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1), smoothness(kernel)
    # The root in a Matern kernel has no slope at 0.
    ρ = torch.exp(-0.5 * s) if math.isinf(nu) else matern(s.clamp(min=1e-24), nu)[0]
    return outputscale[..., None, None] * ρ


def kernel_diagonal(kernel: Kernel, a: Float[Tensor, "*#q b e"]) -> Float[Tensor, "*q b"]:
    """k(aᵢ, aᵢ) for every row of a; of every kernel, if it has a batch shape."""
    if not is_fused(kernel):
        return kernel(a.double(), diag=True).to(a.dtype)
    outputscale = kernel.outputscale.to(a.dtype)
    return outputscale.unsqueeze(-1).expand(*torch.broadcast_shapes(outputscale.shape, a.shape[:-2]), a.shape[-2])


def _scaled(kernel: Kernel, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a and b in lengthscales, each in its dtype, and the output scale in that of b."""
    lengthscale = kernel.base_kernel.lengthscale.to(b.dtype)
    return a / lengthscale.to(a.dtype), b / lengthscale, kernel.outputscale.to(b.dtype)


def smoothness(kernel: Kernel) -> float:
    """ν of a scaled Matern kernel, infinite for an RBF."""
    return float(getattr(kernel.base_kernel, "nu", math.inf))


def stationary(
    a: Float[Tensor, "*#q n d"], b: Float[Tensor, "*#q m d"], outputscale: Float[Tensor, "*#q"], nu: float
) -> Float[Tensor, "*q n m"]:
    """σ² ρ(|a − b|²) of points in lengthscales, for every process of a batch: RBF with nu = ∞, or Matern."""
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2], outputscale.shape)
    a, b = a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:])
    return _Stationary.apply(a, b, outputscale.expand(shape), nu)


class _Stationary(torch.autograd.Function):
    """σ² ρ(s) with s the squared distances of scaled points."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, outputscale: Tensor, nu: float) -> Tensor:
        ctx.pairs = _Pairs(a, b, outputscale, nu)
        K, slope = ctx.pairs.covariance()
        ctx.save_for_backward(K, slope)
        return K

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        K, slope = ctx.saved_tensors
        gradient = _PairsGradient(ctx.pairs)
        for rows in row_chunks(K, K.shape[-1]):
            gradient.add(rows, G[..., rows, :].clone(), K[..., rows, :], None if slope is None else slope[..., rows, :])
        return *gradient.result()[:3], None


class _Pairs:
    """Pairs of points, or a batch of them, whose K = w σ² ρ(s) and its slope ∂K/∂s are computed some rows at a time.

    ρ(s) = exp(−s/2) for the RBF (nu = ∞), where the slope is K itself up to a factor, and the Matern profile in r = √s
    otherwise; weights w belong to rows.
    """

    def __init__(self, a: Tensor, b: Tensor, outputscale: Tensor, nu: float, log_weight: Tensor | None = None):
        # Distances do not change with the origin, but the rounding errors of |a|² + |b|² − 2 a·b do.
        center = b.mean(-2, keepdim=True)
        self.a, self.b, self.outputscale, self.nu = a - center, b - center, outputscale, nu
        one_a, one_b = a.new_ones(*a.shape[:-1], 1), b.new_ones(*b.shape[:-1], 1)
        of_a = -0.5 * (self.a * self.a).sum(-1, keepdim=True)
        b2, σ2 = (self.b * self.b).sum(-1, keepdim=True), outputscale[..., None, None]
        if self.is_rbf:
            # log K = a·b − |a|²/2 + log w − |b|²/2 + log σ², by one product
            of_a = of_a if log_weight is None else of_a + log_weight.unsqueeze(-1)
            right = torch.cat([self.b, one_b, σ2.log() - 0.5 * b2], -1)
        else:
            # s = −2 a·b + |a|² + |b|²
            right = torch.cat([-2.0 * self.b, -2.0 * one_b, b2], -1)
            self.scale = σ2 if log_weight is None else σ2 * log_weight.exp().unsqueeze(-1)
        self.left, self.right = torch.cat([self.a, of_a, one_a], -1), right.mT

    @property
    def is_rbf(self) -> bool:
        return self.nu == math.inf

    def covariance(self) -> tuple[Tensor, Tensor | None]:
        """K and its slope, whole."""
        K, slope = self.room(self.left.shape[-2])
        self.write(slice(None), K, slope)
        return K, slope

    def room(self, num_rows: int) -> tuple[Tensor, Tensor | None]:
        """Memory for some rows of K and their slope."""
        K = self.left.new_empty(*self.left.shape[:-2], num_rows, self.right.shape[-1])
        return K, None if self.is_rbf else torch.empty_like(K)

    def write(self, rows: slice, K: Tensor, slope: Tensor | None) -> None:
        """Write some rows of K and their slope."""
        torch.matmul(self.left[..., rows, :], self.right, out=K)
        if slope is None:
            K.exp_()
            return
        ρ, by_s = matern(K.clamp_(min=0.0), self.nu)
        scale = self.scale if self.scale.shape[-2] == 1 else self.scale[..., rows, :]
        torch.mul(ρ, scale, out=K)
        torch.mul(by_s, scale, out=slope)


def row_chunks(a: Tensor, width: int, numbers: int = _CHUNK_NUMBERS) -> list[slice]:
    """Slices of equal length over the rows of a, each of `width` numbers, that hold at most `numbers` together.

    One slice of a batch, and on a device where launching is dear.
    """
    most, n = max(_MIN_CHUNK_ROWS, numbers // width), a.shape[-2]
    count = math.ceil(n / most) if a.device.type == "cpu" and a.dim() == 2 else 1
    size = math.ceil(n / max(count, 1))
    return [slice(begin, min(begin + size, n)) for begin in range(0, n, max(size, 1))]


def longest(chunks: list[slice]) -> int:
    """Rows of the longest of some chunks, which is the first."""
    return chunks[0].stop if chunks else 0


class _PairsGradient:
    """Sums over chunks of rows that the gradients for a, b and σ² are made of."""

    def __init__(self, pairs: _Pairs):
        self.pairs, b = pairs, pairs.b
        (*q, m, d), n = b.shape, pairs.a.shape[-2]
        # Thin factors lie as their products run fastest: a by rows, b by columns.
        self.b1 = torch.cat([b.mT, b.new_ones(*q, 1, m)], -2).mT
        self.rows, self.columns = b.new_empty(*q, n, d + 1), b.new_zeros(*q, d + 2, m)
        self.by_row = None if pairs.is_rbf else b.new_empty(*q, n)

    def add(self, chunk: slice, W: Tensor, K: Tensor, slope: Tensor | None) -> None:
        """Take in ∂/∂K of some rows, which is overwritten."""
        if self.by_row is not None:
            torch.sum(W * K, -1, out=self.by_row[..., chunk])
        W.mul_(K if slope is None else slope)
        torch.matmul(W, self.b1, out=self.rows[..., chunk, :])
        left = self.pairs.left[..., chunk, :].mT
        if W.dim() == 2:
            self.columns.addmm_(left, W)
        else:
            self.columns.add_(left @ W)

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients for a, b, σ² and log w, once all rows are in."""
        pairs, rows, columns = self.pairs, self.rows, self.columns
        by_row, factor = (rows[..., -1], -1.0) if self.by_row is None else (self.by_row, 2.0)
        # ∂K/∂s = −K/2 for the RBF and the slope for the others; ∂s/∂a = 2 (a − b)
        by_a = factor * (rows[..., -1:] * pairs.a - rows[..., :-1])
        by_b = factor * (columns[..., -1:, :].mT * pairs.b - columns[..., :-2, :].mT)
        return by_a, by_b, by_row.sum(-1) / pairs.outputscale, by_row


class CovarianceRows:
    """K = k(a, b), a chunk of rows at a time, with Kuu = k(b, b), and the way back from gradients of both.

    Who visits every chunk and hands over its gradient there and then never holds the gradient of K as a whole, nor K
    unless it is to be kept for another visit. A kernel that is not one of ours is computed whole all the same, since
    its gradient is left to autograd.

    Parameters
    ----------
    kernel
        k, or a batch of kernels, all of whose rows are one chunk.
    a, b
        Points. K is in the dtype of a, Kuu in that of b.
    log_weight
        Logarithms of weights that rows of K are multiplied by.
    keep
        Whether rows stay in memory once they are computed.

    Attributes
    ----------
    Kuu
        k(b, b), a constant.
    inputs
        What K and Kuu depend on, with a graph, in the order of `gradients`.
    """

    inputs: tuple[Tensor, ...]

    def __init__(
        self,
        kernel: Kernel,
        a: Float[Tensor, "*#q b e"],
        b: Float[Tensor, "*#q m e"],
        log_weight: Float[Tensor, "*q b"] | None = None,
        keep: bool = False,
    ):
        self.nu, self.dtype, self._keep = smoothness(kernel) if is_fused(kernel) else None, a.dtype, keep
        self._kept: tuple[Tensor, Tensor | None] | None = None
        a = a.expand(*b.shape[:-2], *a.shape[-2:])
        self.chunks = row_chunks(a, b.shape[-2], _CHUNK_NUMBERS if keep else _VISIT_NUMBERS)
        if self.nu is None:
            K, Kuu = cross_covariance(kernel, a, b.to(a.dtype)), cross_covariance(kernel, b, b)
            self.inputs = (K if log_weight is None else K * log_weight.exp().to(a.dtype).unsqueeze(-1), Kuu)
            self.Kuu, self._kept = Kuu.detach(), (self.inputs[0].detach(), None)
            return
        a, b, outputscale = _scaled(kernel, a, b)
        self.inputs = (a, b, outputscale) if log_weight is None else (a, b, outputscale, log_weight)
        self._pairs, b = self._pairs_of(slice(None)), b.detach()
        self._among = _Pairs(b, b, outputscale.detach(), self.nu)
        self.Kuu, self._among_slope = self._among.covariance()

    def room(self, dtype: torch.dtype) -> Float[Tensor, "*q k m"]:
        """Memory for the rows of the longest chunk that is visited."""
        *batch, _, m = self.Kuu.shape
        return self.Kuu.new_empty(*batch, longest(self.chunks), m, dtype=dtype)

    def __iter__(self) -> Iterator[tuple[slice, Float[Tensor, "*q k m"]]]:
        """Chunks of rows of K, which are there until the next one comes."""
        chunks = row_chunks(self.inputs[0], self.Kuu.shape[-1], _KEPT_NUMBERS) if self._keep else self.chunks
        for chunk, K, _ in self._walk(chunks):
            yield chunk, K

    @torch.no_grad()
    def visit(self, function: Callable[[slice, Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Call a function with every chunk and its rows of K, which returns their gradient, to be overwritten.

        Returns the part of the gradients for `inputs` that goes through K.
        """
        if self.nu is None:
            gradient = torch.empty_like(self.inputs[0])
            for chunk, K, _ in self._walk(self.chunks):
                gradient[..., chunk, :] = function(chunk, K)
            return (gradient,)
        sums = _PairsGradient(self._pairs)
        for chunk, K, slope in self._walk(self.chunks):
            sums.add(chunk, function(chunk, K).to(K.dtype), K, slope)
        return sums.result()

    @torch.no_grad()
    def gradients(self, by_K: tuple[Tensor, ...], by_Kuu: Float[Tensor, "*q m m"]) -> tuple[Tensor, ...]:
        """Gradients for `inputs` from what `visit` returned and the gradient of Kuu, which is overwritten."""
        if self.nu is None:
            return *by_K, by_Kuu
        sums = _PairsGradient(self._among)
        sums.add(slice(None), by_Kuu, self.Kuu, self._among_slope)
        left, right, of_scale, _ = sums.result()
        by_a, by_b, by_scale, by_weight = by_K
        known = by_a, left.add_(right).add_(by_b), of_scale + by_scale, by_weight
        return known[: len(self.inputs)]

    def at(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "k m"]:
        """Some rows of K."""
        if self.nu is None:
            return self.inputs[0].detach()[rows]
        return self._pairs_of(rows).covariance()[0]

    def _pairs_of(self, rows: slice | Tensor) -> _Pairs:
        """Some rows of a, paired with b, as constants."""
        a, b, outputscale, *weight = (part.detach().to(self.dtype) for part in self.inputs)
        assert self.nu is not None
        return _Pairs(a[..., rows, :], b, outputscale, self.nu, *(part[..., rows] for part in weight))

    def _walk(self, chunks: list[slice]) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Chunks, their rows of K and slopes.

        All chunks have their turn in one piece of memory unless they are kept: fresh memory is slow to touch.
        """
        if self._kept is not None:
            K, slope = self._kept
            for chunk in chunks:
                yield chunk, K[..., chunk, :], None if slope is None else slope[..., chunk, :]
            return
        K, slope = self._pairs.room(self._pairs.a.shape[-2] if self._keep else longest(chunks))
        for chunk in chunks:
            at = chunk if self._keep else slice(chunk.stop - chunk.start)
            rows, of_rows = K[..., at, :], None if slope is None else slope[..., at, :]
            self._pairs.write(chunk, rows, of_rows)
            yield chunk, rows, of_rows
        if self._keep:
            self._kept = K, slope


def matern(s: Float[Tensor, "*s"], nu: float) -> tuple[Float[Tensor, "*s"], Float[Tensor, "*s"]]:
    """Matern correlation ρ and its slope dρ/ds at squared distances s."""
    c = math.sqrt(2.0 * nu)
    if nu == 0.5:
        # Where s is no more than rounding error the points coincide, and the kink there has no slope. Dividing by such
        # an r would multiply the rounding errors of the backward by it.
        apart = s > 10.0 * torch.finfo(s.dtype).eps
        r = torch.where(apart, s, 0.0).sqrt()
        decay = torch.exp(-r)
        return decay, torch.where(apart, -0.5 * decay / r, 0.0)
    r = s.sqrt()
    decay = torch.exp(-c * r)
    if nu == 1.5:
        # ρ = (1 + c r) e^(−c r),  dρ/ds = −(c²/2) e^(−c r)
        return (1.0 + c * r) * decay, -0.5 * c**2 * decay
    # ρ = (1 + c r + c² s/3) e^(−c r),  dρ/ds = −(c²/6)(1 + c r) e^(−c r)
    return (1.0 + c * r + c**2 / 3.0 * s) * decay, -(c**2) / 6.0 * (1.0 + c * r) * decay
