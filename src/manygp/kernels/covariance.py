"""Covariances of points under any kernel: whole, or some rows at a time with the way back from their gradients."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import Kernel
from jaxtyping import Float, Int
from torch import Tensor

from manygp.kernels.named import LatentKernel, is_fused, smoothness
from manygp.kernels.pairs import LatentPairs, Pairs, make_pairs, matern

# Numbers of a covariance matrix, and rows at least, that are worked on together.
_CHUNK_NUMBERS, _MIN_CHUNK_ROWS = 250_000, 512
# The same for visitors who do more with every chunk, and for rows that are kept.
_VISIT_NUMBERS, _KEPT_NUMBERS = 1_000_000, 600_000


# Share of the largest logarithm up to which exponents go.
_MOST_EXPONENT = 0.85


def cross_covariance(
    kernel: Kernel, a: Float[Tensor, "*#q b e"], b: Float[Tensor, "*#q m e"]
) -> Float[Tensor, "*q b m"]:
    """k(a, b) for all pairs, in the dtype of a and b; of every kernel, if it has a batch shape."""
    if not is_fused(kernel):
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return kernel(a.double(), b.double()).to_dense().to(a.dtype)
    a, b, outputscale, *shares = _scaled(kernel, a, b)
    share = shares[0] if shares else None
    return stationary(a, b, outputscale, smoothness(kernel), share, _num_latents(kernel))


def plain_covariance(
    kernel: Kernel, a: Float[Tensor, "*#q b e"], b: Float[Tensor, "*#q m e"]
) -> Float[Tensor, "*q b m"]:
    """k(a, b) for all pairs by elementary operations, for gradients of gradients."""
    if not is_fused(kernel):
        return cross_covariance(kernel, a, b)
    (a, b, outputscale, *share), split = _scaled(kernel, a, b), a.shape[-1] - _num_latents(kernel)
    x, other = a[..., :split], b[..., :split]
    s, nu = (x.unsqueeze(-2) - other.unsqueeze(-3)).square().sum(-1), smoothness(kernel)
    # The root in a Matern kernel has no slope at 0.
    K = outputscale[..., None, None] * (torch.exp(-0.5 * s) if math.isinf(nu) else matern(s.clamp(min=1e-24), nu)[0])
    if not share:
        return K
    # σ² ρ φ(h) φ(h') (c + exp(h·h') − 1)
    h, h2 = a[..., split:], b[..., split:]
    φ = torch.exp(-0.5 * (h.square().sum(-1).unsqueeze(-1) + h2.square().sum(-1).unsqueeze(-2)))
    return K * φ * (share[0][..., None, None] + torch.expm1(h @ h2.mT))


def kernel_diagonal(kernel: Kernel, a: Float[Tensor, "*#q b e"]) -> Float[Tensor, "*q b"]:
    """k(aᵢ, aᵢ) for every row of a; of every kernel, if it has a batch shape."""
    if not is_fused(kernel):
        return kernel(a.double(), diag=True).to(a.dtype)
    outputscale = kernel.outputscale.to(a.dtype)
    if isinstance(kernel, LatentKernel):
        h = (a / kernel.base_kernel.lengthscale.to(a.dtype))[..., -kernel.num_latents :]
        s = h.square().sum(-1)
        # φ² (c + exp(|h|²) − 1) = c φ² + 1 − φ², φ² = exp(−|h|²)
        share = kernel.share.to(a.dtype).unsqueeze(-1)
        return outputscale.unsqueeze(-1) * (share * torch.exp(-s) - torch.expm1(-s))
    return outputscale.unsqueeze(-1).expand(*torch.broadcast_shapes(outputscale.shape, a.shape[:-2]), a.shape[-2])


def _scaled(kernel: Kernel, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """a and b in lengthscales, each in its dtype, the output scale in that of b, and c if the kernel has it."""
    lengthscale = kernel.base_kernel.lengthscale.to(b.dtype)
    a, b, outputscale = a / lengthscale.to(a.dtype), b / lengthscale, kernel.outputscale.to(b.dtype)
    if not isinstance(kernel, LatentKernel):
        return a, b, outputscale
    # exp(h·h') has to be a number in the dtype of K.
    farthest = _MOST_EXPONENT * math.log(torch.finfo(a.dtype).max)
    a, b = (_within(points, kernel.num_latents, farthest) for points in (a, b))
    return a, b, outputscale, kernel.share.to(b.dtype)


def _within(points: Float[Tensor, "*q n e"], num_latents: int, farthest: float) -> Float[Tensor, "*q n e"]:
    """Points whose latent vectors are drawn in to where |h|² is `farthest`, dozens of lengthscales away."""
    x, h = points[..., :-num_latents], points[..., -num_latents:]
    factor = (farthest / h.square().sum(-1, keepdim=True).clamp(min=farthest)).sqrt()
    return torch.cat([x, factor * h], -1)


def _num_latents(kernel: Kernel) -> int:
    return kernel.num_latents if isinstance(kernel, LatentKernel) else 0


def stationary(
    a: Float[Tensor, "*#q n d"],
    b: Float[Tensor, "*#q m d"],
    outputscale: Float[Tensor, "*#q"],
    nu: float,
    share: Float[Tensor, "*#q"] | None = None,
    num_latents: int = 0,
) -> Float[Tensor, "*q n m"]:
    """σ² ρ(|a − b|²) of points in lengthscales, for every process of a batch: RBF with nu = ∞, or Matern.

    With `share`, the last `num_latents` dimensions are latent vectors, see `LatentKernel`.
    """
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2], outputscale.shape)
    a, b = a.expand(*shape, *a.shape[-2:]), b.expand(*shape, *b.shape[-2:])
    share = None if share is None else share.expand(shape)
    return _Stationary.apply(a, b, outputscale.expand(shape), share, nu, num_latents)


class _Stationary(torch.autograd.Function):
    """Covariances of scaled points in closed form."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, outputscale: Tensor, share: Tensor | None, nu: float, num_latents: int
    ) -> Tensor:
        ctx.pairs = make_pairs(a, b, outputscale, nu, share, num_latents)
        K, parts = _covariance(ctx.pairs)
        ctx.save_for_backward(K, *parts)
        return K

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        K, *parts = ctx.saved_tensors
        gradient = ctx.pairs.gradient()
        for rows in row_chunks(K, K.shape[-1]):
            gradient.add(rows, G[..., rows, :].clone(), K[..., rows, :], _some(parts, rows))
        by_a, by_b, by_scale, _, by_share = gradient.result()
        return by_a, by_b, by_scale, by_share if isinstance(ctx.pairs, LatentPairs) else None, None, None


