"""Base kernels on the embedding space.

Every kernel is a GPyTorch kernel, which holds the parameters and their constraints. The scaled ARD-RBF and Matern
kernels, with an amplitude of what outputs share or without, are evaluated by one fused function with a closed-form
backward; any other kernel by GPyTorch itself.
"""

from manygp.kernels.covariance import (
    CovarianceAmong,
    CovarianceRows,
    cross_covariance,
    kernel_diagonal,
    plain_covariance,
    stationary,
)
from manygp.kernels.named import KERNELS, LatentKernel, is_fused, make_kernel, rescale_kernel, smoothness
from manygp.kernels.pairs import matern

__all__ = [
    "KERNELS",
    "CovarianceAmong",
    "CovarianceRows",
    "LatentKernel",
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
