"""Kernels by name, and which kernels the closed form computes."""

import copy
import math
from typing import Any

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor, nn

from manygp.errors import SettingError
from manygp.kernels.composed import parts_of, seasons_of

KERNELS = ("rbf", "matern12", "matern32", "matern52")
_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class LatentKernel(ScaleKernel):
    """A kernel over pairs (x, h) in which what does not depend on h has an amplitude of its own.

    An RBF kernel over h is φ(h) φ(h') exp(h·h') with φ(h) = exp(−|h|²/2), all in lengthscales. Its exponential series
    begins with 1: a function that all outputs share, of variance σ². Where outputs combine nearly linearly,
    lengthscales over h are long and σ² is far larger than any variance of the data, so that this function would be
    anything away from data. Here the 1 is c instead,

        k = σ² ρ(x − x') φ(h) φ(h') (c + exp(h·h') − 1)

    which is positive definite for c ≥ 0, and the plain kernel for c = 1. Along x, ρ is the profile of the base kernel.

    Parameters
    ----------
    base_kernel
        An RBF or Matern kernel with a lengthscale for every dimension of x and h.
    num_latents
        Number of dimensions of h, which come last.
    constraint
        Of the output scale σ² and of c.
    """

    raw_share: nn.Parameter
    raw_share_constraint: Interval

    def __init__(self, base_kernel: Kernel, num_latents: int, constraint: Interval):
        super().__init__(base_kernel, outputscale_constraint=constraint)
        self.num_latents = num_latents
        self.register_parameter("raw_share", nn.Parameter(torch.zeros(())))
        self.register_constraint("raw_share", copy.deepcopy(constraint))
        self.share = torch.ones(())

    @property
    def share(self) -> Float[Tensor, "*q"]:
        """c, the variance of what all outputs share in units of σ²."""
        return self.raw_share_constraint.transform(self.raw_share)

    @share.setter
    def share(self, value: Tensor) -> None:
        self.initialize(raw_share=self.raw_share_constraint.inverse_transform(value.to(self.raw_share)))

    def forward(self, x1: Tensor, x2: Tensor, last_dim_is_batch: bool = False, diag: bool = False, **_: Any) -> Tensor:
        """Covariances as GPyTorch would have them, for kernels that are combined with this one."""
        split, lengthscale = x1.shape[-1] - self.num_latents, self.base_kernel.lengthscale
        # The profile along x is that of the base kernel at pairs with the same h.
        flat1, flat2 = (torch.cat([x[..., :split], torch.zeros_like(x[..., split:])], -1) for x in (x1, x2))
        profile = self.base_kernel.forward(flat1, flat2, diag=diag)
        h1, h2 = (x[..., split:] / lengthscale[..., split:] for x in (x1, x2))
        φ1, φ2 = (torch.exp(-0.5 * h.square().sum(-1)) for h in (h1, h2))
        outputscale, share = self.outputscale.unsqueeze(-1), self.share.unsqueeze(-1)
        if diag:
            return outputscale * profile * φ1 * φ2 * (share + torch.expm1((h1 * h2).sum(-1)))
        of_pairs = φ1.unsqueeze(-1) * φ2.unsqueeze(-2) * (share.unsqueeze(-1) + torch.expm1(h1 @ h2.mT))
        return outputscale.unsqueeze(-1) * profile * of_pairs


def make_kernel(
    kernel: str | Kernel, dim: int, log_parameters: bool = False, num_latents: int = 0, num_inputs: int | None = None
) -> Kernel:
    """A GPyTorch kernel on `dim` dimensions, from its name or as a copy of the one given.

    Positive parameters of a named kernel are softplus of a free one, as is GPyTorch's custom, or with `log_parameters`
    its exponential, so that a step of the optimiser is a relative change at every scale. If the last `num_latents`
    dimensions are those of latent vectors, a named kernel is a `LatentKernel`. Of a given one that the closed form
    computes, a lengthscale for all dimensions becomes one for each: inputs and latents have no unit in common.

    Of the first `num_inputs` dimensions, all by default, the last two for every season of the kernel are its circle; a
    sum has parts that see some of the inputs and circles, and all dimensions behind them.
    """
    if isinstance(kernel, Kernel):
        given = copy.deepcopy(kernel).double()
        _check_dimensions(given, dim)
        if is_fused(given) and given.base_kernel.ard_num_dims is None:
            base = given.base_kernel
            base.ard_num_dims = dim
            base.raw_lengthscale = nn.Parameter(base.raw_lengthscale.detach().repeat(1, dim))
        return given
    parts, seasons = parts_of(kernel), seasons_of(kernel)
    if len(parts) == 1:
        return _named(parts[0].base, dim, log_parameters, num_latents)
    num_inputs = dim if num_inputs is None else num_inputs
    own = num_inputs - 2 * len(seasons)
    kernels = []
    for part in parts:
        circles = (own + 2 * seasons.index(season) for season in part.seasons)
        dims = [*range(own if part.base else 0), *(i for at in circles for i in (at, at + 1)), *range(num_inputs, dim)]
        # A periodic kernel is an RBF kernel on the circle.
        kernels.append(_named(part.base or "rbf", len(dims), log_parameters, num_latents, tuple(dims)))
    return AdditiveKernel(*kernels)


def _named(
    name: str | None, dim: int, log_parameters: bool, num_latents: int, active_dims: tuple[int, ...] | None = None
) -> Kernel:
    """A kernel by its name alone."""
    if name not in KERNELS:
        raise SettingError(f"kernel={name!r} is unknown: use one of {', '.join(KERNELS)}, or a GPyTorch kernel.")
    constraint = Positive(transform=torch.exp, inv_transform=torch.log) if log_parameters else Positive()
    settings: dict[str, Any] = {"ard_num_dims": dim, "lengthscale_constraint": constraint, "active_dims": active_dims}
    base = RBFKernel(**settings) if name == "rbf" else MaternKernel(nu=_SMOOTHNESS[name], **settings)
    if num_latents:
        return LatentKernel(base, num_latents, copy.deepcopy(constraint)).double()
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
    if type(kernel) not in (ScaleKernel, LatentKernel) or kernel.active_dims is not None:
        return False
    base = kernel.base_kernel
    if type(base) not in (RBFKernel, MaternKernel) or base.active_dims is not None:
        return False
    # Lengthscales with the axes of the output scales of a batch, if there are any.
    return base.raw_lengthscale.dim() == kernel.raw_outputscale.dim() + 2


def rescale_kernel(kernel: Kernel, lengthscale: Float[Tensor, " e"], outputscale: float, share: float = 1.0) -> None:
    """Set the lengthscales and scales of a named kernel, c where it has one; leave any other kernel as it is."""
    if isinstance(kernel, AdditiveKernel) and all(isinstance(part, ScaleKernel) for part in kernel.kernels):
        # Each part has its dimensions, and its share of the variance.
        for part in kernel.kernels:
            rescale_kernel(part, lengthscale[part.active_dims], outputscale / len(kernel.kernels), share)
        return
    if is_fused(kernel) or (isinstance(kernel, ScaleKernel) and kernel.active_dims is not None):
        kernel.base_kernel.lengthscale = lengthscale
        # A plain number would be rounded to the default dtype.
        kernel.outputscale = torch.as_tensor(outputscale, dtype=torch.float64)
    if isinstance(kernel, LatentKernel):
        kernel.share = torch.as_tensor(share, dtype=torch.float64)


def smoothness(kernel: Kernel) -> float:
    """ν of a scaled Matern kernel, infinite for an RBF."""
    return float(getattr(kernel.base_kernel, "nu", math.inf))