class CovarianceAmong:
    """k among some points, any of them with any others, by parts that are computed once; not for gradients.

    Parameters
    ----------
    kernel
        k, without a batch shape.
    points
        The points.
    """

    @torch.no_grad()
    def __init__(self, kernel: Kernel, points: Float[Tensor, "n e"]):
        self.kernel, self.points, self._pairs = kernel, points, None
        if is_fused(kernel):
            a, b, outputscale, *share = _scaled(kernel, points, points)
            of_latents = share[0] if share else None
            self._pairs = make_pairs(a, b, outputscale, smoothness(kernel), of_latents, _num_latents(kernel))

    @torch.no_grad()
    def __call__(self, rows: Int[Tensor, " r"], columns: Int[Tensor, " c"]) -> Float[Tensor, "r c"]:
        """Covariances of some points with some others."""
        if self._pairs is None:
            return cross_covariance(self.kernel, self.points[rows], self.points[columns])
        K = self.points.new_empty(len(rows), len(columns))
        self._pairs.write(rows, K, tuple(torch.empty_like(K) for _ in range(self._pairs.num_parts)), columns)
        return K


def _covariance(pairs: Pairs | LatentPairs) -> tuple[Tensor, tuple[Tensor, ...]]:
    """K and its parts, whole."""
    K, parts = _room(pairs, pairs.left.shape[-2])
    pairs.write(slice(None), K, parts)
    return K, parts


