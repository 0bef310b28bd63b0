"""Base kernels on the embedding space.

Every kernel is a GPyTorch kernel, which holds the parameters and their constraints. The scaled ARD-RBF and Matern
kernels are evaluated by one fused function with a closed-form backward; any other kernel by GPyTorch itself.
"""

import copy
import math

import gpytorch
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from manygp.errors import SettingError

__all__ = ["KERNELS", "cross_covariance", "kernel_diagonal", "make_kernel", "rescale_kernel"]

KERNELS = ("rbf", "matern12", "matern32", "matern52")
_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def make_kernel(kernel: str | Kernel, dim: int) -> Kernel:
    """A GPyTorch kernel on `dim` dimensions, from its name or as a copy of the one given."""
    if isinstance(kernel, Kernel):
        return copy.deepcopy(kernel).double()
    if kernel not in KERNELS:
        raise SettingError(f"kernel={kernel!r} is unknown: use one of {', '.join(KERNELS)}, or a GPyTorch kernel.")
    base: Kernel
    if kernel == "rbf":
        base = RBFKernel(ard_num_dims=dim)
    else:
        base = MaternKernel(nu=_SMOOTHNESS[kernel], ard_num_dims=dim)
    return ScaleKernel(base).double()


def rescale_kernel(kernel: Kernel, lengthscale: float, outputscale: float) -> None:
    """Set the lengthscales and the output scale of a named kernel; leave any other kernel as it is."""
    if _is_fused(kernel):
        kernel.base_kernel.lengthscale = lengthscale
        kernel.outputscale = outputscale


def cross_covariance(kernel: Kernel, a: Float[Tensor, "b e"], b: Float[Tensor, "m e"]) -> Float[Tensor, "b m"]:
    """k(a, b) for all pairs, in the dtype of a and b."""
    if not _is_fused(kernel):
        with gpytorch.settings.lazily_evaluate_kernels(False):
            return kernel(a.double(), b.double()).to_dense().to(a.dtype)
    lengthscale = kernel.base_kernel.lengthscale.to(a.dtype)
    outputscale = kernel.outputscale.to(a.dtype)
    nu = getattr(kernel.base_kernel, "nu", math.inf)
    return _Stationary.apply(a / lengthscale, b / lengthscale, outputscale, nu)


def kernel_diagonal(kernel: Kernel, a: Float[Tensor, "b e"]) -> Float[Tensor, "b"]:
    """k(aᵢ, aᵢ) for every row of a."""
    if not _is_fused(kernel):
        return kernel(a.double(), diag=True).to(a.dtype)
    return kernel.outputscale.to(a.dtype).expand(a.shape[0])


def _is_fused(kernel: Kernel) -> bool:
    """Whether the closed form below computes this kernel: a scaled RBF or Matern on all dimensions, nothing more."""
    if type(kernel) is not ScaleKernel or kernel.batch_shape or kernel.active_dims is not None:
        return False
    base = kernel.base_kernel
    return type(base) in (RBFKernel, MaternKernel) and not base.batch_shape and base.active_dims is None


class _Stationary(torch.autograd.Function):
    """σ² ρ(s) with s the squared distances of scaled points: one B x M array saved, few passes over it.

    ρ(s) = exp(-s/2) for the RBF (nu = ∞) and the Matern profile in r = √s otherwise.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, outputscale: Tensor, nu: float) -> Tensor:  # type: ignore[override]
        # sᵢⱼ = |aᵢ|² + |bⱼ|² − 2 aᵢ·bⱼ
        s = torch.addmm((b * b).sum(-1), a, b.T, alpha=-2.0)
        s.add_((a * a).sum(-1, keepdim=True)).clamp_(min=0.0)
        ctx.nu = nu
        if nu == math.inf:
            K = s.mul_(-0.5).exp_().mul_(outputscale)
            ctx.save_for_backward(a, b, outputscale, K)
            return K
        K, slope = _matern(s, nu)
        K, slope = K.mul_(outputscale), slope.mul_(outputscale)
        ctx.save_for_backward(a, b, outputscale, K, slope)
        return K

    @staticmethod
    def backward(ctx, G: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        a, b, outputscale, K, *slope = ctx.saved_tensors
        GK = G * K
        grad_outputscale = GK.sum() / outputscale
        # W = G ∘ ∂K/∂s, where ∂K/∂s = −K/2 for the RBF
        W = GK.mul_(-0.5) if ctx.nu == math.inf else G * slope[0]
        # ∂s/∂a = 2 (a − b)
        grad_a = 2.0 * (W.sum(1, keepdim=True) * a - W @ b) if ctx.needs_input_grad[0] else None
        grad_b = 2.0 * (W.sum(0).unsqueeze(-1) * b - W.T @ a) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, grad_outputscale, None


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
