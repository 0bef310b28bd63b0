"""Three statistics = cell by cell: the Gaussian path and the general path say the same about the same batch."""

import math

import pytest
import torch

from manygp.likelihoods import make_likelihood
from manygp.linalg import triangular_inverse
from manygp.variational import GaussianEvidence, NaturalPosterior, SiteEvidence, evidence
from manygp.variational.evidence import statistics

from ..tolerances import SAME_FORMULA, assert_close
from . import worlds
from .registry import EMBEDDINGS, GAUSSIAN_LIKELIHOODS, KERNELS, LIKELIHOODS, POSTERIORS


def both(model, batch, dtype=torch.float64):
    """The two kinds of evidence of one batch."""
    outputs, gp = batch.outputs[batch.column], model.gp
    e, y = model.embed(batch.x.to(dtype), model.latents.mean[outputs]), batch.y.to(dtype)
    noise, deviation = model.likelihood.split_noise(outputs)
    gaussian = GaussianEvidence.from_batch(gp.kernel, e, gp.Z, y, noise, gp.jitter, deviation)
    return gaussian, SiteEvidence.from_batch(gp.kernel, e, gp.Z, y, outputs, model.likelihood, gp.jitter)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
def test_the_data_terms_agree(rng, likelihood, kernel, posterior, dtype):
    model = worlds.random_model(rng, kernel=kernel, posterior=posterior, likelihood=likelihood)
    gaussian, sites = both(model, worlds.whole_batch(worlds.random_grid(rng)), dtype)
    q = model.gp.posterior.moments()
    assert_close(gaussian.expected_log_lik(q), sites.expected_log_lik(q), SAME_FORMULA, dtype)


@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_their_gradients_agree(rng, embedding, likelihood):
    model = worlds.random_model(rng, embedding=embedding, posterior="cholesky", likelihood=likelihood)
    batch = worlds.whole_batch(worlds.random_grid(rng))
    parameters = [parameter for parameter in model.parameters() if parameter.numel()]
    q = model.gp.posterior.moments()
    first, second = (
        torch.autograd.grad(evidence.expected_log_lik(q), parameters, retain_graph=True, allow_unused=True)
        for evidence in both(model, batch)
    )
    for a, b in zip(first, second, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b)


@pytest.mark.parametrize("weight", [1.0, 7.5])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("likelihood", GAUSSIAN_LIKELIHOODS)
def test_the_natural_targets_agree(rng, likelihood, kernel, weight):
    model = worlds.random_model(rng, kernel=kernel, likelihood=likelihood)
    gaussian, sites = both(model, worlds.whole_batch(worlds.random_grid(rng)))
    for a, b in zip(
        gaussian.natural_target(model.gp.posterior, weight),
        sites.natural_target(model.gp.posterior, weight),
        strict=True,
    ):
        assert_close(a, b)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_gaussian_noise_takes_the_short_path(rng, likelihood):
    model = worlds.random_model(rng, likelihood=likelihood)
    evidence = model.gp.evidence(
        worlds.normal(rng, 5, 4),
        torch.ones(5, dtype=torch.float64),
        torch.zeros(5, dtype=torch.int64),
        model.likelihood,
    )
    assert isinstance(evidence, GaussianEvidence if likelihood in GAUSSIAN_LIKELIHOODS else SiteEvidence)


def test_an_empty_batch_says_nothing(rng):
    model = worlds.random_model(rng)
    none = model.gp.evidence(
        worlds.normal(rng, 0, 4), worlds.normal(rng, 0), torch.zeros(0, dtype=torch.int64), model.likelihood
    )
    assert_close(none.expected_log_lik(model.gp.posterior.moments()), 0.0)
    theta, precision = none.natural_target(model.gp.posterior, 1.0)
    assert torch.equal(theta, torch.zeros(6, dtype=torch.float64))
    assert torch.equal(precision, torch.eye(6, dtype=torch.float64))


@pytest.mark.parametrize("noise", [1e-5, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0])
def test_natural_steps_keep_the_precision_positive_definite(rng, rate, noise):
    model = worlds.random_model(rng, num_inducing=12)
    model.likelihood.noise = torch.tensor(noise)
    least = min(1.0, float(torch.linalg.eigvalsh(model.gp.posterior.precision)[0]))
    for _ in range(20):
        batch = worlds.whole_batch(worlds.random_grid(rng, num_inputs=5))
        model.natural_elbo(batch, worlds.generator(), rate)
        precision = model.gp.posterior.precision
        assert torch.equal(precision, precision.T)
        # A mixture of the start and of targets I + something positive semidefinite, whatever the data.
        assert torch.linalg.eigvalsh(precision)[0] >= 0.999 * least
        assert math.isfinite(float(model.gp.posterior.moments().kl()))


