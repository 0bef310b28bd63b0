"""Linear algebra of Gaussian variables: the only home of jitter."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manygp.errors import NumericalError

__all__ = [
    "add_gram",
    "add_jitter",
    "cholesky_pivots",
    "conjugate_gradients",
    "from_lower",
    "gaussian_kl",
    "gram",
    "lower_product",
    "matvec",
    "outer",
    "projected",
    "safe_cholesky",
    "sparse_matrix",
    "squared_norms",
    "sure_cholesky",
    "symmetrize",
    "triangular_gram",
    "triangular_inverse",
    "triangular_root",
    "unseen_cholesky",
    "unwhitened",
    "whitened",
    "with_gradients",
]

_MAX_RELATIVE_JITTER = 1e-2
# Jitters where nobody looks how much it takes. The least is what rounding may take from eigenvalues of a matrix of some
# hundred columns.
_SPARE_JITTERS = (1e-12, 1e-9, 1e-6, 1e-3)
# Columns of a block in blocked products: fewer where there would be few blocks. Least number of columns of a square
# matrix that is worth blocks: on a CPU, smaller products run at less than full speed.
_BLOCK, _LEAST_BLOCK, _FEW_BLOCKS, _WORTH_BLOCKS = 100, 40, 5, 400
# Rows for each column of a matrix that counts as tall.
_TALL = 4


def add_jitter(A: Float[Tensor, "*b m m"], jitter: float) -> Float[Tensor, "*b m m"]:
    """Return A + jitter · mean(diag A) · I, so that jitter means the same at every scale of A."""
    scale, raised = A.detach().diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True), A.clone()
    raised.diagonal(dim1=-2, dim2=-1).add_(jitter * scale)
    return raised


def safe_cholesky(A: Float[Tensor, "*b m m"], jitter: float = 0.0) -> Float[Tensor, "*b m m"]:
    """Lower Cholesky factor of A, with the relative jitter that is always added, or just as much as it takes.

    If the factorisation fails, jitter grows tenfold at a time from at least 1e-10 up to 1e-2; where that does not help,
    or A holds NaN or infinities, there is a NumericalError.
    """
    level = jitter
    while True:
        L, info = torch.linalg.cholesky_ex(add_jitter(A, level) if level else A)
        if not bool(info.any()):
            return L
        if not bool(torch.isfinite(A).all()):
            raise NumericalError(
                f"A covariance matrix of shape {tuple(A.shape)} holds NaN or infinite values: the optimisation has "
                "diverged; lower learning_rate or check the data for extreme values."
            )
        level = max(10 * level, 1e-10)
        # A jitter that is NaN has no end.
        if not level <= _MAX_RELATIVE_JITTER:
            raise NumericalError(
                f"A covariance matrix of shape {tuple(A.shape)} is not positive definite even with a relative jitter "
                f"of {_MAX_RELATIVE_JITTER}: use fewer inducing points or float64."
            )


def sure_cholesky(A: Float[Tensor, "*b m m"], jitter: float = 0.0) -> Float[Tensor, "*b m m"]:
    """`safe_cholesky` of A that is positive definite but for rounding, without a wait for its device."""
    return safe_cholesky(A, jitter) if A.device.type == "cpu" else unseen_cholesky(A, jitter)


def unseen_cholesky(A: Float[Tensor, "*b m m"], jitter: float = 0.0) -> Float[Tensor, "*b m m"]:
    """The same by factorisations with more and more jitter at once, which cost a device less than a question does.

    The first that exists is taken; where there is none, all is NaN.
    """
    levels = [jitter, *(level for level in _SPARE_JITTERS if level > jitter)]
    factors, info = torch.linalg.cholesky_ex(torch.stack([add_jitter(A, level) if level else A for level in levels]))
    L = torch.full_like(A, torch.nan)
    for factor, failed in zip(factors.flip(0), (info > 0).flip(0), strict=True):
        L = torch.where(failed[..., None, None], L, factor)
    return L


def triangular_inverse(L: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """L⁻¹ of a lower triangular L, by halves: products are faster than triangular solves."""
    m = L.shape[-1]
    if m < _WORTH_BLOCKS or L.dim() > 2:
        eye = torch.eye(m, dtype=L.dtype, device=L.device)
        return torch.linalg.solve_triangular(L, eye, upper=False)
    h = m // 2
    # [[A, 0], [B, C]]⁻¹ = [[A⁻¹, 0], [−C⁻¹ B A⁻¹, C⁻¹]]
    first, last = triangular_inverse(L[:h, :h]), triangular_inverse(L[h:, h:])
    inverse = L.new_zeros(m, m)
    inverse[:h, :h], inverse[h:, h:] = first, last
    inverse[h:, :h] = last @ (L[h:, :h] @ first).neg_()
    return inverse


def matvec(A: Float[Tensor, "*#b n m"], v: Float[Tensor, "*#b m"]) -> Float[Tensor, "*#b n"]:
    """A v."""
    return torch.mv(A, v) if A.dim() == 2 and v.dim() == 1 else (A @ v.unsqueeze(-1)).squeeze(-1)


def sparse_matrix(
    row: Int[Tensor, " k"], column: Int[Tensor, " k"], values: Float[Tensor, " k"], shape: tuple[int, int]
) -> Tensor:
    """A sparse matrix from its entries, which are added up where they fall together."""
    return torch.sparse_coo_tensor(torch.stack([row, column]), values, shape, check_invariants=False)


def gram(A: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b m m"]:
    """AᵀA, of which only half is computed."""
    return _by_rows(A, lambda rows, upto: A[..., rows].mT @ A[..., :upto])


def outer(a: Float[Tensor, "*b n"], b: Float[Tensor, "*b m"]) -> Float[Tensor, "*b n m"]:
    """a bᵀ."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def add_gram(total: Float[Tensor, "*b m m"], A: Float[Tensor, "*b n m"]) -> None:
    """Add AᵀA to the lower triangle of a sum; above it, numbers mean nothing."""
    if A.dim() > 2:
        total.add_(A.mT @ A)
        return
    m, threads = A.shape[-1], torch.get_num_threads() if A.device.type == "cpu" else 1
    # Of a tall A every thread takes a part: faster than all threads at every product.
    even = len(A) // threads * threads if len(A) >= _TALL * m else 0
    parts, rest = A[:even].view(threads, -1, m), A[even:]
    for rows, upto in _blocks(A):
        if even:
            total[rows, :upto] += torch.bmm(parts[..., rows].mT, parts[..., :upto]).sum(0)
        if len(rest):
            total[rows, :upto].addmm_(rest[:, rows].T, rest[:, :upto])


