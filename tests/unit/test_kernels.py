"""Kernels by name or given, and which of them the closed form computes."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from manygp import TLVMOGP
from manygp.errors import SettingError
from manygp.kernels import (
    KERNELS,
    CovarianceAmong,
    CovarianceRows,
    LatentKernel,
    cross_covariance,
    is_fused,
    kernel_diagonal,
    make_kernel,
    matern,
    rescale_kernel,
    smoothness,
    stationary,
)

from ..laws import worlds
from ..laws.registry import LATENT_KERNELS
from ..tolerances import GPYTORCH, assert_close


@pytest.mark.parametrize("name", KERNELS)
def test_named_kernels_have_a_lengthscale_for_each_dimension(name):
    kernel = make_kernel(name, 4)
    assert kernel.base_kernel.lengthscale.shape == (1, 4)
    assert all(parameter.dtype == torch.float64 for parameter in kernel.parameters())
    assert is_fused(kernel)


def test_the_names_are_the_smoothness():
    assert {name: make_kernel(name, 1).base_kernel.nu for name in KERNELS if name != "rbf"} == {
        "matern12": 0.5,
        "matern32": 1.5,
        "matern52": 2.5,
    }


@pytest.mark.parametrize("kernel", ["rbff", "RBF"])
def test_unknown_kernels_are_refused_with_a_list_of_known_ones(kernel):
    with pytest.raises(
        SettingError, match="unknown: use one of rbf, matern12, matern32, matern52, or a GPyTorch kernel"
    ):
        make_kernel(kernel, 2)


@pytest.mark.parametrize("kernel", ["", "rbf +", "import os"])
def test_text_that_is_no_kernel_is_refused_with_an_example(kernel):
    with pytest.raises(SettingError, match="cannot be read: write it as 'rbf \\* periodic"):
        make_kernel(kernel, 2)


@pytest.mark.parametrize("kernel", [make_kernel("matern32", 3), make_kernel("rbf", 3, num_latents=1), LinearKernel()])
def test_covariances_among_points_are_those_of_the_kernel(kernel, rng):
    points, rows, columns = worlds.normal(rng, 6, 3), torch.tensor([4, 0]), torch.tensor([1, 1, 5])
    expected = cross_covariance(kernel.double(), points, points)[rows][:, columns]
    assert_close(CovarianceAmong(kernel, points)(rows, columns), expected.detach())


def test_a_given_kernel_is_copied():
    given = ScaleKernel(RBFKernel())
    made = make_kernel(given, 2)
    with torch.no_grad():
        made.raw_outputscale.add_(1.0)
    assert given.raw_outputscale.dtype == torch.float32
    assert float(given.raw_outputscale.detach()) == 0.0


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (ScaleKernel(RBFKernel(ard_num_dims=5)), "cannot take embeddings of 3 dimensions.*ard_num_dims"),
        (ScaleKernel(RBFKernel(active_dims=[7])), "cannot take embeddings of 3 dimensions.*active_dims"),
        (ScaleKernel(RBFKernel(), batch_shape=torch.Size([2])), r"shape \(2, 2, 2\).*without a batch shape"),
    ],
    ids=["lengthscales", "active dimensions", "batch"],
)
def test_kernels_that_do_not_fit_the_embedding_are_refused(kernel, message):
    with pytest.raises(SettingError, match=message):
        make_kernel(kernel, 3)


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(),
        ScaleKernel(RBFKernel(active_dims=[0])),
        ScaleKernel(RBFKernel(), active_dims=[0]),
        ScaleKernel(LinearKernel()),
        ScaleKernel(ScaleKernel(RBFKernel())),
        ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel()),
        ScaleKernel(type("Own", (RBFKernel,), {})()),
    ],
    ids=str,
)
def test_what_the_closed_form_cannot_compute_is_left_to_gpytorch(rng, kernel):
    kernel = make_kernel(kernel, 2)
    assert not is_fused(kernel)
    a, b = worlds.normal(rng, 4, 2), worlds.normal(rng, 3, 2)
    assert_close(cross_covariance(kernel, a, b), worlds.dense_covariance(kernel, a, b))
    assert_close(kernel_diagonal(kernel, a), worlds.dense_covariance(kernel, a, a).diagonal())


def test_one_lengthscale_for_all_dimensions_is_fused_too(rng):
    kernel = make_kernel(ScaleKernel(MaternKernel(nu=1.5)), 3)
    assert is_fused(kernel)
    a = worlds.normal(rng, 5, 3)
    assert_close(cross_covariance(kernel, a, a), worlds.dense_covariance(kernel, a, a))


def test_a_given_lengthscale_becomes_one_for_each_dimension(rng):
    given = ScaleKernel(RBFKernel())
    given.base_kernel.lengthscale = 0.4
    kernel, x = make_kernel(given, 3), worlds.normal(rng, 5, 3)
    assert kernel.base_kernel.lengthscale.shape == (1, 3)
    assert_close(kernel(x, x).to_dense(), given.double()(x, x).to_dense())
    # The usual way to write a kernel in GPyTorch.
    X, Y = np.linspace(0.0, 1.0, 9)[:, None], rng.standard_normal((9, 3))
    model = TLVMOGP(kernel=ScaleKernel(RBFKernel()), latent_dim=2, num_inducing=4, epochs=1, progress=False)
    assert np.isfinite(model.fit(X, Y).predict(X)).all()


def test_rescaling_sets_named_kernels_and_no_others():
    kernel = make_kernel("matern32", 3)
    lengthscale = torch.tensor([2.0, 0.5, 8.0], dtype=torch.float64)
    rescale_kernel(kernel, lengthscale, 4.0)
    assert_close(kernel.base_kernel.lengthscale[0], lengthscale)
    assert_close(kernel.outputscale, 4.0)
    other = make_kernel(RBFKernel(), 3)
    before = other.lengthscale.clone()
    rescale_kernel(other, lengthscale, 4.0)
    assert torch.equal(other.lengthscale, before)


def test_a_shift_of_all_points_changes_nothing(rng):
    """Distances are differences; far from the origin they must not drown in rounding."""
    for name in KERNELS:
        kernel = worlds.random_kernel(name, 2, rng)
        a, b = worlds.normal(rng, 6, 2), worlds.normal(rng, 4, 2)
        moved = cross_covariance(kernel, a + 1e4, b + 1e4)
        torch.testing.assert_close(moved, cross_covariance(kernel, a, b), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", [*KERNELS, *LATENT_KERNELS, "rational quadratic"])
def test_rows_of_a_covariance_by_chunks(rng, name, weighted, keep, monkeypatch):
    """They add up to the covariance, and gradients handed over row by row to its gradient, whether they stay or not."""
    for constant, number in {"MIN_CHUNK_ROWS": 2, "VISIT_NUMBERS": 12, "CHUNK_NUMBERS": 8, "KEPT_NUMBERS": 16}.items():
        monkeypatch.setattr(f"manygp.kernels.covariance._{constant}", number)
    kernel, a, b = worlds.random_kernel(name, 3, rng), worlds.normal(rng, 7, 3), worlds.normal(rng, 4, 3)
    log_weight = worlds.normal(rng, 7).requires_grad_() if weighted else None
    rows = CovarianceRows(kernel, a.requires_grad_(), b.requires_grad_(), log_weight, keep)
    weights, among, seen = worlds.normal(rng, 7, 4), worlds.normal(rng, 4, 4), []

    def visit(chunk, K):
        seen.append(K.clone())
        return weights[chunk].clone()

    walked = torch.cat([K.clone() for _, K in rows])
    gradients = rows.gradients(rows.visit(visit), among.clone())
    K, Kuu = cross_covariance(kernel, a, b), cross_covariance(kernel, b, b)
    K = K if log_weight is None else K * log_weight.exp().unsqueeze(-1)
    assert len(seen) > 1
    assert_close(torch.cat(seen), K)
    assert_close(walked, K)
    assert_close(rows.Kuu, Kuu)
    assert_close(rows.at(torch.tensor([5, 0])), K[[5, 0]])
    leaves = [part for part in (a, b, log_weight, *kernel.parameters()) if part is not None]
    whole = torch.autograd.grad((weights * K).sum() + (among * Kuu).sum(), leaves)
    chunks = torch.autograd.grad(rows.inputs, leaves, grad_outputs=gradients)
    for one, other in zip(chunks, whole, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("name", KERNELS)
def test_a_batch_of_points_broadcasts(rng, name):
    kernel = make_kernel(name, 2)
    a, b, scale = worlds.normal(rng, 3, 5, 2), worlds.normal(rng, 4, 2), torch.tensor([0.5, 1.0, 2.0]).double()
    K = stationary(a, b, scale, smoothness(kernel))
    kernel.base_kernel.lengthscale = torch.ones(2)
    for i in range(3):
        kernel.outputscale = scale[i]
        assert_close(K[i], cross_covariance(kernel, a[i], b), GPYTORCH)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_the_matern_profile_has_the_slope_that_it_says(nu):
    s = torch.tensor([0.01, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    profile, slope = matern(s, nu)
    assert_close(torch.autograd.grad(profile.sum(), s)[0], slope)
    assert_close(matern(torch.zeros(1, dtype=torch.float64), nu)[0], torch.ones(1))


def test_what_outputs_share_has_a_scale_of_its_own(rng):
    """With c = 1 it is the plain kernel; with c = 0 nothing is left of an output with h = 0."""
    kernel, plain = make_kernel("rbf", 3, num_latents=2), make_kernel("rbf", 3)
    assert isinstance(kernel, LatentKernel)
    a, b = worlds.normal(rng, 5, 3), worlds.normal(rng, 4, 3)
    assert_close(cross_covariance(kernel, a, b), cross_covariance(plain, a, b))
    assert_close(kernel_diagonal(kernel, a), kernel_diagonal(plain, a))
    rescale_kernel(kernel, torch.ones(3, dtype=torch.float64), 100.0, 1e-12)
    a[:, 1:] = 0.0
    assert cross_covariance(kernel, a, b).detach().abs().max() < 1e-9
    assert kernel_diagonal(kernel, a).detach().max() < 1e-9
