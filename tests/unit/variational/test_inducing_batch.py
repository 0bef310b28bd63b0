"""A batch of sparse GPs is as many `InducingGP`s: marginals, divergences and natural steps."""

import pytest
import torch

from manygp.kernels import make_kernel
from manygp.variational import (
    Conditional,
    GaussianEvidence,
    InducingGP,
    KernelBatch,
    NaturalPosterior,
    PosteriorMoments,
    Projection,
)

from ...laws import worlds
from ...tolerances import PREDICTION, assert_close

SIZE, POINTS, DIM = 3, 4, 2


def random_processes(rng, kernel="rbf", posterior="natural", sparse=False):
    kernels = worlds.shake(KernelBatch(kernel, DIM, SIZE), rng, 0.3)
    q = worlds.random_posterior(posterior, (SIZE, POINTS), rng)
    return InducingGP(kernels, worlds.normal(rng, SIZE, POINTS, DIM), q, sparse=sparse)


def one_of(processes, i):
    """Process i as an `InducingGP`."""
    kernel = make_kernel("rbf", DIM)
    with torch.no_grad():
        for key, parameter in kernel.named_parameters():
            parameter.copy_(dict(processes.kernels.kernel.named_parameters())[key][i])
    gp = InducingGP(kernel, processes.Z[i].detach() * processes.units, NaturalPosterior(POINTS))
    kernel.base_kernel.lengthscale = kernel.base_kernel.lengthscale * processes.units
    q = processes.posterior.moments()
    precision = torch.linalg.inv(q.covariance[i])
    gp.posterior.step(precision @ q.mean[i], precision, 1.0)
    return gp


@pytest.mark.parametrize("posterior", ["natural", "cholesky"])
def test_marginals_and_divergences_are_those_of_each_process(rng, posterior):
    processes = random_processes(rng, posterior=posterior)
    processes.units.copy_(0.5 + torch.as_tensor(rng.uniform(size=DIM)))
    x = worlds.normal(rng, 5, DIM)
    with torch.no_grad():
        q = processes.posterior.moments()
        projection, conditional = processes.project(x), processes.conditional()
        assert isinstance(q, PosteriorMoments)
        assert isinstance(projection, Projection)
        assert isinstance(conditional, Conditional)
        mean, variance = projection.marginals(q)
        assert_close(conditional(x)[0], mean, PREDICTION)
        assert_close(conditional(x)[1], variance, PREDICTION)
        for i in range(SIZE):
            gp = one_of(processes, i)
            expected = gp.conditional()(x)
            assert_close(mean[i], expected[0], PREDICTION)
            assert_close(variance[i], expected[1], PREDICTION)
            assert_close(q.kl()[i], gp.posterior.moments().kl())


@pytest.mark.parametrize("sparse", [True, False])
def test_some_processes_at_inputs_of_their_own(rng, sparse):
    processes, which = random_processes(rng, sparse=sparse), torch.tensor([2, 0])
    x = worlds.normal(rng, 2, 5, DIM)
    q = processes.posterior.moments(which)
    mean, variance = processes.project(x, which).marginals(q)
    everywhere = processes.project(x.flatten(0, 1)).marginals(processes.posterior.moments())
    for k, i in enumerate(which):
        assert_close(mean[k], everywhere[0][i, 5 * k : 5 * k + 5])
        assert_close(variance[k], everywhere[1][i, 5 * k : 5 * k + 5])
    conditional = processes.conditional()(x, which)
    assert_close(conditional[0], mean, PREDICTION)
    assert_close(conditional[1], variance, PREDICTION)
    (mean.sum() + variance.sum()).backward()
    assert processes.Z.grad.is_sparse == sparse
    assert not processes.Z.grad.to_dense()[1].any()


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_natural_steps_are_those_of_each_process(rng, rate):
    processes, x, y = random_processes(rng), worlds.normal(rng, 6, DIM), worlds.normal(rng, SIZE, 6)
    singles = [one_of(processes, i) for i in range(SIZE)]
    β = 0.5 + worlds.normal(rng, SIZE, 6).abs()
    with torch.no_grad():
        projection, posterior = processes.project(x), processes.posterior
        target = projection.precision(β)
        posterior.step(projection.pull(β * y), target, rate)
        q = posterior.moments()
        for i, gp in enumerate(singles):
            gp.posterior.step(projection.pull(β * y)[i], target[i], rate)
            expected = gp.posterior.moments()
            assert_close(q.mean[i], expected.mean)
            assert_close(q.covariance[i], expected.covariance)
            assert_close(q.logdet[i], expected.logdet)


