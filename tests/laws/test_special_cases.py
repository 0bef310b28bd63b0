"""Kernels of earlier models as special cases (appendix D of the paper): separable, and sums of separable kernels."""

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import nn

from manygp.kernels import cross_covariance, make_kernel, rescale_kernel

from ..tolerances import assert_close
from . import worlds


class BlockScaling(nn.Module):
    """Φ(x, h) = [x ⊘ ℓx¹; h₁ ⊘ ℓh¹; …; x ⊘ ℓxᑫ; h_q ⊘ ℓhᑫ]: a copy of x for each block of h."""

    def __init__(self, x_scale, h_scale):
        super().__init__()
        self.x_scale, self.h_scale = x_scale, h_scale

    def forward(self, pairs):
        features, size = self.x_scale.shape[1], self.h_scale.shape[1]
        x, h = pairs[:, :features], pairs[:, features:]
        blocks = []
        for q, (x_scale, h_scale) in enumerate(zip(self.x_scale, self.h_scale, strict=True)):
            blocks += [x / x_scale, h[:, q * size : (q + 1) * size] / h_scale]
        return torch.cat(blocks, -1)


def rbf(a, b, lengthscale):
    """The squared exponential kernel, written out."""
    difference = (a[:, None] - b[None]) / lengthscale
    return torch.exp(-0.5 * difference.square().sum(-1))


def test_blockwise_scaling_makes_the_kernel_separable(rng):
    d, h = 3, 2
    x, latent = worlds.normal(rng, 9, d), worlds.normal(rng, 9, h)
    x_new, latent_new = worlds.normal(rng, 6, d), worlds.normal(rng, 6, h)
    x_scale, h_scale = 0.5 + worlds.normal(rng, 1, d).abs(), 0.5 + worlds.normal(rng, 1, h).abs()
    kernel = make_kernel("rbf", d + h)
    rescale_kernel(kernel, torch.ones(d + h, dtype=torch.float64), 1.0)
    embed = BlockScaling(x_scale, h_scale)
    ours = cross_covariance(kernel, embed(torch.cat([x, latent], -1)), embed(torch.cat([x_new, latent_new], -1)))
    assert_close(ours, rbf(x, x_new, x_scale) * rbf(latent, latent_new, h_scale))


def test_the_units_of_the_model_are_such_a_scaling(rng):
    model = worlds.random_model(rng, embedding="identity")
    rescale_kernel(model.gp.kernel, torch.ones(4, dtype=torch.float64), 1.5)
    x, outputs = worlds.normal(rng, 8, 2), torch.as_tensor(rng.integers(4, size=8))
    h = model.latents.mean[outputs]
    e = worlds.point_embeddings(model, x, outputs)
    separable = 1.5 * rbf(x, x, model.units[:2]) * rbf(h, h, model.units[2:])
    assert_close(cross_covariance(model.gp.kernel, e, e), separable)


def test_blocks_and_an_additive_kernel_make_a_sum_of_separable_kernels(rng):
    q, d, h = 3, 2, 2
    x, latent = worlds.normal(rng, 8, d), worlds.normal(rng, 8, q * h)
    x_scale, h_scale = 0.5 + worlds.normal(rng, q, d).abs(), 0.5 + worlds.normal(rng, q, h).abs()
    scales = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64)
    parts = []
    for i in range(q):
        part = ScaleKernel(RBFKernel(active_dims=tuple(range(i * (d + h), (i + 1) * (d + h))))).double()
        part.base_kernel.lengthscale, part.outputscale = 1.0, scales[i]
        parts.append(part)
    kernel = make_kernel(gpytorch.kernels.AdditiveKernel(*parts), q * (d + h))
    e = BlockScaling(x_scale, h_scale)(torch.cat([x, latent], -1))
    expected = sum(
        scales[i]
        * rbf(x, x, x_scale[i])
        * rbf(latent[:, i * h : (i + 1) * h], latent[:, i * h : (i + 1) * h], h_scale[i])
        for i in range(q)
    )
    assert_close(cross_covariance(kernel, e, e), expected)
