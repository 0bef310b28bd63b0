"""Base kernels on the embedding space.

Every kernel is a GPyTorch kernel, which holds the parameters and their constraints. The scaled ARD-RBF and Matern
kernels are evaluated by one fused function with a closed-form backward; any other kernel by GPyTorch itself.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.errors import SettingError
from manygp.linalg import add_gram, from_lower, projected, unwhitened, whitened

__all__ = [
    "KERNELS",
    "CovarianceRows",
    "cross_covariance",
    "cross_gram",
    "is_fused",
    "kernel_diagonal",
    "make_kernel",
    "rescale_kernel",
]

KERNELS = ("rbf", "matern12", "matern32", "matern52")
# Numbers of a covariance matrix, and rows at least, that are worked on together.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 250_000, 512
# The same for visitors who do more with every chunk.
_VISIT_NUMBERS = 1_000_000
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
    # One number and one row: a batch of kernels has more axes.
    return kernel.raw_outputscale.dim() == 0 and base.raw_lengthscale.dim() == 2


def rescale_kernel(kernel: Kernel, lengthscale: Float[Tensor, " e"], outputscale: float) -> None:
    """Set the lengthscales and the output scale of a named kernel; leave any other kernel as it is."""
    if is_fused(kernel):
        kernel.base_kernel.lengthscale = lengthscale
        kernel.outputscale = outputscale


def cross_covariance(kernel: Kernel, a: Float[Tensor, "b e"], b: Float[Tensor, "m e"]) -> Float[Tensor, "b m"]:
    """k(a, b) for all pairs, in the dtype of a and b."""
    if not is_fused(kernel):
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return kernel(a.double(), b.double()).to_dense().to(a.dtype)
    return _Stationary.apply(*_scaled(kernel, a, b), _smoothness(kernel))


def cross_gram(
    kernel: Kernel,
    a: Float[Tensor, "b e"],
    b: Float[Tensor, "m e"],
    y: Float[Tensor, " b"],
    Linv: Float[Tensor, "m m"],
    is_stiff: bool,
    log_weight: Float[Tensor, " b"] | None = None,
) -> tuple[Float[Tensor, "m m"], Float[Tensor, " m"]]:
    """AAᵀ = L⁻¹ KᵀK L⁻ᵀ and Ay = L⁻¹ Kᵀy with K = k(a, b), in float64; L⁻¹ counts as a constant.

    Rows of K are multiplied by weights where there are some; those of y are not.

    One B x M x M product forward and one backward, or half a product more where the problem `is_stiff`: KᵀK squares the
    condition number, so that small eigenvalues of Kuu turn its rounding errors into errors of the precision. There K is
    projected by L⁻ᵀ first. Sums over cells are float64 in any case, so that AAᵀ is a Gram matrix to the last digit.
    """
    if not is_fused(kernel):
        K = cross_covariance(kernel, a, b)
        return _Gram.apply(K if log_weight is None else K * log_weight.exp().unsqueeze(-1), y, Linv, is_stiff)
    return _StationaryGram.apply(*_scaled(kernel, a, b), log_weight, y, Linv, _smoothness(kernel), is_stiff)


def kernel_diagonal(kernel: Kernel, a: Float[Tensor, "b e"]) -> Float[Tensor, "b"]:
    """k(aᵢ, aᵢ) for every row of a."""
    if not is_fused(kernel):
        return kernel(a.double(), diag=True).to(a.dtype)
    return kernel.outputscale.to(a.dtype).expand(a.shape[0])


def _scaled(kernel: Kernel, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a and b in lengthscales, and the output scale, in the dtype of a."""
    lengthscale = kernel.base_kernel.lengthscale.to(a.dtype)
    return a / lengthscale, b / lengthscale, kernel.outputscale.to(a.dtype)


def _smoothness(kernel: Kernel) -> float:
    return float(getattr(kernel.base_kernel, "nu", math.inf))


