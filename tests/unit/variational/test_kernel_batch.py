"""A batch of kernels is as many kernels of their own, in whatever rows and layouts."""

import pytest
import torch

from manygp.kernels import make_kernel
from manygp.variational import KernelBatch
from manygp.variational.kernel_batch import pick

from ...laws import worlds
from ...laws.registry import FUSED_KERNELS, GIVEN_KERNELS, KERNELS
from ...tolerances import assert_close

SIZE, DIM = 3, 2


def random_batch(name, rng):
    kernel = name if name in FUSED_KERNELS else KERNELS[name](DIM)
    return worlds.shake(KernelBatch(kernel, DIM, SIZE), rng, 0.3)


def one_of(name, batch, i):
    """Kernel i of a batch as an ordinary GPyTorch kernel."""
    kernel = KERNELS[name](DIM)
    with torch.no_grad():
        for key, parameter in kernel.named_parameters():
            parameter.copy_(dict(batch.kernel.named_parameters())[key][i])
    return kernel


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_one_of_its_own(rng, name):
    batch = random_batch(name, rng)
    a, b = worlds.normal(rng, SIZE, 5, DIM), worlds.normal(rng, SIZE, 4, DIM)
    with torch.no_grad():
        own, common = batch.covariance(batch.rows(), a, b), batch.covariance(batch.rows(), a[0], b)
        diagonal = batch.diagonal(batch.rows(), a)
    for i in range(SIZE):
        kernel = one_of(name, batch, i)
        assert_close(own[i], worlds.dense_covariance(kernel, a[i], b[i]))
        assert_close(common[i], worlds.dense_covariance(kernel, a[0], b[i]))
        assert_close(diagonal[i], worlds.dense_covariance(kernel, a[i], a[i]).diagonal())


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("sparse", [True, False])
def test_rows_are_some_of_the_kernels_in_any_order(rng, name, sparse):
    batch, which = random_batch(name, rng), torch.tensor([2, 0, 2, 1])
    a, b = worlds.normal(rng, 5, DIM), worlds.normal(rng, 4, DIM)
    some = batch.covariance(batch.rows(which, sparse), a, b)
    assert_close(some, batch.covariance(batch.rows(), a, b)[which])
    assert_close(batch.diagonal(batch.rows(which), a), batch.diagonal(batch.rows(), a)[which])
    some.sum().backward()
    assert all(parameter.grad.is_sparse == sparse for parameter in batch.parameters())


@pytest.mark.parametrize("name", ["matern32", "rational quadratic"])
def test_one_kernel_serves_all(rng, name):
    kernel = name if name in FUSED_KERNELS else KERNELS[name](DIM)
    batch = KernelBatch(kernel, DIM, 1)
    a, b = worlds.normal(rng, 4, 5, DIM), worlds.normal(rng, 1, 3, DIM)
    with torch.no_grad():
        K = batch.covariance(batch.rows(torch.arange(4)), a, b)
        for i in range(4):
            assert_close(K[i], worlds.dense_covariance(one_of(name, batch, 0), a[i], b[0]))
        assert batch.diagonal(batch.rows(), a).shape == (4, 5)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
def test_gradients_where_points_coincide(rng, name):
    """The root in a Matern kernel has no slope at distance zero, where nothing depends on it."""
    batch = random_batch(name, rng)
    a = worlds.normal(rng, 4, DIM)
    a[1] = a[0]
    # The roughest kernel has a kink there, so that differences say nothing.
    b = a[1:] if name != "matern12" else worlds.normal(rng, 3, DIM)
    assert torch.autograd.gradcheck(lambda x: batch.covariance(batch.rows(), x, b), a[1:].clone().requires_grad_())
    own = batch.covariance(batch.rows(), a, a)
    assert_close(own[:, 0, 1], batch.diagonal(batch.rows(), a)[:, 0])
    parameters = list(batch.parameters())
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(own.sum(), parameters))


def test_scales_are_set_and_read(rng):
    for log_parameters in (True, False):
        batch = KernelBatch("rbf", DIM, SIZE, log_parameters)
        lengthscale, outputscale = 0.1 + worlds.normal(rng, SIZE, DIM).abs(), 0.1 + worlds.normal(rng, SIZE).abs()
        batch.rescale(lengthscale, outputscale)
        found = batch.scales(batch.rows())
        assert_close(found[0], lengthscale)
        assert_close(found[1], outputscale)
        batch.rescale(lengthscale[:1], outputscale[:1])
        assert_close(batch.scales(batch.rows())[0], lengthscale[:1].expand(SIZE, DIM))
    given = KernelBatch(GIVEN_KERNELS["rational quadratic"](DIM), DIM, SIZE)
    before = [parameter.clone() for parameter in given.parameters()]
    given.rescale(lengthscale, outputscale)
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))


def test_single_precision_inputs_give_single_precision_covariances(rng):
    for name in ("rbf", "matern32", "rational quadratic"):
        batch = random_batch(name, rng)
        a, b = worlds.normal(rng, 5, DIM), worlds.normal(rng, SIZE, 4, DIM)
        K = batch.covariance(batch.rows(), a.float(), b)
        assert K.dtype == torch.float32
        assert_close(K, batch.covariance(batch.rows(), a, b), dtype=torch.float32)
        assert batch.diagonal(batch.rows(), a.float()).dtype == torch.float64


def test_kernels_start_alike_and_apart_from_the_one_given():
    given = make_kernel("matern32", DIM)
    batch = KernelBatch(given, DIM, SIZE)
    with torch.no_grad():
        batch.kernel.raw_outputscale[1] = 3.0
    assert batch.kernel.raw_outputscale.tolist() == [0.0, 3.0, 0.0]
    assert given.raw_outputscale.shape == ()


def test_picked_rows_have_gradients_of_their_own(rng):
    for shape in ((4,), (4, 3), (4, 1, 2)):
        parameter = worlds.normal(rng, *shape).requires_grad_()
        which, weight = torch.tensor([3, 1, 3]), worlds.normal(rng, 3, *shape[1:])
        gradients = []
        for sparse in (True, False):
            (gradient,) = torch.autograd.grad((weight * pick(parameter, which, sparse)).sum(), parameter)
            assert gradient.is_sparse == sparse
            gradients.append(gradient.to_dense() if sparse else gradient)
        assert_close(gradients[0], gradients[1])
