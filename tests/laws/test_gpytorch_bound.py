"""The bound is that of GPyTorch's own sparse variational GP on the same embeddings, kernel, Z, q(u) and noise."""

import gpytorch
import pytest
import torch
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy

from ..tolerances import GPYTORCH, assert_close
from . import worlds
from .registry import EMBEDDINGS, KERNELS, POSTERIORS


class SparseGP(gpytorch.models.ApproximateGP):
    """GPyTorch's whitened sparse GP with given parts; without jitter, as on our side."""

    def __init__(self, kernel, Z, moments):
        distribution = CholeskyVariationalDistribution(len(Z))
        strategy = VariationalStrategy(self, Z, distribution, learn_inducing_locations=False, jitter_val=0.0)
        super().__init__(strategy)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel
        self.double()
        with torch.no_grad():
            distribution.variational_mean.copy_(moments.mean)
            distribution.chol_variational_covar.copy_(torch.linalg.cholesky(moments.covariance))
        # Otherwise the first call in training mode sets q(u) to the prior.
        strategy.variational_params_initialized.fill_(1)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def gpytorch_bound(model, e, y):
    """GPyTorch divides the bound by the number of cells."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = model.likelihood.noise.detach()
    sparse = SparseGP(model.gp.kernel, model.gp.Z.detach(), model.gp.posterior.moments())
    bound = gpytorch.mlls.VariationalELBO(likelihood, sparse, num_data=len(y))
    return len(y) * bound(sparse.train()(e), y)


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("embedding", EMBEDDINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bound_is_that_of_gpytorch(rng, kernel, embedding, posterior):
    table = worlds.random_grid(rng, num_inputs=12)
    batch = worlds.whole_batch(table)
    model = worlds.random_model(rng, kernel=kernel, embedding=embedding, posterior=posterior)
    model.gp.jitter = 0.0
    terms = model.elbo(batch, worlds.generator())
    e = worlds.point_embeddings(model, batch.x, batch.outputs[batch.column])
    assert_close(terms.expected_log_lik - terms.kl_u, gpytorch_bound(model, e, batch.y), GPYTORCH)


@pytest.mark.parametrize("kernel", KERNELS)
def test_its_gradients_are_those_of_gpytorch(rng, kernel):
    table = worlds.random_grid(rng)
    batch = worlds.whole_batch(table)
    model = worlds.random_model(rng, kernel=kernel)
    model.gp.jitter = 0.0
    ours = list(model.gp.kernel.parameters())
    terms = model.elbo(batch, worlds.generator())
    gradients = torch.autograd.grad(terms.expected_log_lik - terms.kl_u, ours)
    e = worlds.point_embeddings(model, batch.x, batch.outputs[batch.column])
    for gradient, theirs in zip(gradients, torch.autograd.grad(gpytorch_bound(model, e, batch.y), ours), strict=True):
        assert_close(gradient, theirs, GPYTORCH)
