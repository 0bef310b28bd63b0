"""Everything the laws are run over. What the package exports and is not here fails `test_completeness.py`."""

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood
from torch import nn

from manygp.embeddings import Residual, make_embedding
from manygp.estimators import GMOGP, GSLVMOGP, LVMOGP, OILMM, SGPRN, SVLMC, TLVMOGP, Estimator, IndGP
from manygp.kernels import make_kernel
from manygp.likelihoods import (
    Bernoulli,
    CountLikelihood,
    Gaussian,
    Given,
    Likelihood,
    NegativeBinomial,
    Noiseless,
    Poisson,
    PooledGaussian,
    StudentT,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from manygp.variational import (
    CholeskyPosterior,
    GaussianEvidence,
    NaturalPosterior,
    Posterior,
    SiteEvidence,
    VecchiaEvidence,
)

# -- kernels: by the number of dimensions they are made for ------------------------------------------------------------

FUSED_KERNELS: dict[str, Callable[[int], Kernel]] = {
    name: lambda dim, name=name: make_kernel(name, dim) for name in ("rbf", "matern12", "matern32", "matern52")
}
LATENT_KERNELS: dict[str, Callable[[int], Kernel]] = {
    "latent rbf": lambda dim: make_kernel("rbf", dim, num_latents=2),
    "latent matern": lambda dim: make_kernel("matern32", dim, num_latents=1),
    "latents alone": lambda dim: make_kernel("rbf", dim, num_latents=dim),
}
# GPyTorch's own, as a user would pass them.
GIVEN_KERNELS: dict[str, Callable[[int], Kernel]] = {
    "rational quadratic": lambda dim: make_kernel(ScaleKernel(RQKernel(ard_num_dims=dim)), dim),
    "without a scale": lambda dim: make_kernel(RBFKernel(), dim),
    "sum on active dimensions": lambda dim: make_kernel(
        ScaleKernel(RBFKernel(active_dims=[0, dim - 1])) + ScaleKernel(RBFKernel(active_dims=range(1, dim))), dim
    ),
    "product with a periodic": lambda dim: make_kernel(
        ScaleKernel(RBFKernel(ard_num_dims=dim) * PeriodicKernel(active_dims=[0])), dim
    ),
}
KERNELS = FUSED_KERNELS | {"latent rbf": LATENT_KERNELS["latent rbf"]} | GIVEN_KERNELS

# -- embeddings: by the number of dimensions of the pairs --------------------------------------------------------------


class Wide(nn.Module):
    """A module of the user's own that changes the number of dimensions."""

    def __init__(self, dim: int):
        super().__init__()
        self.linear = nn.Linear(dim, dim + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(nn.functional.linear(x, self.linear.weight.to(x), self.linear.bias.to(x)))


EMBEDDINGS: dict[str, Callable[[int], nn.Module]] = {
    "residual": lambda dim: make_embedding("residual", dim),
    "residual without a bound": lambda dim: make_embedding("residual", dim, spectral_bound=None),
    "identity": lambda dim: make_embedding("identity", dim),
    "mlp": lambda dim: make_embedding("mlp", dim),
    "given module": lambda dim: make_embedding(Wide(dim), dim),
}
EMBEDDING_CLASSES: tuple[type[nn.Module], ...] = (Residual,)

# -- likelihoods: by the number of outputs -----------------------------------------------------------------------------

# With these the exact posterior is known.
GAUSSIAN_LIKELIHOODS: dict[str, Callable[[int], Likelihood]] = {
    "gaussian": lambda p: Gaussian(p, noise=0.3),
    "gaussian with a noise for each output": lambda p: Gaussian(p, noise=0.3, per_output=True),
    "gaussian with pooled noise": lambda p: PooledGaussian(p, noise=0.3),
}
COUNT_LIKELIHOODS: dict[str, Callable[[int], CountLikelihood]] = {
    "poisson": Poisson,
    "poisson, softplus": lambda p: Poisson(p, link="softplus", scale=2.0),
    "negative binomial": lambda p: NegativeBinomial(p, dispersion=0.5),
    "negative binomial, one dispersion, softplus": lambda p: NegativeBinomial(
        p, dispersion=0.5, per_output=False, link="softplus", scale=2.0
    ),
    "zero-inflated negative binomial": lambda p: ZeroInflatedNegativeBinomial(p, 0.5, michaelis_constant=0.6),
    "zero-inflated negative binomial as published": lambda p: ZeroInflatedNegativeBinomial(
        p, 0.01, learn_dispersion=False, learn_michaelis_constant=False, link="softplus"
    ),
    "zero-inflated poisson": lambda p: ZeroInflatedPoisson(p, michaelis_constant=0.6),
}
LIKELIHOODS: dict[str, Callable[[int], Likelihood]] = {
    **GAUSSIAN_LIKELIHOODS,
    **COUNT_LIKELIHOODS,
    # So many degrees of freedom that averages over draws have a variance.
    "student-t": lambda p: StudentT(p, degrees_of_freedom=14.0),
    "student-t with a scale for each output": lambda p: StudentT(p, degrees_of_freedom=14.0, per_output=True),
    "bernoulli": Bernoulli,
    "given bernoulli": lambda p: Given(BernoulliLikelihood()),
}
# Not for fitting: predictions of the function itself.
PREDICTION_LIKELIHOODS: dict[str, Callable[[int], Likelihood]] = LIKELIHOODS | {"noiseless": lambda p: Noiseless()}

# -- variational core --------------------------------------------------------------------------------------------------

LATENT_POSTERIORS = ("full", "diagonal", "point")
POSTERIORS: dict[str, Callable[[int], Posterior]] = {"natural": NaturalPosterior, "cholesky": CholeskyPosterior}
EVIDENCES = (GaussianEvidence, SiteEvidence, VecchiaEvidence)

# -- hand-written backwards: `laws/test_gradients.py` has a case for each ----------------------------------------------

AUTOGRAD_FUNCTIONS = (
    "_Stationary",
    "_Explained",
    "_Projected",
    "_WithGradients",
    "_LogEvidence",
)

# -- estimators: a class and settings under which it fits a small table in a moment ------------------------------------

_QUIET: dict[str, Any] = {"device": "cpu", "progress": False}
_TINY: dict[str, Any] = {"latent_dim": 2, "num_inducing": 10, "epochs": 3, **_QUIET}
_SEPARABLE = {"latent_dim": 2, "num_inducing_latents": 3, "num_inducing_inputs": 5, "epochs": 3, **_QUIET}
ESTIMATORS: dict[str, tuple[type[Estimator], dict[str, Any]]] = {
    "tlvmogp": (TLVMOGP, _TINY | {"standardize": "output", "num_samples": 5}),
    "tlvmogp, paper preset": (TLVMOGP, _TINY | {"preset": "paper"}),
    "tlvmogp, quick preset": (TLVMOGP, _TINY | {"preset": "quick"}),
    "tlvmogp, diagonal latents, matern": (
        TLVMOGP,
        _TINY | {"standardize": "output", "latent_posterior": "diagonal", "kernel": "matern32", "embedding": "mlp"},
    ),
    "tlvmogp, tight bound": (TLVMOGP, _TINY | {"standardize": "output", "bound": "tight"}),
    "tlvmogp, point latents, raw data": (
        TLVMOGP,
        _TINY | {"standardize": False, "latent_posterior": "point", "embedding": "identity", "num_samples": 1},
    ),
    "lvmogp": (LVMOGP, _SEPARABLE | {"standardize": "output", "num_samples": 5}),
    "lvmogp, paper preset, matern": (LVMOGP, _SEPARABLE | {"preset": "paper", "kernel": "matern32"}),
    "gs-lvmogp": (GSLVMOGP, _SEPARABLE | {"standardize": "output", "num_components": 2, "num_samples": 5}),
    "gs-lvmogp, paper preset, point latents": (
        GSLVMOGP,
        _SEPARABLE | {"preset": "paper", "num_components": 2, "latent_posterior": "point"},
    ),
    "ind-gp": (IndGP, _QUIET),
    "ind-gp, shared kernel": (IndGP, {"share_kernel": True, "kernel": "matern52", "standardize": "output", **_QUIET}),
    "ind-gp, sparse": (IndGP, {"num_inducing": 8, "epochs": 3, **_QUIET}),
    "ind-gp, paper preset": (IndGP, {"preset": "paper", "epochs": 20, **_QUIET}),
    "sv-lmc": (SVLMC, {"num_latents": 2, "num_inducing": 6, "epochs": 3, "standardize": "output", **_QUIET}),
    "sv-lmc, point weights, matern": (
        SVLMC,
        {"num_latents": 3, "num_inducing": 5, "epochs": 3, "standardize": "global", **_QUIET}
        | {"mixing_posterior": "point", "kernel": "matern32"},
    ),
    "g-mogp": (GMOGP, {"num_inducing": 6, "epochs": 3, "standardize": "output", **_QUIET}),
    "g-mogp, shared kernels, matern": (
        GMOGP,
        {"num_inducing": 5, "num_kernels": 3, "kernel": "matern32", "standardize": "global", "epochs": 3, **_QUIET},
    ),
    "g-mogp, paper preset": (GMOGP, {"preset": "paper", "num_inducing": 5, "epochs": 3, **_QUIET}),
    "oilmm": (OILMM, {"num_latents": 2, "epochs": 15, **_QUIET}),
    "oilmm, sparse, fixed basis, matern": (
        OILMM,
        {"num_latents": 3, "num_inducing": 8, "kernel": "matern32", "standardize": "output", "epochs": 10, **_QUIET}
        | {"learn_basis": False},
    ),
    "oilmm, paper preset": (OILMM, {"preset": "paper", "num_latents": 2, "num_inducing": 5, "epochs": 3, **_QUIET}),
    "sv-lmc, paper preset": (SVLMC, {"preset": "paper", "num_latents": 2, "num_inducing": 5, "epochs": 3, **_QUIET}),
    "sgprn": (SGPRN, {"num_latents": 2, "epochs": 3, "standardize": "output", "num_samples": 5, **_QUIET}),
    "sgprn, paper preset, matern": (
        SGPRN,
        {"preset": "paper", "num_latents": 2, "epochs": 3, "weight_kernel": "matern32", **_QUIET},
    ),
}
