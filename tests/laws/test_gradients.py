"""Hand-written backwards agree with finite differences, and fused kernels with GPyTorch's autograd."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from manygp.kernels import cross_covariance, kernel_diagonal
from manygp.linalg import symmetrize
from manygp.variational.evidence import gram, quadratic_form

from ..tolerances import GPYTORCH, assert_close
from . import worlds
from .registry import FUSED_KERNELS, KERNELS


def leaves(rng, *shapes):
    return tuple(worlds.normal(rng, *shape).requires_grad_() for shape in shapes)


@pytest.mark.parametrize("name", FUSED_KERNELS)
def test_kernels(rng, name):
    kernel = worlds.random_kernel(name, 3, rng)
    parameters = list(kernel.parameters())

    def covariance(a, b, *values):
        named = dict(zip([key for key, _ in kernel.named_parameters()], values, strict=True))
        return torch.func.functional_call(_Covariance(kernel), {f"kernel.{key}": v for key, v in named.items()}, (a, b))

    assert gradcheck(covariance, (*leaves(rng, (6, 3), (4, 3)), *parameters))


class _Covariance(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, a, b):
        return cross_covariance(self.kernel, a, b)


def test_gram(rng):
    assert gradcheck(gram, leaves(rng, (7, 3), (7,)))


def test_quadratic_form(rng):
    # Only symmetric matrices are allowed, so that the differences must be symmetric too.
    assert gradcheck(lambda K, C: quadratic_form(K, symmetrize(C)), leaves(rng, (7, 3), (3, 3)))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_the_numbers_of_gpytorch(rng, name):
    kernel = worlds.random_kernel(name, 3, rng)
    a, b = worlds.normal(rng, 8, 3), worlds.normal(rng, 5, 3)
    assert_close(cross_covariance(kernel, a, b), worlds.dense_covariance(kernel, a, b), GPYTORCH)
    assert_close(cross_covariance(kernel, a, a), worlds.dense_covariance(kernel, a, a), GPYTORCH)
    assert_close(kernel_diagonal(kernel, a), worlds.dense_covariance(kernel, a, a).diagonal(), GPYTORCH)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_keep_float32(rng, name):
    kernel = worlds.random_kernel(name, 3, rng)
    a, b = worlds.normal(rng, 8, 3), worlds.normal(rng, 5, 3)
    single = cross_covariance(kernel, a.float(), b.float())
    assert single.dtype == kernel_diagonal(kernel, a.float()).dtype == torch.float32
    assert_close(single, cross_covariance(kernel, a, b), GPYTORCH, torch.float32)


PROFILES = {
    "rbf": lambda r: torch.exp(-0.5 * r.square()),
    "matern12": lambda r: torch.exp(-r),
    "matern32": lambda r: (1 + math.sqrt(3) * r) * torch.exp(-math.sqrt(3) * r),
    "matern52": lambda r: (1 + math.sqrt(5) * r + 5 / 3 * r.square()) * torch.exp(-math.sqrt(5) * r),
}


@pytest.mark.parametrize("name", FUSED_KERNELS)
def test_coincident_points_do_not_disturb_gradients(rng, name):
    """Kuu has every point twice. Held against distances by plain differences; GPyTorch has 8 digits here."""
    kernel = worlds.random_kernel(name, 3, rng)
    Z, weights = worlds.normal(rng, 6, 3), worlds.normal(rng, 6, 6)
    apart = ~torch.eye(6, dtype=torch.bool)

    def plain(z):
        difference = (z[:, None] - z[None]) / kernel.base_kernel.lengthscale
        r = torch.zeros(6, 6, dtype=torch.float64).masked_scatter(apart, difference[apart].norm(dim=-1))
        return kernel.outputscale * PROFILES[name](r)

    gradients = []
    for covariance in (lambda z: cross_covariance(kernel, z, z), plain):
        z = Z.clone().requires_grad_()
        gradients.append(torch.autograd.grad((weights * covariance(z)).sum(), [z, *kernel.parameters()]))
    for ours, exact in zip(*gradients, strict=True):
        assert_close(ours, exact)
