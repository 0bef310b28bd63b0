"""Covariances of pairs of points in closed form, some rows at a time, and their gradients.

Points are in lengthscales. `Pairs` are those of a stationary kernel; `LatentPairs` those of a `LatentKernel`, whose
last dimensions are latent vectors. K comes with what its gradient needs of it, its `parts`: arrays of the shape of K.
"""

import math
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

_Parts = tuple[Tensor, ...]
_Places = slice | Tensor
_ALL = slice(None)


class Gradient(Protocol):
    """Sums over chunks of rows that the gradients of what K depends on are made of."""

    def add(self, chunk: slice, W: Tensor, K: Tensor, parts: _Parts) -> None:
        """Take in ∂/∂K of some rows, which is overwritten."""

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients for a, b, σ², the log weights of rows, and c (or those of columns), once all rows are in."""


def make_pairs(
    a: Tensor, b: Tensor, outputscale: Tensor, nu: float, share: Tensor | None, num_latents: int, **weight: Any
) -> "Pairs | LatentPairs":
    """Pairs under a stationary kernel, or a latent one if it has c."""
    if share is None:
        return Pairs(a, b, outputscale, nu, **weight)
    return LatentPairs(a, b, outputscale, nu, share, num_latents, **weight)


class Pairs:
    """Pairs of points, or a batch of them, whose K = w σ² ρ(s) w' and its slope ∂K/∂s are computed some rows at a time.

    ρ(s) = exp(−s/2) for the RBF (nu = ∞), where the slope is K itself up to a factor, and the Matern profile in r = √s
    otherwise, with the slope as the only part; weights w belong to rows and w' to columns.
    """

    def __init__(
        self,
        a: Float[Tensor, "*q n d"],
        b: Float[Tensor, "*q m d"],
        outputscale: Float[Tensor, "*q"],
        nu: float,
        log_weight: Float[Tensor, "*q n"] | None = None,
        log_column: Float[Tensor, "*q m"] | None = None,
    ):
        # Distances do not change with the origin, but the rounding errors of |a|² + |b|² − 2 a·b do.
        center = b.mean(-2, keepdim=True)
        self.a, self.b, self.outputscale, self.nu = a - center, b - center, outputscale, nu
        self.has_columns = log_column is not None
        one_a, one_b = a.new_ones(*a.shape[:-1], 1), b.new_ones(*b.shape[:-1], 1)
        of_a = -0.5 * (self.a * self.a).sum(-1, keepdim=True)
        b2, log_scale = (self.b * self.b).sum(-1, keepdim=True), outputscale[..., None, None].log()
        # log σ² + log w' of every column
        log_scale = log_scale if log_column is None else log_scale + log_column.unsqueeze(-1)
        if self.is_rbf:
            # log K = a·b − |a|²/2 + log w − |b|²/2 + log σ² w', by one product
            of_a = of_a if log_weight is None else of_a + log_weight.unsqueeze(-1)
            right = torch.cat([self.b, one_b, log_scale - 0.5 * b2], -1)
        else:
            # s = −2 a·b + |a|² + |b|²
            right = torch.cat([-2.0 * self.b, -2.0 * one_b, b2], -1)
            self.scale = log_scale.exp().mT
            self.weight = None if log_weight is None else log_weight.exp().unsqueeze(-1)
        self.left, self.right = torch.cat([self.a, of_a, one_a], -1), right.mT

    @property
    def is_rbf(self) -> bool:
        """Whether nu is infinite."""
        return self.nu == math.inf

    @property
    def num_parts(self) -> int:
        """Arrays beside K that the gradient needs."""
        return 0 if self.is_rbf else 1

    def write(self, rows: _Places, K: Tensor, parts: _Parts, columns: _Places = _ALL) -> None:
        """Write some rows of K, or some columns of these, and their parts."""
        torch.matmul(self.left[..., rows, :], self.right[..., columns], out=K)
        if self.is_rbf:
            K.exp_()
            return
        ρ, by_s = matern(K.clamp_(min=0.0), self.nu)
        scale = self.scale[..., columns] if self.has_columns else self.scale
        scale = scale if self.weight is None else scale * self.weight[..., rows, :]
        torch.mul(ρ, scale, out=K)
        torch.mul(by_s, scale, out=parts[0])

    def gradient(self) -> "_PairsGradient":
        """Sums for the gradients, still empty."""
        return _PairsGradient(self)


class _PairsGradient:
    def __init__(self, pairs: Pairs):
        self.pairs, b = pairs, pairs.b
        (*q, m, d), n = b.shape, pairs.a.shape[-2]
        # Thin factors lie as their products run fastest: a by rows, b by columns.
        self.b1 = torch.cat([b.mT, b.new_ones(*q, 1, m)], -2).mT
        self.rows, self.columns = b.new_empty(*q, n, d + 1), b.new_zeros(*q, d + 2, m)
        self.by_row = None if pairs.is_rbf else b.new_empty(*q, n)
        self.by_column = b.new_zeros(*q, m)

    def add(self, chunk: slice, W: Tensor, K: Tensor, parts: _Parts) -> None:
        if self.by_row is not None:
            product = W * K
            torch.sum(product, -1, out=self.by_row[..., chunk])
            if self.pairs.has_columns:
                self.by_column += product.sum(-2)
        W.mul_(K if self.pairs.is_rbf else parts[0])
        torch.matmul(W, self.b1, out=self.rows[..., chunk, :])
        left = self.pairs.left[..., chunk, :].mT
        if W.dim() == 2:
            self.columns.addmm_(left, W)
        else:
            self.columns.add_(left @ W)

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        pairs, rows, columns = self.pairs, self.rows, self.columns
        by_row, factor = (rows[..., -1], -1.0) if self.by_row is None else (self.by_row, 2.0)
        # ∂K/∂s = −K/2 for the RBF and the slope for the others; ∂s/∂a = 2 (a − b)
        by_a = factor * (rows[..., -1:] * pairs.a - rows[..., :-1])
        by_b = factor * (columns[..., -1:, :].mT * pairs.b - columns[..., :-2, :].mT)
        by_column = columns[..., -1, :] if pairs.is_rbf else self.by_column
        return by_a, by_b, by_row.sum(-1) / pairs.outputscale, by_row, by_column


class LatentPairs:
    """Pairs (x, h) under K = w σ² ρ(x − x') φ(h) φ(h') (c + exp(h·h') − 1), see `LatentKernel`.

    P = w σ² ρ(x − x') φ(h) φ(h'), which is ∂K/∂c, is the last of the parts.
    """

    def __init__(
        self,
        a: Float[Tensor, "*q n e"],
        b: Float[Tensor, "*q m e"],
        outputscale: Float[Tensor, "*q"],
        nu: float,
        share: Float[Tensor, "*q"],
        num_latents: int,
        log_weight: Float[Tensor, "*q n"] | None = None,
    ):
        split = a.shape[-1] - num_latents
        self.h, self.other_h, self.share = a[..., split:], b[..., split:], share[..., None, None]
        of_row, of_column = (-0.5 * h.square().sum(-1) for h in (self.h, self.other_h))
        of_row = of_row if log_weight is None else of_row + log_weight
        self.on_x = Pairs(a[..., :split], b[..., :split], outputscale, nu, of_row, of_column)

    @property
    def left(self) -> Tensor:
        """What P is a product of, from its rows."""
        return self.on_x.left

    @property
    def right(self) -> Tensor:
        """What P is a product of, from its columns."""
        return self.on_x.right

    @property
    def num_parts(self) -> int:
        """Arrays beside K that the gradient needs."""
        return self.on_x.num_parts + 1

    def write(self, rows: _Places, K: Tensor, parts: _Parts, columns: _Places = _ALL) -> None:
        """Write some rows of K, or some columns of these, and their parts."""
        P = parts[-1]
        self.on_x.write(rows, P, parts[:-1], columns)
        torch.matmul(self.h[..., rows, :], self.other_h[..., columns, :].mT, out=K)
        # Where h is a small part of a lengthscale, exp(h·h') − 1 has digits that a difference would not have.
        K.expm1_().add_(self.share)
        for part in parts[:-1]:
            part.mul_(K)
        K.mul_(P)

    def gradient(self) -> "_LatentPairsGradient":
        """Sums for the gradients, still empty."""
        return _LatentPairsGradient(self)


class _LatentPairsGradient:
    def __init__(self, pairs: LatentPairs):
        self.pairs, self.on_x = pairs, pairs.on_x.gradient()
        self.rows, self.columns = torch.empty_like(pairs.h), torch.zeros_like(pairs.other_h)
        self.by_share = pairs.share.new_zeros(pairs.share.shape[:-2])

    def add(self, chunk: slice, W: Tensor, K: Tensor, parts: _Parts) -> None:
        pairs, by_P = self.pairs, W * parts[-1]
        self.by_share += by_P.sum((-2, -1))
        # ∂K/∂(h·h') = P exp(h·h') = K + (1 − c) P
        by_product = by_P.mul_(1.0 - pairs.share).addcmul_(W, K)
        torch.matmul(by_product, pairs.other_h, out=self.rows[..., chunk, :])
        self.columns += by_product.mT @ pairs.h[..., chunk, :]
        self.on_x.add(chunk, W, K, parts[:-1])

    def result(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        pairs = self.pairs
        by_x, by_other_x, by_scale, by_row, by_column = self.on_x.result()
        # log φ = −|h|²/2
        by_h = self.rows - by_row.unsqueeze(-1) * pairs.h
        by_other_h = self.columns - by_column.unsqueeze(-1) * pairs.other_h
        return torch.cat([by_x, by_h], -1), torch.cat([by_other_x, by_other_h], -1), by_scale, by_row, self.by_share


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
