"""Hand-written backwards agree with finite differences, and fused kernels with GPyTorch's autograd."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from manygp.kernels import CovarianceRows, cross_covariance, kernel_diagonal
from manygp.linalg import symmetrize, triangular_inverse
from manygp.variational import GaussianEvidence, KernelBatch, PosteriorMoments, SiteEvidence
from manygp.variational.evidence import leftover, statistics

from ..tolerances import GPYTORCH, assert_close
from . import worlds
from .registry import FUSED_KERNELS, KERNELS, LATENT_KERNELS, LIKELIHOODS


def leaves(rng, *shapes):
    return tuple(worlds.normal(rng, *shape).requires_grad_() for shape in shapes)


class OfKernel(torch.nn.Module):
    """A function of points and a kernel whose parameters can be replaced, for differences with respect to them."""

    def __init__(self, function, kernel):
        super().__init__()
        self.function, self.kernel = function, kernel

    def forward(self, *points):
        return self.function(self.kernel, *points)


def check_kernel(function, kernel, points):
    module, names = OfKernel(function, kernel), [f"kernel.{name}" for name, _ in kernel.named_parameters()]

    def call(*values):
        moved = dict(zip(names, values[len(points) :], strict=True))
        return torch.func.functional_call(module, moved, values[: len(points)])

    return gradcheck(call, (*points, *kernel.parameters()))


@pytest.mark.parametrize("name", FUSED_KERNELS | LATENT_KERNELS)
def test_kernels(rng, name):
    assert check_kernel(cross_covariance, worlds.random_kernel(name, 3, rng), leaves(rng, (6, 3), (4, 3)))


def lower(rng, m):
    return (worlds.normal(rng, m, m).tril() + 2.0 * torch.eye(m, dtype=torch.float64)).requires_grad_(False)


# Every kernel by both ways to the statistics, with a noise for every cell; what does not depend on the kernel, one
# noise for all and the tight bound, with one kernel of each of the ways in which a covariance is computed.
KINDS = ("rbf", "latent rbf", "rational quadratic")
NOISES = [(name, is_stiff, False, True) for name in KERNELS for is_stiff in (False, True)]
NOISES += [(name, is_stiff, False, False) for name in KINDS for is_stiff in (False, True)]
NOISES += [(name, False, True, differs) for name in KINDS for differs in (False, True)]


@pytest.mark.parametrize(("name", "is_stiff", "tight", "differs"), NOISES)
def test_gaussian_noise(rng, name, is_stiff, tight, differs, monkeypatch):
    """The data term by either way to its statistics: through kernel, points, q, values and noises, by chunks."""
    monkeypatch.setattr("manygp.kernels.covariance._MIN_CHUNK_ROWS", 2)
    monkeypatch.setattr("manygp.kernels.covariance._CHUNK_NUMBERS", 8)
    monkeypatch.setattr("manygp.kernels.covariance._KEPT_NUMBERS", 12)
    monkeypatch.setattr("manygp.variational.evidence._MAX_ROUNDING", 0.0 if is_stiff else math.inf)

    def data_term(kernel, e, Z, m, S, y, log_noise, deviation=None):
        S = torch.eye(3, dtype=torch.float64) + 0.1 * symmetrize(S)
        evidence = GaussianEvidence.from_batch(kernel, e, Z, y, log_noise.exp(), 0.0, deviation, tight)
        return evidence.expected_log_lik(PosteriorMoments(m, S, torch.logdet(S)))

    kernel = worlds.random_kernel(name, 3, rng)
    points = leaves(rng, (5, 3), (3, 3), (3,), (3, 3), (5,), (), *([(5,)] if differs else []))
    assert check_kernel(data_term, kernel, points)


@pytest.mark.parametrize("is_stiff", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_gaussian_noise_of_a_batch(rng, name, is_stiff, monkeypatch):
    """The same for several processes at the same points, each with a kernel, values and noises of its own."""
    monkeypatch.setattr("manygp.variational.evidence._MAX_ROUNDING", 0.0 if is_stiff else math.inf)

    def data_term(kernel, e, Z, m, S, y, deviation):
        S = torch.eye(2, dtype=torch.float64) + 0.1 * symmetrize(S)
        evidence = GaussianEvidence.from_batch(kernel, e, Z, y, torch.ones(()).double(), 0.0, deviation)
        return evidence.expected_log_lik(PosteriorMoments(m, S, torch.logdet(S)))

    kernel = worlds.shake(KernelBatch(KERNELS[name](3), 3, 2), rng, 0.3).kernel
    assert check_kernel(data_term, kernel, leaves(rng, (4, 3), (2, 2, 3), (2, 2), (2, 2, 2), (2, 4), (2, 4)))


SITES = [("rbf", name) for name in LIKELIHOODS] + [(name, "zero-inflated negative binomial") for name in KERNELS]


@pytest.mark.parametrize(("kernel", "name"), SITES)
def test_sites(rng, kernel, name, monkeypatch):
    """The data term of any likelihood: through kernel, points, q, the levels and its own parameters, by chunks."""
    monkeypatch.setattr("manygp.kernels.covariance._MIN_CHUNK_ROWS", 2)
    monkeypatch.setattr("manygp.kernels.covariance._VISIT_NUMBERS", 9)
    likelihood, outputs = LIKELIHOODS[name](3), torch.arange(5) % 3
    y = likelihood.sample(worlds.normal(rng, 5), outputs, worlds.generator()).detach()
    learned = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]

    def data_term(kernel, e, Z, m, S, level, *_):
        # Marginals so narrow that quadrature has all digits.
        S = 0.1 * torch.eye(3, dtype=torch.float64) + 0.01 * symmetrize(S)
        evidence = SiteEvidence.from_batch(kernel, e, Z, y, outputs, likelihood, 0.0, None, level)
        return evidence.expected_log_lik(PosteriorMoments(m, S, torch.logdet(S)))

    given = worlds.random_kernel(kernel, 3, rng)
    # Near each other, so that the variance left by the inducing points is small.
    points = (0.3 * worlds.normal(rng, 5, 3)).requires_grad_()
    others = leaves(rng, (3, 3), (3,), (3, 3), (5,))
    assert check_kernel(data_term, given, (points, *others, *learned))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_have_the_numbers_of_gpytorch(rng, name):
    kernel = worlds.random_kernel(name, 3, rng)
    a, b = worlds.normal(rng, 8, 3), worlds.normal(rng, 5, 3)
    assert_close(cross_covariance(kernel, a, b), worlds.dense_covariance(kernel, a, b), GPYTORCH)
    assert_close(cross_covariance(kernel, a, a), worlds.dense_covariance(kernel, a, a), GPYTORCH)
    assert_close(kernel_diagonal(kernel, a), worlds.dense_covariance(kernel, a, a).diagonal(), GPYTORCH)


@pytest.mark.parametrize("is_stiff", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", KERNELS)
def test_statistics_are_those_of_the_covariance(rng, name, dtype, is_stiff):
    kernel = worlds.random_kernel(name, 3, rng)
    a, b, y = worlds.normal(rng, 8, 3).to(dtype), worlds.normal(rng, 5, 3), worlds.normal(rng, 8)
    Linv, log_weight = lower(rng, 5), worlds.normal(rng, 8)
    for weight in (None, log_weight):
        AA, Ay = statistics(CovarianceRows(kernel, a, b, weight, keep=True), y, Linv, is_stiff)
        assert AA.dtype == Ay.dtype == torch.float64
        K = cross_covariance(kernel, a.double(), b)
        K = K if weight is None else weight.exp().unsqueeze(-1) * K
        assert_close(AA, Linv @ K.T @ K @ Linv.T, GPYTORCH, dtype)
        assert_close(Ay, Linv @ K.T @ y, GPYTORCH, dtype)


def test_a_stiff_problem_keeps_its_digits(rng):
    """Nearly coincident points: the projection first has the digits that KᵀK loses, held against extended precision."""
    kernel = worlds.random_kernel("rbf", 1, rng)
    kernel.outputscale, kernel.base_kernel.lengthscale = 100.0, 50.0
    a, b, y = worlds.normal(rng, 400, 1), worlds.normal(rng, 12, 1), worlds.normal(rng, 400)
    K, Kuu = cross_covariance(kernel, a, b).detach(), cross_covariance(kernel, b, b).detach()
    Linv = triangular_inverse(torch.linalg.cholesky(Kuu + 1e-7 * torch.eye(12, dtype=torch.float64)))
    A = Linv.numpy().astype(np.longdouble) @ K.numpy().T.astype(np.longdouble)
    exact = torch.as_tensor((A @ A.T).astype(np.float64))
    rows = CovarianceRows(kernel, a, b, keep=True)
    stiff, plain = (statistics(rows, y, Linv, is_stiff)[0] for is_stiff in (True, False))
    assert (stiff - exact).abs().max() < 1e-2 * (plain - exact).abs().max()


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


def test_leftover_variance(rng):
    """_Explained: L⁻¹ is held constant in the statistic and its dependence on Kuu written out."""
    (K,), root = leaves(rng, (7, 4)), worlds.positive_definite(rng, 4).requires_grad_()
    diagonal = torch.full((7,), 30.0, dtype=torch.float64)

    def leave(K, A):
        Kuu = symmetrize(A)
        with torch.no_grad():
            Linv = triangular_inverse(torch.linalg.cholesky(Kuu))
        return leftover(K, diagonal, Kuu, Linv)

    expected = diagonal - (K @ torch.linalg.inv(root) * K).sum(-1)
    assert (expected > 0).all()
    assert_close(leave(K, root), expected)
    assert gradcheck(leave, (K, root))
