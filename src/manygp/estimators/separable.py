"""What estimators with sums of separable kernels share."""

import logging
from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import nn

from manygp.data import Scaling, Table
from manygp.data.table import FloatArray
from manygp.estimators.config import Config
from manygp.estimators.new_outputs import LatentVariableEstimator
from manygp.estimators.noise import with_fixed_noise
from manygp.estimators.settings import check_choice, check_kernel, check_likelihood, check_positive, check_size
from manygp.estimators.standardize import check_scaled, published_scaling
from manygp.estimators.trained import given
from manygp.initialise.gslvmogp import choose_inducing_sizes, initialise, initialise_at_prior
from manygp.initialise.priors import PriorMeans, prior_means
from manygp.initialise.pseudo_values import check_support
from manygp.kernels import is_fused, make_kernel
from manygp.likelihoods import Likelihood, make_likelihood
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.terms import Level
from manygp.variational import LATENT_POSTERIORS, Latents
from manygp.variational.kronecker import CholeskyKronecker, DenseCurvature, FactoredCurvature, NaturalKronecker

__all__ = ["SeparableEstimator"]

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


class SeparableEstimator(LatentVariableEstimator):
    """What the two estimators share: a sum of Q kernels, each separable into inputs and latent vectors."""

    latent_dim: int | str
    num_inducing_latents: int | str
    num_inducing_inputs: int | str
    kernel: str | gpytorch.kernels.Kernel
    latent_kernel: str | gpytorch.kernels.Kernel
    likelihood: str | nn.Module
    latent_posterior: str
    latent_prior_variance: float

    model_: SeparableLatentModel
    _config_class = SeparableConfig
    _reads_batches = True
    _knows_exposure = True

    @property
    def _num_components(self) -> int:
        """Number Q of separable kernels."""
        raise NotImplementedError

    # -- fitted attributes ---------------------------------------------------------------------------------------

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

    # -- fitting -------------------------------------------------------------------------------------------------

    def _lengthscales(self) -> FloatArray | None:
        kernels: list[Any] = list(self.model_.input_kernels)
        if not all(is_fused(kernel) for kernel in kernels):
            return None
        each = torch.cat([kernel.base_kernel.lengthscale for kernel in kernels]) * self.model_.units
        return each.detach().cpu().numpy() * self.scaling_.x_scale

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_components", self._num_components)
        for name in ("latent_dim", "num_inducing_latents", "num_inducing_inputs"):
            check_size(name, getattr(self, name), automatic=("auto",))
        for name in ("kernel", "latent_kernel"):
            check_kernel(name, getattr(self, name))
        check_likelihood(self.likelihood)
        check_choice("latent_posterior", self.latent_posterior, LATENT_POSTERIORS)
        check_positive("latent_prior_variance", self.latent_prior_variance)
        check_choice("standardize", self.standardize, (True, False, "output", "global", "completed"))

    def _begin(
        self, table: Table, rng: np.random.Generator, generator: torch.Generator
    ) -> tuple[SeparableLatentModel, Scaling]:
        likelihood = make_likelihood(self.likelihood, table.num_outputs)
        check_support(likelihood, table)
        check_scaled(self.standardize, likelihood)
        if table.exposure is not None:
            self._check_exposure(likelihood)
        if self._preset.from_data:
            return self._begin_at_data(table, likelihood, rng)
        return self._begin_at_prior(table, likelihood, rng, generator)

    def _begin_at_prior(
        self, table: Table, likelihood: Likelihood, rng: np.random.Generator, generator: torch.Generator
    ) -> tuple[SeparableLatentModel, Scaling]:
        """A model and scaling after the published procedure."""
        scaling = published_scaling(self.standardize, table, likelihood.is_affine)
        is_pca = isinstance(self.latent_prior_mean, str)
        published = given(self.latent_dim, _PAPER["latent_dim"]) if is_pca else self.latent_dim
        prior = prior_means(self.latent_prior_mean, table, published, likelihood, rng)
        model = self._untrained(
            table,
            given(self.latent_dim, _PAPER["latent_dim"] if prior is None else prior.mean.shape[1]),
            given(self.num_inducing_latents, _PAPER["num_inducing_latents"]),
            given(self.num_inducing_inputs, _PAPER["num_inducing_inputs"]),
            prior,
        )
        initialise_at_prior(model, generator)
        return model, scaling

    def _begin_at_data(
        self, table: Table, likelihood: Likelihood, rng: np.random.Generator
    ) -> tuple[SeparableLatentModel, Scaling]:
        """A model and scaling with all that is not given chosen from the data."""
        prior = prior_means(self.latent_prior_mean, table, self.latent_dim, likelihood, rng)
        h: Any = self.latent_dim if prior is None else prior.mean.shape[1]
        Q: int = self._num_components
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
        model = self._untrained(table, latent_dim, latents, inputs, prior)
        logger.info(
            "latent_dim=%d, num_inducing_latents=%d, num_inducing_inputs=%d, standardisation of outputs: %s",
            *(latent_dim, latents, inputs, survey.choice.kind),
        )
        initialise(model, survey, found, factors)
        return model, survey.scaling

    def _untrained(
        self, table: Table, latent_dim: int, latents: int, inputs: int, prior: PriorMeans | None
    ) -> SeparableLatentModel:
        model = self._build(
            {
                "num_features": table.num_features,
                "num_outputs": table.num_outputs,
                "num_components": int(self._num_components),
                "latent_dim": int(latent_dim),
                "num_inducing_latents": int(latents),
                "num_inducing_inputs": int(inputs),
                "prior_mean": prior is not None,
            }
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