def test_a_step_on_some_processes_leaves_the_others(rng):
    processes, which = random_processes(rng), torch.tensor([2, 0])
    posterior = processes.posterior
    before = posterior.theta.clone(), posterior.precision.clone()
    theta, target = worlds.normal(rng, 2, POINTS), worlds.positive_definite(rng, 2, POINTS)
    posterior.step(theta, target, 0.5, which)
    assert torch.equal(posterior.theta[1], before[0][1])
    assert torch.equal(posterior.precision[1], before[1][1])
    assert_close(posterior.theta[which], 0.5 * (before[0][which] + theta))
    assert_close(posterior.precision[which], 0.5 * (before[1][which] + target))
    some = posterior.moments(which)
    assert_close(some.covariance, posterior.moments().covariance[which])
    assert_close(some.mean, posterior.moments().mean[which])


def test_processes_that_share_kernel_and_points(rng):
    kernels = worlds.shake(KernelBatch("rbf", DIM, 1), rng, 0.3)
    q = worlds.random_posterior("natural", (SIZE, POINTS), rng)
    shared = InducingGP(kernels, worlds.normal(rng, 1, POINTS, DIM), q)
    own = InducingGP(KernelBatch("rbf", DIM, SIZE), shared.Z.detach().expand(SIZE, -1, -1), shared.posterior)
    own.kernels.rescale(*(scale.detach() for scale in kernels.scales(kernels.rows())))
    x = worlds.normal(rng, SIZE, 5, DIM)
    which = torch.arange(SIZE)
    for gps in (shared, own):
        assert gps.num_inducing == POINTS
    ours, theirs = (gps.project(x, which).marginals(gps.posterior.moments()) for gps in (shared, own))
    assert_close(ours[0], theirs[0])
    assert_close(ours[1], theirs[1])
    assert_close(shared.conditional()(x, which)[1], theirs[1], PREDICTION)


def test_single_precision_inputs(rng):
    processes, x = random_processes(rng), worlds.normal(rng, 5, DIM)
    q = processes.posterior.moments()
    single = processes.project(x.float()).marginals(q)
    assert single[0].dtype == torch.float64
    assert_close(single[0], processes.project(x).marginals(q)[0], dtype=torch.float32)


@pytest.mark.parametrize("posterior", ["natural", "cholesky"])
@pytest.mark.parametrize("is_stiff", [False, True])
def test_statistics_say_what_marginals_say(rng, monkeypatch, posterior, is_stiff):
    """Value and all gradients of the data term are those by the marginals of every observation."""
    if is_stiff:
        monkeypatch.setattr("manygp.variational.evidence._MAX_ROUNDING", 0.0)
    processes = random_processes(rng, posterior=posterior)
    processes.units.copy_(0.5 + torch.as_tensor(rng.uniform(size=DIM)))
    x, y = worlds.normal(rng, 6, DIM), worlds.normal(rng, SIZE, 6).requires_grad_()
    log_noise = worlds.normal(rng, SIZE, 6).requires_grad_()
    noise, q = log_noise.exp(), processes.posterior.moments()
    mean, variance = processes.project(x).marginals(q)
    data = torch.distributions.Normal(mean, noise.sqrt()).log_prob(y) - 0.5 * variance / noise
    evidence = processes.evidence_of_values(x, y, noise)
    assert isinstance(evidence, GaussianEvidence)
    ours = evidence.expected_log_lik(q)
    assert_close(ours, data.sum())
    leaves = [y, log_noise, *processes.parameters()]
    for mine, theirs in zip(
        *(torch.autograd.grad(v, leaves, retain_graph=True) for v in (ours, data.sum())), strict=True
    ):
        assert_close(mine, theirs, PREDICTION)


def test_a_natural_step_of_rate_one_is_the_optimum(rng):
    """No q(v) near the one that a full step leads to has a larger bound."""
    processes, weight = random_processes(rng), 2.0
    evidence = processes.evidence_of_values(
        worlds.normal(rng, 6, DIM), worlds.normal(rng, SIZE, 6), torch.full((SIZE, 6), 0.3)
    )
    evidence.natural_step(processes.posterior, weight, 1.0)
    q = processes.posterior.moments()
    mean, covariance = q.mean.clone().requires_grad_(), q.covariance.clone().requires_grad_()
    near = PosteriorMoments(mean, covariance, torch.linalg.slogdet(covariance).logabsdet)
    bound = weight * evidence.expected_log_lik(near) - near.kl().sum()
    for gradient in torch.autograd.grad(bound, (mean, covariance)):
        assert_close(gradient, torch.zeros_like(gradient), PREDICTION)
