"""A GP that inducing variables or observations tell about, as an object that can be drawn as a function.

With L Lᵀ = k(Z, Z) + N and rows A = k(·, Z) L⁻ᵀ, f = A v + r with v ~ q(v) = N(m, S), and r what Z leaves open:

    cov r = k − A Aᵀ,   r = g − A L⁻¹ (g(Z) + N^½ ε)  for a draw g of the prior (Matheron's rule)

N = 0 and any q(v) for inducing points; N the noise of observations y and v = L⁻¹ y for an exact GP. A draw of the prior
is made of random Fourier features, so that r has as many coefficients as there are features, whatever is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from manygp.functions.spectrum import Spectrum
from manygp.linalg import matvec

__all__ = ["At", "Process", "normalised"]

_TINY = 1e-300


@runtime_checkable
class Prior(Protocol):
    """k(a, b) and k(aᵢ, aᵢ)."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor: ...

    def diagonal(self, a: Tensor) -> Tensor:
        """k(aᵢ, aᵢ)."""


@dataclass(frozen=True)
class Process:
    """One process, or a batch of them.

    Parameters
    ----------
    prior
        k.
    Z, Linv
        Inducing points or inputs of observations, and L⁻¹.
    mean, root
        m, and a root of S; None where v is known.
    noise
        Variances N; None for none.
    spectrum
        Random features of k; None where there are none.
    explain
        A of points, where there is a shorter way than by k and L⁻¹.
    """

    prior: Prior
    Z: Float[Tensor, "*#q m e"]
    Linv: Float[Tensor, "*#q m m"]
    mean: Float[Tensor, "*q m"]
    root: Float[Tensor, "*q m m"] | None = None
    noise: Float[Tensor, "*#q m"] | None = None
    spectrum: Spectrum | None = None
    explain: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def whitened(self) -> Float[Tensor, "*q m k"]:
        """L⁻¹ φ(Z) and L⁻¹ N^½, what draws of the prior and of the noise at Z are multiplied by."""
        assert self.spectrum is not None
        parts = [self.Linv @ self.spectrum(self.Z)]
        if self.noise is not None:
            parts.append(self.Linv * self.noise.sqrt().unsqueeze(-2))
        return torch.cat(parts, -1)

    def left_rows(self, A: Float[Tensor, "*s b m"], φ: Float[Tensor, "*s b f"]) -> Float[Tensor, "*s b k"]:
        """Rows of r in independent coefficients: φ − A L⁻¹ φ(Z) and −A L⁻¹ N^½."""
        f, whitened = φ.shape[-1], self.whitened
        left = φ - A @ whitened[..., :f]
        return left if self.noise is None else torch.cat([left, -(A @ whitened[..., f:])], -1)


class At:
    """A process at some points."""

    def __init__(self, process: Process, points: Float[Tensor, "*s b e"]):
        self.process, self.points = process, points

    @cached_property
    def K(self) -> Float[Tensor, "*s b m"]:
        """Covariances with Z."""
        prior, Z = self.process.prior, self.process.Z
        if Z.dim() > 2:
            return prior(self.points, Z)
        # One process: all points in one product.
        return prior(self.points.flatten(0, -2), Z).unflatten(0, self.points.shape[:-1])

    @cached_property
    def A(self) -> Float[Tensor, "*s b m"]:
        """Rows of what Z explains."""
        explain = self.process.explain
        return self.K @ self.process.Linv.mT if explain is None else explain(self.points)

    def mean(self) -> Float[Tensor, "*s b"]:
        """E f = A m = k(·, Z) L⁻ᵀ m."""
        process = self.process
        if process.explain is not None:
            return matvec(self.A, process.mean)
        return matvec(self.K, matvec(process.Linv.mT, process.mean))

    def left(self, white: Tensor | float = 0.0) -> Float[Tensor, "*s b"]:
        """Variances of r, of which the prior may have more than its kernel says."""
        return (self.process.prior.diagonal(self.points) + white - self.A.square().sum(-1)).clamp(min=0.0)

    def known_rows(self) -> Float[Tensor, "*s b m"]:
        """Rows of A v − A m in independent coefficients."""
        assert self.process.root is not None
        return self.A @ self.process.root

    def left_rows(self) -> Float[Tensor, "*s b k"]:
        """Rows of r in independent coefficients."""
        assert self.process.spectrum is not None
        return self.process.left_rows(self.A, self.process.spectrum(self.points))

    def left_covariance(self, other: "At") -> Float[Tensor, "*s a b"]:
        """cov r between points."""
        return self.process.prior(self.points, other.points) - self.A @ other.A.mT


def normalised(rows: Float[Tensor, "*s b k"], variance: Float[Tensor, "*s b"]) -> Float[Tensor, "*s b k"]:
    """Rows with the squared lengths that they should have: random features are right on average alone."""
    return rows * (variance / rows.square().sum(-1).clamp(min=_TINY)).sqrt().unsqueeze(-1)
