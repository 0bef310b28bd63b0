"""The GS-LVMOGP and LV-MOGP estimators."""

import logging
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch

from manygp.data import Table
from manygp.data.table import FloatArray
from manygp.estimators.config import Config
from manygp.estimators.new_outputs import LatentVariableEstimator
from manygp.estimators.noise import with_fixed_noise
from manygp.estimators.settings import check_kernel, check_size
from manygp.estimators.standardize import published_scaling
from manygp.estimators.trained import Rng, Start, given
from manygp.initialise.gslvmogp import choose_inducing_sizes, initialise, initialise_at_prior
from manygp.initialise.priors import PriorMeans, prior_means
from manygp.kernels import is_fused, make_kernel
from manygp.likelihoods import Likelihood, make_likelihood
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.terms import Level
from manygp.variational import Latents
from manygp.variational.kronecker import CholeskyKronecker, DenseCurvature, FactoredCurvature, NaturalKronecker

logger = logging.getLogger("manygp")

_PAPER = {"latent_dim": 3, "num_inducing_latents": 20, "num_inducing_inputs": 10}


@dataclass(frozen=True, kw_only=True)
class SeparableConfig(Config):
    """A GS-LVMOGP or LV-MOGP with nothing left open; settings of `GSLVMOGP` have their names."""

    num_components: int
    latent_dim: int
    num_inducing_latents: int
    num_inducing_inputs: int
    kernel: Any
    latent_kernel: Any
    likelihood: Any
    latent_posterior: str
    latent_prior_variance: float
    prior_mean: bool

    def build(self, generator: torch.Generator | None = None) -> SeparableLatentModel:
        fast, Q, h, d, p = self.natural, self.num_components, self.latent_dim, self.num_features, self.num_outputs
        j, k = self.num_inducing_latents, self.num_inducing_inputs
        # Of an RBF kernel what outputs share has a scale of its own.
        has_scale = fast and self.latent_kernel == "rbf"
        latents = Latents(
            p * Q,
            h,
            self.latent_posterior,
            torch.zeros(p * Q, h) if self.prior_mean else None,
            self.latent_prior_variance,
            sparse=fast,
            relative=fast,
            shared_draws=not fast,
        )
        curvature = FactoredCurvature(j, k) if Q == 1 else DenseCurvature(j, k)
        likelihood = make_likelihood(self.likelihood, p)
        return SeparableLatentModel(
            [make_kernel(self.kernel, d, log_parameters=fast) for _ in range(Q)],
            [make_kernel(self.latent_kernel, h, fast, num_latents=h if has_scale else 0) for _ in range(Q)],
            torch.zeros(k, d),
            torch.zeros(Q, j, h),
            NaturalKronecker(j, k, curvature) if fast else CholeskyKronecker(j, k),
            latents,
            likelihood,
            torch.ones(d),
            terms=[Level(p, sparse=True)] if fast and not likelihood.is_affine else [],
            sparse=fast,
        )