def from_lower(A: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """The symmetric matrix whose lower triangle is that of A."""
    return A.tril() + A.tril(-1).mT


def triangular_gram(L: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """LᵀL of a lower triangular L."""
    return _by_rows(L, lambda rows, upto: L[..., rows.start :, rows].mT @ L[..., rows.start :, :upto])


def projected(
    K: Float[Tensor, "*b n m"], Linv: Float[Tensor, "*b m m"], out: Float[Tensor, "*b n m"] | None = None
) -> Float[Tensor, "*b n m"]:
    """K L⁻ᵀ, in half of the time of a full product since L⁻¹ is lower triangular."""
    out = torch.empty_like(K) if out is None else out
    for columns, upto in _blocks(K):
        torch.matmul(K[..., :upto], Linv[..., columns, :upto].mT, out=out[..., columns])
    return out


def whitened(Linv: Float[Tensor, "*b m m"], S: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """L⁻¹ S L⁻ᵀ for symmetric S, in a third of the time of two full products since L⁻¹ is lower triangular."""
    T = _by_columns(Linv, lambda rows, upto: S[..., :upto] @ Linv[..., rows, :upto].mT)
    return _by_rows(Linv, lambda rows, upto: Linv[..., rows, :upto] @ T[..., :upto, :upto])


def unwhitened(Linv: Float[Tensor, "*b m m"], S: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """L⁻ᵀ S L⁻¹ for symmetric S, in a third of the time of two full products since L⁻¹ is lower triangular."""
    T = _by_columns(Linv, lambda rows, _: S[..., rows.start :] @ Linv[..., rows.start :, rows])
    return _by_rows(Linv, lambda rows, upto: Linv[..., rows.start :, rows].mT @ T[..., rows.start :, :upto])


def squared_norms(K: Float[Tensor, "n m"], R: Float[Tensor, "r m"]) -> Float[Tensor, " n"]:
    """|R kᵢ|² for every row of K and an upper triangular R, by half of a product."""
    total = K.new_zeros(len(K))
    for rows, _ in _blocks(K):
        part, factor = K[:, rows.start :], R[rows, rows.start :]
        # The same products, laid out as they run faster on a CPU.
        total += (factor @ part.T).square_().sum(0) if len(R) < _WORTH_BLOCKS else (part @ factor.T).square_().sum(-1)
    return total


def triangular_root(T: Float[Tensor, "r m"]) -> Float[Tensor, "r m"]:
    """Upper triangular R with RᵀR = TᵀT."""
    return torch.linalg.qr(T, mode="r").R


def lower_product(A: Float[Tensor, "*b m m"], B: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """The lower triangle of A B, and zeros above it."""
    product = torch.zeros_like(A)
    for rows, upto in _blocks(A):
        product[..., rows, :upto] = A[..., rows, :] @ B[..., :upto]
    return product.tril_()


def _blocks(A: Tensor) -> list[tuple[slice, int]]:
    """Slices of about equal length of the columns of A, and where each ends; one slice where launching is dear."""
    n, m = A.shape[-2:]
    is_worth = A.device.type == "cpu" and A.dim() == 2 and (m >= _WORTH_BLOCKS or n >= 2 * m)
    count = max(1, min(m // _LEAST_BLOCK, _FEW_BLOCKS), m // _BLOCK) if is_worth else 1
    edges = [i * m // count for i in range(count + 1)]
    return [(slice(start, stop), stop) for start, stop in itertools.pairwise(edges)]


def _by_rows(like: Tensor, product: Callable[[slice, int], Tensor]) -> Tensor:
    """A symmetric matrix from `product`, which computes a block of its rows up to the diagonal."""
    m, blocks = like.shape[-1], _blocks(like)
    if len(blocks) == 1:
        return product(*blocks[0])
    result = like.new_empty(m, m)
    for rows, upto in blocks:
        part = product(rows, upto)
        result[rows, :upto] = part
        result[: rows.start, rows] = part[:, : rows.start].T
    return result


def _by_columns(like: Tensor, product: Callable[[slice, int], Tensor]) -> Tensor:
    """A matrix from `product`, which computes a block of its columns."""
    return torch.cat([product(columns, upto) for columns, upto in _blocks(like)], -1)


@torch.no_grad()
def cholesky_pivots(
    diagonal: Float[Tensor, "q c"], row: Callable[[Int[Tensor, " q"]], Float[Tensor, "q c"]], count: int
) -> Int[Tensor, "q m"]:
    """The first m pivots of a Cholesky factorisation of covariance matrices, each where the variance left is largest.

    `row` has the covariances of one place of every matrix with all places. O(q c m²) time, O(q c m) memory.
    """
    left, every = diagonal.clone(), torch.arange(len(diagonal), device=diagonal.device)
    factor = left.new_zeros(len(left), count, left.shape[-1])
    chosen = torch.zeros(len(left), count, dtype=torch.int64, device=left.device)
    for i in range(count):
        pivot = left.argmax(-1)
        chosen[:, i] = pivot
        # ℓ_i = (k(z_i, ·) − Σ_j ℓ_j(z_i) ℓ_j(·)) / √(variance left at z_i)
        known = (factor[every, :i, pivot].unsqueeze(-2) @ factor[:, :i]).squeeze(-2)
        factor[:, i] = (row(pivot) - known) / left[every, pivot].clamp(min=1e-12).sqrt().unsqueeze(-1)
        left.sub_(factor[:, i].square()).clamp_(min=0.0)
        left[every, pivot] = -1.0
    return chosen


def symmetrize(A: Float[Tensor, "*b m m"]) -> Float[Tensor, "*b m m"]:
    """(A + Aᵀ) / 2."""
    return 0.5 * (A + A.mT)


def gaussian_kl(
    mean: Float[Tensor, "*b d"],
    trace: Float[Tensor, "*b"],
    logdet: Float[Tensor, "*b"],
    prior_variance: float | Tensor = 1.0,
) -> Float[Tensor, "*b"]:
    """KL[N(μ, S) ‖ N(0, σ² I)] from μ, tr S and log|S|.

    A prior with another mean is the same divergence at the difference of the means.
    """
    d = mean.shape[-1]
    variance = torch.as_tensor(prior_variance, dtype=mean.dtype, device=mean.device)
    # KL = ½ (tr S / σ² + μᵀμ / σ² − d + d log σ² − log|S|)
    return 0.5 * ((trace + mean.square().sum(-1)) / variance - d + d * variance.log() - logdet)


def with_gradients(
    value: Float[Tensor, ""], inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Float[Tensor, ""]:
    """A number as it came, with gradients that are known already for what it depends on."""
    return _WithGradients.apply(value, len(inputs), *inputs, *gradients)


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *inputs_and_gradients: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs_and_gradients[count:])
        ctx.shapes = [part.shape for part in inputs_and_gradients[:count]]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        known = [g * part.sum_to_size(shape) for part, shape in zip(ctx.saved_tensors, ctx.shapes, strict=True)]
        return g, None, *known, *([None] * len(known))


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    precondition: Callable[[Tensor], Tensor],
    right: Float[Tensor, "..."],
    iterations: int,
    num_batch_dims: int = 0,
    tolerance: float = 1e-10,
) -> Float[Tensor, "..."]:
    """x with H x ≈ right, for a positive definite H known by its `product` x ↦ H x with tensors.

    It is preconditioned by x ↦ Λ⁻¹ x, so that one iteration is exact where H is Λ, and ends where the squared residual
    of all systems, in the norm of Λ⁻¹, is the share `tolerance` of what it was. Leading dimensions of `right` may count
    systems of their own.
    """

    def inner(a: Tensor, b: Tensor) -> Tensor:
        sums = (a * b).flatten(num_batch_dims).sum(-1)
        return sums.view(*sums.shape, *[1] * (right.dim() - num_batch_dims))

    x, residual = torch.zeros_like(right), right.clone()
    direction = precondition(residual)
    size = inner(residual, direction)
    goal = tolerance * size
    for _ in range(iterations):
        if not bool((size > goal).any()):
            break
        Hd = product(direction)
        # A system that is solved stays where it is.
        length = torch.where(size > goal, size / inner(direction, Hd), 0.0)
        x, residual = x + length * direction, residual - length * Hd
        z = precondition(residual)
        size, previous = inner(residual, z), size
        direction = z + torch.where(previous > goal, size / previous, 0.0) * direction
    return x