@pytest.mark.parametrize("likelihood", ["gaussian", "gaussian with a noise for each output"])
def test_a_natural_step_of_rate_one_is_stationary(rng, likelihood):
    """At the target no gradient of the bound with respect to q is left, and a second step stays."""
    batch = worlds.whole_batch(worlds.random_grid(rng))
    model = worlds.random_model(rng, likelihood=likelihood)
    model.natural_elbo(batch, worlds.generator(), 1.0)
    moments = model.gp.posterior.moments()
    model.natural_elbo(batch, worlds.generator(), 1.0)
    again = model.gp.posterior.moments()
    assert_close(again.mean, moments.mean)
    free = worlds.random_model(rng, posterior="cholesky").gp.posterior
    free.set_moments(moments.mean, moments.covariance)
    model.gp.posterior = free
    gradients = torch.autograd.grad(model.elbo(batch, worlds.generator()).bound, list(free.parameters()))
    for gradient in gradients:
        assert_close(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize(("lengthscale", "is_stiff"), [(0.5, False), (50.0, True)])
def test_digits_are_paid_for_where_they_are_lost(rng, monkeypatch, lengthscale, is_stiff):
    """Little noise alone does not ask for the dearer statistics: nearly coincident inducing points do."""
    asked = []

    def watched(*arguments):
        asked.append(arguments[-1])
        return statistics(*arguments)

    monkeypatch.setattr(evidence, "statistics", watched)
    kernel = worlds.random_kernel("rbf", 1, rng)
    kernel.base_kernel.lengthscale = lengthscale
    e, Z, y = worlds.normal(rng, 400, 1), torch.linspace(-3.0, 3.0, 9, dtype=torch.float64), worlds.normal(rng, 400)
    noise = torch.tensor(1e-3, dtype=torch.float64)
    GaussianEvidence.from_batch(kernel, e, Z.unsqueeze(-1), y, noise, 1e-9)
    assert asked == [is_stiff]


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("lengthscale", [0.5, 3.0, 20.0])
def test_single_precision_does_not_pass_for_information(rng, lengthscale, noise):
    """Rounding errors of covariances, multiplied by |L⁻¹| and held against little noise, would look like data."""
    kernel = worlds.random_kernel("rbf", 1, rng)
    kernel.base_kernel.lengthscale = lengthscale
    e, Z, y = worlds.normal(rng, 400, 1).float(), torch.linspace(-3.0, 3.0, 9).double(), worlds.normal(rng, 400)
    Λ, wanted = (
        GaussianEvidence.from_batch(
            kernel, e.to(dtype), Z.unsqueeze(-1), y.to(dtype), torch.tensor(noise).double(), 1e-9
        ).natural_target(worlds.random_model(rng).gp.posterior, 1.0)[1]
        for dtype in (torch.float32, torch.float64)
    )
    assert_same_information(Λ, wanted)


@pytest.mark.parametrize("count", [1.0, 1e5])
@pytest.mark.parametrize("lengthscale", [0.5, 2.0, 3.0])
def test_single_precision_does_not_pass_for_large_counts(rng, lengthscale, count):
    """With longer lengthscales than these KᵀK loses as many digits in float64."""
    kernel = worlds.random_kernel("rbf", 1, rng)
    kernel.base_kernel.lengthscale = lengthscale
    e, Z = worlds.normal(rng, 400, 1).float(), torch.linspace(-3.0, 3.0, 9).double()
    y, outputs = torch.full((400,), count), torch.zeros(400, dtype=torch.int64)
    level = torch.full((400,), math.log(count)).double()
    Λ, wanted = (
        SiteEvidence.from_batch(
            *(kernel, e.to(dtype), Z.unsqueeze(-1), y, outputs, make_likelihood("poisson", 1), 1e-6), level=level
        ).natural_target(NaturalPosterior(9), 1.0)[1]
        for dtype in (torch.float32, torch.float64)
    )
    assert_same_information(Λ, wanted)


def assert_same_information(Λ, wanted):
    """Precisions agree relative to the one that is wanted, in every direction."""
    root = triangular_inverse(torch.linalg.cholesky(wanted))
    assert torch.linalg.eigvalsh(root @ (Λ - wanted) @ root.T).abs().max() < 0.05