def _room(pairs: Pairs | LatentPairs, num_rows: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Memory for some rows of K and their parts."""
    K = pairs.left.new_empty(*pairs.left.shape[:-2], num_rows, pairs.right.shape[-1])
    return K, tuple(torch.empty_like(K) for _ in range(pairs.num_parts))


def _some(parts: Sequence[Tensor], rows: slice) -> tuple[Tensor, ...]:
    return tuple(part[..., rows, :] for part in parts)


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
    _kept: tuple[Tensor, tuple[Tensor, ...]] | None

    def __init__(
        self,
        kernel: Kernel,
        a: Float[Tensor, "*#q b e"],
        b: Float[Tensor, "*#q m e"],
        log_weight: Float[Tensor, "*q b"] | None = None,
        keep: bool = False,
    ):
        self.nu, self.dtype, self._keep = smoothness(kernel) if is_fused(kernel) else None, a.dtype, keep
        self._num_latents, self._kept = _num_latents(kernel), None
        a = a.expand(*b.shape[:-2], *a.shape[-2:])
        self.chunks = row_chunks(a, b.shape[-2], _CHUNK_NUMBERS if keep else _VISIT_NUMBERS)
        if self.nu is None:
            K, Kuu = cross_covariance(kernel, a, b.to(a.dtype)), cross_covariance(kernel, b, b)
            self.inputs = (K if log_weight is None else K * log_weight.exp().to(a.dtype).unsqueeze(-1), Kuu)
            self.Kuu, self._kept = Kuu.detach(), (self.inputs[0].detach(), ())
            return
        scaled = _scaled(kernel, a, b)
        self.inputs = scaled if log_weight is None else (*scaled, log_weight)
        self._pairs, (_, b, *scales) = self._pairs_of(slice(None)), (part.detach() for part in scaled)
        self._among = self._pairs_among(b, b, scales)
        self.Kuu, self._among_parts = _covariance(self._among)

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
        sums = self._pairs.gradient()
        for chunk, K, parts in self._walk(self.chunks):
            sums.add(chunk, function(chunk, K).to(K.dtype), K, parts)
        return sums.result()

    @torch.no_grad()
    def gradients(self, by_K: tuple[Tensor, ...], by_Kuu: Float[Tensor, "*q m m"]) -> tuple[Tensor, ...]:
        """Gradients for `inputs` from what `visit` returned and the gradient of Kuu, which is overwritten."""
        if self.nu is None:
            return *by_K, by_Kuu
        sums = self._among.gradient()
        sums.add(slice(None), by_Kuu, self.Kuu, self._among_parts)
        left, right, of_scale, _, of_share = sums.result()
        by_a, by_b, by_scale, by_weight, by_share = by_K
        share = (of_share + by_share,) if self._num_latents else ()
        known = by_a, left.add_(right).add_(by_b), of_scale + by_scale, *share, by_weight
        return known[: len(self.inputs)]

    def at(self, rows: Int[Tensor, " k"]) -> Float[Tensor, "k m"]:
        """Some rows of K."""
        if self.nu is None:
            return self.inputs[0].detach()[rows]
        return _covariance(self._pairs_of(rows))[0]

    def _pairs_of(self, rows: slice | Tensor) -> Pairs | LatentPairs:
        """Some rows of a, paired with b, as constants."""
        a, b, *others = (part.detach().to(self.dtype) for part in self.inputs)
        num_scales = 2 if self._num_latents else 1
        scales, weight = others[:num_scales], others[num_scales:]
        return self._pairs_among(a[..., rows, :], b, scales, weight[0][..., rows] if weight else None)

    def _pairs_among(
        self, a: Tensor, b: Tensor, scales: list[Tensor], log_weight: Tensor | None = None
    ) -> Pairs | LatentPairs:
        assert self.nu is not None
        share = scales[1] if self._num_latents else None
        return make_pairs(a, b, scales[0], self.nu, share, self._num_latents, log_weight=log_weight)

    def _walk(self, chunks: list[slice]) -> Iterator[tuple[slice, Tensor, tuple[Tensor, ...]]]:
        """Chunks, their rows of K and its parts.

        All chunks have their turn in one piece of memory unless they are kept: fresh memory is slow to touch.
        """
        if self._kept is not None:
            K, parts = self._kept
            for chunk in chunks:
                yield chunk, K[..., chunk, :], _some(parts, chunk)
            return
        K, parts = _room(self._pairs, self._pairs.left.shape[-2] if self._keep else longest(chunks))
        for chunk in chunks:
            at = chunk if self._keep else slice(chunk.stop - chunk.start)
            rows, of_rows = K[..., at, :], _some(parts, at)
            self._pairs.write(chunk, rows, of_rows)
            yield chunk, rows, of_rows
        if self._keep:
            self._kept = K, parts