class _Stationary(torch.autograd.Function):
    """σ² ρ(s) with s the squared distances of scaled points."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, outputscale: Tensor, nu: float) -> Tensor:
        K, slope = _stationary(a, b, outputscale, nu)
        ctx.save_for_backward(a, b, outputscale, K, slope)
        return K

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        a, b, outputscale, K, slope = ctx.saved_tensors
        return *_stationary_backward(lambda rows, out: out.copy_(G[rows]), a, b, outputscale, K, slope)[:3], None


class _StationaryGram(torch.autograd.Function):
    """AAᵀ and Ay of a stationary K in one go, so that the B x M array is passed over as seldom as can be."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        outputscale: Tensor,
        log_weight: Tensor | None,
        y: Tensor,
        Linv: Tensor,
        nu: float,
        is_stiff: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = _StationaryRows(a, b, outputscale, log_weight, nu)
        K, slope = rows.room()
        AA, Ay = _gram(K, y, Linv, is_stiff, lambda chunk: rows.write(chunk, K, slope))
        ctx.save_for_backward(a, b, outputscale, y, K, slope, Linv)
        return AA, Ay

    @staticmethod
    def backward(ctx: Any, G: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
        a, b, outputscale, y, K, slope, Linv = ctx.saved_tensors
        W, w = _gram_backward(G, g, Linv, K.dtype)

        def grad_K(rows: slice, out: Tensor) -> None:
            # ∂/∂K = K L⁻ᵀ (G + Gᵀ) L⁻¹ + y gᵀ L⁻¹
            torch.mm(K[rows], W, out=out).addr_(y[rows], w)

        grad_y = K @ w if ctx.needs_input_grad[4] else None
        *grads, by_row = _stationary_backward(grad_K, a, b, outputscale, K, slope)
        return *grads, by_row if ctx.needs_input_grad[3] else None, grad_y, None, None, None


class _StationaryRows:
    """K = w σ² ρ(s), and its slope ∂K/∂s where that is not K itself up to a factor, some rows at a time.

    ρ(s) = exp(−s/2) for the RBF (nu = ∞) and the Matern profile in r = √s otherwise; weights w belong to rows.
    """

    def __init__(self, a: Tensor, b: Tensor, outputscale: Tensor, log_weight: Tensor | None, nu: float):
        # Distances do not change with the origin, but the rounding errors of |a|² + |b|² − 2 a·b do.
        center = b.mean(0)
        a, b = a - center, b - center
        one_a, one_b = a.new_ones(len(a), 1), b.new_ones(len(b), 1)
        a2, b2 = (a * a).sum(-1, keepdim=True), (b * b).sum(-1, keepdim=True)
        self.nu, self.is_rbf = nu, nu == math.inf
        self.scale = outputscale.expand(len(a), 1)
        if self.is_rbf:
            # log K = a·b − |a|²/2 + log w − |b|²/2 + log σ², by one product
            of_a = -0.5 * a2 if log_weight is None else log_weight.unsqueeze(-1) - 0.5 * a2
            self.left, right = torch.cat([a, of_a, one_a], -1), torch.cat([b, one_b, outputscale.log() - 0.5 * b2], -1)
        else:
            self.left, right = torch.cat([-2.0 * a, a2, one_a], -1), torch.cat([b, one_b, b2], -1)
            if log_weight is not None:
                self.scale = self.scale * log_weight.exp().unsqueeze(-1)
        self.right = right.T

    def room(self, num_rows: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Memory for K and its slope, at all rows by default."""
        K = self.left.new_empty(len(self.left) if num_rows is None else num_rows, self.right.shape[1])
        return K, None if self.is_rbf else torch.empty_like(K)

    def write(self, rows: slice, K: Tensor, slope: Tensor | None, at: slice | None = None) -> None:
        """Write some rows to their places in K and its slope, or to another place."""
        at = rows if at is None else at
        torch.mm(self.left[rows], self.right, out=K[at])
        if self.is_rbf:
            K[at].exp_()
            return
        assert slope is not None
        ρ, by_s = _matern(K[at].clamp_(min=0.0), self.nu)
        torch.mul(ρ, self.scale[rows], out=K[at])
        torch.mul(by_s, self.scale[rows], out=slope[at])


def _stationary(a: Tensor, b: Tensor, outputscale: Tensor, nu: float) -> tuple[Tensor, Tensor | None]:
    """K and its slope, whole."""
    rows = _StationaryRows(a, b, outputscale, None, nu)
    K, slope = rows.room()
    rows.write(slice(None), K, slope)
    return K, slope


def _stationary_backward(
    grad_K: Callable[[slice, Tensor], object],
    a: Tensor,
    b: Tensor,
    outputscale: Tensor,
    K: Tensor,
    slope: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients for a, b, σ² and log w from `grad_K`, which writes some rows of ∂/∂K where it is told to.

    By chunks of rows in one piece of memory, because an array that is passed over several times should stay in the
    cache, and because fresh memory is slow to touch.
    """
    gradient, chunks = _StationaryGradient(a, b), row_chunks(a, len(b))
    room = K.new_empty(longest(chunks), len(b))
    for chunk in chunks:
        W = room[: chunk.stop - chunk.start]
        grad_K(chunk, W)
        gradient.add(chunk, W, K[chunk], None if slope is None else slope[chunk])
    return gradient.result(outputscale)


def row_chunks(a: Tensor, width: int, numbers: int = _CHUNK_NUMBERS) -> list[slice]:
    """Slices of equal length over the rows of a, each of `width` numbers, that hold at most `numbers` together.

    One slice on a device where launching is dear.
    """
    most = max(_MIN_CHUNK_ROWS, numbers // width)
    count = math.ceil(len(a) / most) if a.device.type == "cpu" else 1
    size = math.ceil(len(a) / max(count, 1))
    return [slice(begin, min(begin + size, len(a))) for begin in range(0, len(a), max(size, 1))]


def longest(chunks: list[slice]) -> int:
    """Rows of the longest of some chunks, which is the first."""
    return chunks[0].stop if chunks else 0


class _StationaryGradient:
    """Sums over chunks of rows that the gradients for a, b and σ² are made of."""

    def __init__(self, a: Tensor, b: Tensor):
        # Thin factors lie as their products run fastest: a by rows, b by columns.
        self.a1, self.b1 = torch.cat([a, a.new_ones(len(a), 1)], -1), torch.cat([b.T, b.new_ones(1, len(b))]).T
        self.rows, self.columns = torch.empty_like(self.a1), b.new_zeros(b.shape[1] + 1, len(b))
        self.by_row, self.factor = a.new_empty(len(a)), -1.0

    def add(self, chunk: slice, W: Tensor, K: Tensor, slope: Tensor | None) -> None:
        """Take in ∂/∂K of some rows, which is overwritten."""
        if slope is None:
            W.mul_(K)
        else:
            self.factor = 2.0
            torch.sum(W * K, -1, out=self.by_row[chunk])
            W.mul_(slope)
        torch.mm(W, self.b1, out=self.rows[chunk])
        self.columns.addmm_(self.a1[chunk].T, W)

    def result(self, outputscale: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients, and Σ_m K ∂/∂K of every row, once all rows are in."""
        a, b, rows, columns = self.a1[:, :-1], self.b1[:, :-1], self.rows, self.columns
        by_row = rows[:, -1] if self.factor < 0.0 else self.by_row
        # ∂K/∂s = −K/2 for the RBF and the slope for the others; ∂s/∂a = 2 (a − b)
        grad_a = self.factor * (rows[:, -1:] * a - rows[:, :-1])
        grad_b = self.factor * (columns[-1:].T * b - columns[:-1].T)
        return grad_a, grad_b, by_row.sum() / outputscale, by_row


class CovarianceRows:
    """K = k(a, b), a chunk of rows at a time, and the way back from the gradient of the rows.

    Who visits every chunk once and hands over its gradient there and then never holds K, or its gradient, as a whole.
    A kernel that is not one of ours is computed whole all the same, since its gradient is left to autograd.
    """

    def __init__(self, kernel: Kernel, a: Float[Tensor, "b e"], b: Float[Tensor, "m e"]):
        self.nu = _smoothness(kernel) if is_fused(kernel) else None
        #: What K depends on, with a graph, in the order of `gradients`.
        self.inputs: tuple[Tensor, ...] = (
            (cross_covariance(kernel, a, b),) if self.nu is None else _scaled(kernel, a, b)
        )
        self.chunks = row_chunks(a, len(b), _VISIT_NUMBERS)
        self._width = len(b)

    def room(self, dtype: torch.dtype) -> Float[Tensor, "k m"]:
        """Memory for the rows of the longest chunk."""
        return self.inputs[0].new_empty(longest(self.chunks), self._width, dtype=dtype)

    @torch.no_grad()
    def visit(self, function: Callable[[slice, Tensor], Tensor | None]) -> tuple[Tensor, ...]:
        """Call a function with every chunk and its rows of K; it returns their gradient, or None if there is none.

        Returns the gradients for `inputs`. All chunks have their turn in one piece of memory: fresh memory is slow to
        touch.
        """
        if self.nu is None:
            (K,) = self.inputs
            gradient = torch.empty_like(K)
            for chunk in self.chunks:
                G = function(chunk, K[chunk])
                gradient[chunk] = K.new_zeros(()) if G is None else G
            return (gradient,)
        a, b, outputscale = self.inputs
        sums, rows = _StationaryGradient(a, b), _StationaryRows(a, b, outputscale, None, self.nu)
        K, slope = rows.room(longest(self.chunks))
        for chunk in self.chunks:
            here = slice(chunk.stop - chunk.start)
            rows.write(chunk, K, slope, here)
            G = function(chunk, K[here])
            if G is not None:
                sums.add(chunk, G.to(K.dtype), K[here], None if slope is None else slope[here])
        return sums.result(outputscale)[:3]

    @torch.no_grad()
    def at(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "k m"]:
        """Some rows of K."""
        if self.nu is None:
            return self.inputs[0][rows]
        a, b, outputscale = self.inputs
        return _stationary(a[rows], b, outputscale, self.nu)[0]


def _matern(s: Tensor, nu: float) -> tuple[Tensor, Tensor]:
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


class _Gram(torch.autograd.Function):
    """AAᵀ and Ay of any K."""

    @staticmethod
    def forward(ctx: Any, K: Tensor, y: Tensor, Linv: Tensor, is_stiff: bool) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(K, y, Linv)
        return _gram(K, y, Linv, is_stiff)

    @staticmethod
    def backward(ctx: Any, G: Tensor, g: Tensor) -> tuple[Tensor | None, ...]:
        K, y, Linv = ctx.saved_tensors
        W, w = _gram_backward(G, g, Linv, K.dtype)
        return (K @ W).addr_(y, w), K @ w if ctx.needs_input_grad[1] else None, None, None


def _gram(
    K: Tensor, y: Tensor, Linv: Tensor, is_stiff: bool, fill: Callable[[slice], object] | None = None
) -> tuple[Tensor, Tensor]:
    """AAᵀ and Ay by chunks of rows; `fill` computes those of K just before they are needed, and in the cache."""
    KK, Ky, chunks = torch.zeros_like(Linv), Linv.new_zeros(len(Linv)), row_chunks(K, len(Linv))
    narrow, room = Linv.to(K.dtype), K.new_empty(longest(chunks) if is_stiff else 0, len(Linv))
    for chunk in chunks:
        if fill is not None:
            fill(chunk)
        rows = K[chunk]
        if is_stiff:
            rows = projected(rows, narrow, room[: len(rows)])
        rows = rows.to(Linv.dtype)
        add_gram(KK, rows)
        Ky.addmv_(rows.T, y[chunk].to(Linv.dtype))
    KK = from_lower(KK)
    return (KK, Ky) if is_stiff else (whitened(Linv, KK), Linv @ Ky)


def _gram_backward(G: Tensor, g: Tensor, Linv: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """L⁻ᵀ (G + Gᵀ) L⁻¹ and L⁻ᵀ g, what the gradient of K is made of."""
    return unwhitened(Linv, G + G.T).to(dtype), (Linv.T @ g).to(dtype)
