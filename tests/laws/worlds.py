"""Small random models and tables, and the dense computations that they are held against."""

import gpytorch
import numpy as np
import torch
from torch import nn

from manygp.data import CellPlan, Grid, GridPlan, Scaling
from manygp.embeddings import embedding_dim
from manygp.initialise import Survey
from manygp.likelihoods import Gaussian, Likelihood
from manygp.linalg import matvec
from manygp.models import TransformedLatentModel
from manygp.terms import Points, Trend
from manygp.variational import CellBatch, CholeskyPosterior, InducingGP, Latents, NaturalPosterior

from ..tolerances import assert_close
from .registry import EMBEDDINGS, KERNELS, LATENT_KERNELS, LIKELIHOODS, POSTERIORS

CPU = torch.device("cpu")


def normal(rng, *shape):
    """Standard normal float64 numbers."""
    return torch.as_tensor(rng.standard_normal(shape))


def positive_definite(rng, *shape):
    """A well conditioned covariance matrix, or a batch of them."""
    m = shape[-1]
    A = normal(rng, *shape, m)
    return A @ A.mT / m + 0.5 * torch.eye(m, dtype=torch.float64)


@torch.no_grad()
def shake(module, rng, scale=0.4):
    """Move every parameter of a module, which lives unconstrained, away from its start."""
    for parameter in module.parameters():
        parameter.add_(scale * normal(rng, *parameter.shape).to(parameter))
    return module


def random_kernel(name, dim, rng):
    return shake((KERNELS | LATENT_KERNELS)[name](dim), rng, 0.3)


def random_embedding(name, dim, rng):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        return shake(EMBEDDINGS[name](dim), rng, 0.1).eval()


def random_posterior(name, shape, rng):
    """q(v), or a batch of them, with means and covariances unlike the prior's."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    posterior, mean, S = POSTERIORS[name](*shape), normal(rng, *shape), positive_definite(rng, *shape)
    if isinstance(posterior, CholeskyPosterior):
        posterior.set_moments(mean, S)
    else:
        assert isinstance(posterior, NaturalPosterior)
        precision = torch.linalg.inv(S)
        posterior.step(matvec(precision, mean), precision, 1.0)
    return posterior


def random_model(
    rng,
    *,
    features=2,
    latent_dim=2,
    num_outputs=4,
    num_inducing=6,
    embedding="residual",
    kernel="rbf",
    likelihood="gaussian",
    latent_posterior="point",
    posterior="natural",
    given_prior=False,
    relative=False,
    bound="standard",
    trend=False,
):
    """A T-LVMOGP with every parameter at random."""
    dim = features + latent_dim
    network = random_embedding(embedding, dim, rng)
    e = embedding_dim(network, dim)
    gp = InducingGP(
        random_kernel(kernel, e, rng),
        normal(rng, num_inducing, e),
        random_posterior(posterior, num_inducing, rng),
        bound=bound,
    )
    prior_mean = normal(rng, num_outputs, latent_dim) if given_prior else None
    variance = 1.7 if given_prior else 1.0
    latents = Latents(num_outputs, latent_dim, latent_posterior, prior_mean, variance, relative=relative)
    shake(latents, rng, 0.2)
    with torch.no_grad():
        latents.mean.add_(normal(rng, num_outputs, latent_dim))
    units = 0.5 + torch.as_tensor(rng.uniform(size=dim))
    noise = shake(LIKELIHOODS[likelihood](num_outputs), rng)
    terms = []
    if trend:
        terms.append(Trend(num_outputs, latent_dim, features))
        terms[0].start(units[:features], 1.0)
        terms[0].set(normal(rng, features, latent_dim + 1), normal(rng, num_outputs, features))
    return TransformedLatentModel(network, gp, latents, noise, units, terms).eval()


def random_grid(rng, num_inputs=7, num_outputs=4, features=2, missing=0.3):
    """A grid with gaps, at least one cell in every output."""
    Y = rng.standard_normal((num_inputs, num_outputs))
    gaps = rng.uniform(size=Y.shape) < missing
    gaps[rng.integers(num_inputs, size=num_outputs), np.arange(num_outputs)] = False
    return Grid(rng.standard_normal((num_inputs, features)), np.where(gaps, np.nan, Y))


def raw(table):
    """The scaling that changes nothing."""
    return Scaling.fit(table, inputs=False, outputs="none")


def whole_batch(table, dtype=torch.float64):
    """All cells of a grid as one batch."""
    (batch,) = GridPlan(table, raw(table)).epoch(np.random.default_rng(0))
    return CellBatch.from_arrays(batch, dtype, CPU)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def point_embeddings(model, x, outputs):
    """Embeddings of cells at the means of their latents."""
    return model.embed(x, model.latents.mean[outputs])


@torch.no_grad()
def beside(model, x, outputs):
    """What terms add to the mean of cells at the means of their latents."""
    return model.terms.mean(Points(x, outputs, torch.zeros_like(outputs), model.latents.mean[outputs]))


@torch.no_grad()
def dense_covariance(kernel, a, b):
    """GPyTorch's own covariance of two sets of points."""
    with gpytorch.settings.lazily_evaluate_kernels(False):
        return kernel(a, b).to_dense()


@torch.no_grad()
def log_evidence(kernel, e, y, noise):
    """Log density of y under the exact GP with a noise variance for each cell."""
    covariance = dense_covariance(kernel, e, e) + torch.diag(noise)
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


@torch.no_grad()
def exact_prediction(kernel, e, y, noise, new):
    """Mean and variance of f at new points under the exact GP."""
    Kyy = dense_covariance(kernel, e, e) + torch.diag(noise)
    Ksy = dense_covariance(kernel, new, e)
    weights = torch.linalg.solve(Kyy, Ksy.T)
    prior = dense_covariance(kernel, new, new).diagonal()
    return weights.T @ y, prior - (Ksy * weights.T).sum(-1)


def noise_of(model, outputs):
    """Noise variance of every cell."""
    _, noise = model.likelihood.conditional_moments(torch.zeros(len(outputs), dtype=torch.float64), outputs)
    return noise.detach()


def set_points(model, Z):
    """Other inducing points, with q(v) back at the prior."""
    with torch.no_grad():
        model.gp.Z = nn.Parameter(Z.clone())
        model.gp.posterior = NaturalPosterior(len(Z))
    return model


class Disguised(Likelihood):
    """Gaussian noise that a model does not know for what it is."""

    def __init__(self, gaussian):
        super().__init__()
        self.gaussian = gaussian

    def log_prob(self, f, y, outputs, exposure=None):
        return self.gaussian.log_prob(f, y, outputs)


@torch.no_grad()
def assert_epochs_average(model, table, rng, terms=("expected_log_lik", "kl_u", "kl_h", "bound")):
    """The batches of an epoch average to the full bound, however the table is dealt out."""
    scaling = raw(table)
    full = model.elbo(whole_batch(table), generator())
    for plan in (GridPlan(table, scaling, 3, 2), GridPlan(table, scaling, 1, 1), CellPlan(table, scaling, 5)):
        batches = [CellBatch.from_arrays(batch, torch.float64, CPU) for batch in plan.epoch(rng)]
        parts = [model.elbo(batch, generator()) for batch in batches]
        for term in terms:
            assert_close(torch.stack([getattr(part, term) for part in parts]).mean(), getattr(full, term))


def survey_of(table, rng, likelihood=None, standardize="global", **settings):
    """The survey of a table of measurements, or of what a likelihood says."""
    return Survey(table, Gaussian() if likelihood is None else likelihood, rng, standardize, **settings)