class _SeparableEstimator(LatentVariableEstimator):
    """What the two estimators share: a sum of Q kernels, each separable into inputs and latent vectors."""

    latent_dim: int | str
    num_inducing_latents: int | str
    num_inducing_inputs: int | str
    latent_kernel: str | gpytorch.kernels.Kernel

    # The number Q of separable kernels.
    num_components = 1
    _config_class = SeparableConfig
    _reads_batches = True
    _knows_exposure = True

    @property
    def inducing_inputs_(self) -> FloatArray:
        """Inducing inputs Z_X in the user's units, shape (num_inducing_inputs, d)."""
        self._check_fitted()
        return self.scaling_.unscale_x((self.model_.Z_X.detach() * self.model_.units).cpu().numpy())

    @property
    def inducing_latents_(self) -> FloatArray:
        """Inducing latent vectors Z_H, shape (num_components, num_inducing_latents, latent_dim)."""
        self._check_fitted()
        return self.model_.Z_H.detach().cpu().numpy()

    def _lengthscales(self) -> FloatArray | None:
        kernels: list[Any] = list(self.model_.input_kernels)
        if not all(is_fused(kernel) for kernel in kernels):
            return None
        each = torch.cat([kernel.base_kernel.lengthscale for kernel in kernels]) * self.model_.units
        return each.detach().cpu().numpy() * self.scaling_.x_scale

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_components", self.num_components)
        for name in ("latent_dim", "num_inducing_latents", "num_inducing_inputs"):
            check_size(name, getattr(self, name), automatic=("auto",))
        check_kernel("latent_kernel", self.latent_kernel)

    def _begin_at_prior(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        scaling = published_scaling(self.standardize, table, likelihood.is_affine)
        is_pca = isinstance(self.latent_prior_mean, str)
        published = given(self.latent_dim, _PAPER["latent_dim"]) if is_pca else self.latent_dim
        prior = prior_means(self.latent_prior_mean, table, published, likelihood, rng)
        model = self._separable(
            table,
            given(self.latent_dim, _PAPER["latent_dim"] if prior is None else prior.mean.shape[1]),
            given(self.num_inducing_latents, _PAPER["num_inducing_latents"]),
            given(self.num_inducing_inputs, _PAPER["num_inducing_inputs"]),
            prior,
        )
        initialise_at_prior(model, generator)
        return model, scaling

    def _begin_at_data(self, table: Table, likelihood: Likelihood, rng: Rng, generator: torch.Generator) -> Start:
        prior = prior_means(self.latent_prior_mean, table, self.latent_dim, likelihood, rng)
        h: Any = self.latent_dim if prior is None else prior.mean.shape[1]
        Q: int = self.num_components
        # An output that is known by its place alone has no centre and scale of its own.
        standardize = "global" if self.standardize is True and self._knows_places(table) else self.standardize
        survey = self._look_at(table, likelihood, rng, standardize, None if isinstance(h, str) else Q * int(h))
        # No more factors than the data support, nor than the components have room for.
        latent_dim = given(h, -(-survey.rank // Q))
        rank = latent_dim if Q == 1 else min(survey.rank, Q * latent_dim)
        factors = survey.factors(rank) if prior is None else None
        found = with_fixed_noise(survey.functions(factors), self.likelihood, survey.scaling)
        latents, inputs = choose_inducing_sizes(table, survey.scaling, latent_dim, Q, found)
        latents, inputs = given(self.num_inducing_latents, latents), given(self.num_inducing_inputs, inputs)
        model = self._separable(table, latent_dim, latents, inputs, prior)
        logger.info(
            "latent_dim=%d, num_inducing_latents=%d, num_inducing_inputs=%d, standardisation of outputs: %s",
            *(latent_dim, latents, inputs, survey.choice.kind),
        )
        initialise(model, survey, found, factors)
        return model, survey.scaling

    def _separable(
        self, table: Table, latent_dim: int, latents: int, inputs: int, prior: PriorMeans | None
    ) -> SeparableLatentModel:
        model: SeparableLatentModel = self._untrained(
            table,
            num_components=self.num_components,
            latent_dim=latent_dim,
            num_inducing_latents=latents,
            num_inducing_inputs=inputs,
            prior_mean=prior is not None,
        )
        if prior is not None:
            prior.set(model.latents)
        return model

    def _work(self, model: SeparableLatentModel, cells: float) -> float:
        j, k = model.Z_H.shape[1], model.Z_X.shape[0]
        if model.num_components == 1:
            return 6.0 * cells * (j**2 + k**2 + j * k) + 20.0 * (j**3 + k**3)
        # Three products and a half with the batch, and half a dozen among inducing variables.
        return 3.5 * cells * (j * k) ** 2 + 6.0 * (j * k) ** 3


@dataclass(repr=False, eq=False)
class GSLVMOGP(_SeparableEstimator):
    """Generalised scalable latent variable multi-output GP: a sum of separable kernels.

    Every output has a latent vector for each of Q components; its covariance with another output is the sum over the
    components of a kernel on the inputs times a kernel on the latent vectors. Inducing points lie in both spaces. See
    `docs/models/gslvmogp.md` for the model and its cost.

    Parameters
    ----------
    num_components
        Number Q of separable kernels. With 1 every factorisation is of the size of one space; see `LVMOGP`.
    latent_dim
        Dimensions of the latent vectors; "auto" chooses them by held-out cells.
    num_inducing_latents, num_inducing_inputs
        Inducing points in the latent space and in the input space; "auto" follows from the latent dimensions and the
        roughness of the functions.
    kernel, latent_kernel
        Kernels on inputs and on latent vectors: "rbf", "matern12", "matern32", "matern52", or a GPyTorch kernel.
    likelihood
        "gaussian", or any other name or likelihood.
    latent_posterior
        "full", "diagonal" or "point".
    latent_prior_mean, latent_prior_variance
        Prior of the latent vectors, the same for all components. Means: None for zero, a table with a row for each
        output, such as coordinates in any units, or "pca", as in `TLVMOGP`; they are standardised, and one variance is
        for the standardised ones.
    epochs
        Passes over the data; "auto" runs until the bound stops rising.
    batch_inputs, batch_outputs
        Inputs and outputs in a batch; "auto" aims at a few thousand observed cells.
    learning_rate, num_samples, standardize, preset, device, random_state, progress, max_grad_norm
        See `TLVMOGP`.
    dtype
        "float64" or "float32" for covariances of batches; the rest is always float64.
    freeze_likelihood
        Epochs for which the noise stays at its start; `math.inf` never learns it. "auto" is none.

    Attributes
    ----------
    latent_mean_ : array of shape (p, num_components, latent_dim)
    latent_covariance_ : array of shape (p, num_components, latent_dim, latent_dim)
    inducing_inputs_ : array of shape (num_inducing_inputs, d)
    inducing_latents_ : array of shape (num_components, num_inducing_latents, latent_dim)
    history_ : `History`
    model_, scaling_ : the trained module, and the map between its units and the user's

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.GSLVMOGP(num_components=2, epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    num_components: int = 3
    latent_dim: int | str = "auto"
    num_inducing_latents: int | str = "auto"
    num_inducing_inputs: int | str = "auto"
    latent_kernel: str | gpytorch.kernels.Kernel = "rbf"


@dataclass(repr=False, eq=False)
class LVMOGP(_SeparableEstimator):
    """Latent variable multi-output GP: one separable kernel, the case Q = 1 of `GSLVMOGP`.

    The covariance of two cells is a kernel on their inputs times a kernel on the latent vectors of their outputs. All
    work is done on the factors of Kronecker products, so that many inducing inputs are cheap. Settings and attributes
    are those of `GSLVMOGP` without `num_components`; latent means have shape (p, latent_dim).

    Parameters
    ----------
    latent_dim, num_inducing_latents, num_inducing_inputs, kernel, latent_kernel, likelihood, latent_posterior
        See `GSLVMOGP`.
    latent_prior_mean, latent_prior_variance, epochs, batch_inputs, batch_outputs, learning_rate, num_samples
        See `GSLVMOGP`.
    standardize, preset, dtype, device, random_state, progress, freeze_likelihood, max_grad_norm
        See `GSLVMOGP`.

    Examples
    --------
    >>> import numpy as np, manygp
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> Y = np.sin(6 * X + np.linspace(0, 1, 5))
    >>> Y[10:20, 2] = np.nan
    >>> model = manygp.LVMOGP(epochs=20).fit(X, Y)
    >>> model.predict(X).shape
    (40, 5)
    """

    latent_dim: int | str = "auto"
    num_inducing_latents: int | str = "auto"
    num_inducing_inputs: int | str = "auto"
    latent_kernel: str | gpytorch.kernels.Kernel = "rbf"
