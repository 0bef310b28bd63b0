"""What estimators with sums of separable kernels share."""

import logging
from typing import Any

import gpytorch
import numpy as np
import torch
from torch import nn

from manygp.data import Grid, Scaling, Table
from manygp.data.factorisation import factorise
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.estimators.settings import check_choice, check_positive, check_size
from manygp.estimators.trained import TrainedEstimator
from manygp.kernels import KERNELS, make_kernel
from manygp.likelihoods import LIKELIHOODS, make_likelihood
from manygp.models import choose_latent_dim, choose_scaling, find_lengthscales
from manygp.models.gslvmogp import SeparableLatentModel
from manygp.models.separable_start import (
    choose_inducing_sizes,
    guessed_functions,
    start_separable_from_data,
    start_separable_from_prior,
)
from manygp.models.start import ScalingChoice
from manygp.variational import LATENT_POSTERIORS, Latents
from manygp.variational.kronecker import CholeskyKronecker, DenseCurvature, FactoredCurvature, NaturalKronecker

__all__ = ["SeparableEstimator"]

logger = logging.getLogger("manygp")

_PAPER = {"latent_dim": 3, "num_inducing_latents": 20, "num_inducing_inputs": 10}


class SeparableEstimator(TrainedEstimator):
    """What the two estimators share: a sum of Q kernels, each separable into inputs and latent vectors."""

    latent_dim: int | str
    num_inducing_latents: int | str
    num_inducing_inputs: int | str
    kernel: str | gpytorch.kernels.Kernel
    latent_kernel: str | gpytorch.kernels.Kernel
    likelihood: str | nn.Module
    latent_posterior: str
    latent_prior_mean: Any
    latent_prior_variance: float
    standardize: bool | str

    model_: SeparableLatentModel

    @property
    def _num_components(self) -> int:
        """Number Q of separable kernels."""
        raise NotImplementedError

    # -- fitted attributes ---------------------------------------------------------------------------------------

    @property
    def latent_mean_(self) -> FloatArray:
        """Means of q(h_pq): shape (p, latent_dim) for one component, else (p, num_components, latent_dim)."""
        self._check_fitted()
        return self._by_output(self.model_.latents.mean.detach())

    @property
    def latent_covariance_(self) -> FloatArray:
        """Covariances of q(h_pq), shaped as `latent_mean_` with one more axis."""
        self._check_fitted()
        latents = self.model_.latents
        with torch.no_grad():
            L = latents.factor(torch.arange(latents.num_outputs, device=latents.mean.device))
            return self._by_output(L @ L.mT)

    @property
    def inducing_inputs_(self) -> FloatArray:
        """Inducing inputs Z_X in the user's units, shape (num_inducing_inputs, d)."""
        self._check_fitted()
        Z = (self.model_.Z_X.detach() * self.model_.units).cpu().numpy()
        return Z * self.scaling_.x_scale + self.scaling_.x_center

    @property
    def inducing_latents_(self) -> FloatArray:
        """Inducing latent vectors Z_H, shape (num_components, num_inducing_latents, latent_dim)."""
        self._check_fitted()
        return self.model_.Z_H.detach().cpu().numpy()

    def _by_output(self, rows: torch.Tensor) -> FloatArray:
        grouped = rows.unflatten(0, (-1, self.model_.num_components))
        return (grouped[:, 0] if self.model_.num_components == 1 else grouped).cpu().numpy()

    # -- fitting -------------------------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        super()._check_settings()
        check_size("num_components", self._num_components)
        for name in ("latent_dim", "num_inducing_latents", "num_inducing_inputs"):
            check_size(name, getattr(self, name), automatic=("auto",))
        for name in ("kernel", "latent_kernel"):
            if not isinstance(getattr(self, name), gpytorch.kernels.Kernel):
                check_choice(name, getattr(self, name), KERNELS, " or a GPyTorch kernel")
        if not isinstance(self.likelihood, nn.Module):
            check_choice("likelihood", self.likelihood, LIKELIHOODS, " or a likelihood")
        check_choice("latent_posterior", self.latent_posterior, LATENT_POSTERIORS)
        check_positive("latent_prior_variance", self.latent_prior_variance)
        check_choice("standardize", self.standardize, (True, False, "output", "global", "completed"))

    def _begin(self, table: Table, rng: np.random.Generator) -> tuple[SeparableLatentModel, Scaling]:
        return self._begin_at_prior(table) if self.preset == "paper" else self._begin_at_data(table, rng)

    def _begin_at_prior(self, table: Table) -> tuple[SeparableLatentModel, Scaling]:
        """A model and scaling after the published procedure."""
        outputs: Any = {True: "global", False: "none"}.get(self.standardize, self.standardize)  # type: ignore[arg-type]
        if outputs == "completed":
            raise SettingError("standardize='completed' goes with preset='fast' only: use 'global' or 'output'.")
        is_affine = make_likelihood(self.likelihood, table.num_outputs).is_affine
        scaling = Scaling.fit(table, inputs=False, outputs=outputs if is_affine else "none")
        prior_mean = self._prior_mean(table.num_outputs)
        latent_dim = _PAPER["latent_dim"] if prior_mean is None else prior_mean.shape[1]
        model = self._restore(
            self._check_sizes(
                table,
                _given(self.latent_dim, latent_dim),
                _given(self.num_inducing_latents, _PAPER["num_inducing_latents"]),
                _given(self.num_inducing_inputs, _PAPER["num_inducing_inputs"]),
            )
        )
        start_separable_from_prior(model)
        return model, scaling

    def _begin_at_data(self, table: Table, rng: np.random.Generator) -> tuple[SeparableLatentModel, Scaling]:
        """A model and scaling with all that is not given chosen from the data."""
        likelihood = make_likelihood(self.likelihood, table.num_outputs)
        # What follows looks for functions, so that counts and labels are replaced by guesses of what is behind them.
        values = table if likelihood.is_affine else guessed_functions(table, likelihood)
        latent_dim, rank = self._choose_dims(values, rng)
        kinds = {True: ("global", "completed", "output"), False: ("none",)}.get(
            self.standardize,  # type: ignore[arg-type]
            (str(self.standardize),),
        )
        if likelihood.is_affine:
            choice = choose_scaling(values, kinds, rank, rng)
        else:
            scaling = Scaling.fit(table, inputs=self.standardize is not False, outputs="none")
            choice = ScalingChoice(scaling, "none", 0.0 if self._is_factorised(values) else np.inf)
        scaling = choice.scaling
        factors = factorise(values, scaling, rank, rng=rng) if self._is_factorised(values) else None
        found = find_lengthscales(values, scaling, factors, choice.held_out_error, rng)
        latents, inputs = choose_inducing_sizes(table, scaling, latent_dim, self._num_components, found)
        sizes = self._check_sizes(
            table, latent_dim, _given(self.num_inducing_latents, latents), _given(self.num_inducing_inputs, inputs)
        )
        logger.info("%s, standardisation of outputs: %s", sizes, choice.kind)
        model = self._restore(sizes)
        start_separable_from_data(model, table, scaling, found, factors, rng)
        return model, scaling

    def _choose_dims(self, table: Table, rng: np.random.Generator) -> tuple[int, int]:
        """Dimensions of the latent vectors, and the number of factors that all components start with."""
        Q, latent_dim, prior_mean = self._num_components, self.latent_dim, self._prior_mean(table.num_outputs)
        if latent_dim == "auto" and prior_mean is not None:
            latent_dim = prior_mean.shape[1]
        if latent_dim != "auto" and (Q == 1 or not self._is_factorised(table)):
            return int(latent_dim), int(latent_dim)
        # No more factors than the data support, nor than the components have room for.
        rank = choose_latent_dim(table, Scaling.fit(table, outputs="global"), rng)
        dims = _given(latent_dim, -(-rank // Q))
        return dims, min(rank, Q * dims)

    def _is_factorised(self, table: Table) -> bool:
        return isinstance(table, Grid) and table.num_outputs > 1 and self.latent_prior_mean is None

    def _check_sizes(self, table: Table, latent_dim: int, latents: int, inputs: int) -> dict[str, Any]:
        prior_mean = self._prior_mean(table.num_outputs)
        if prior_mean is not None and prior_mean.shape[1] != latent_dim:
            raise SettingError(
                f"latent_prior_mean has {prior_mean.shape[1]} columns but latent_dim is {latent_dim}: they must agree."
            )
        return {
            "num_features": table.num_features,
            "num_outputs": table.num_outputs,
            "num_components": int(self._num_components),
            "latent_dim": int(latent_dim),
            "num_inducing_latents": int(latents),
            "num_inducing_inputs": int(inputs),
        }

    def _prior_mean(self, num_outputs: int) -> FloatArray | None:
        if self.latent_prior_mean is None:
            return None
        try:
            mean = np.asarray(self.latent_prior_mean, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SettingError(
                f"latent_prior_mean holds no table of numbers ({error}): give a row for each of {num_outputs} outputs."
            ) from error
        if mean.ndim != 2 or mean.shape[0] != num_outputs or not np.isfinite(mean).all():
            raise SettingError(
                f"latent_prior_mean has shape {mean.shape}, but {num_outputs} rows of finite numbers are needed, one "
                "for each output."
            )
        return mean

    def _work(self, model: SeparableLatentModel, cells: float) -> float:
        j, k = model.Z_H.shape[1], model.Z_X.shape[0]
        if model.num_components == 1:
            return 6.0 * cells * (j**2 + k**2 + j * k) + 20.0 * (j**3 + k**3)
        # Three products and a half with the batch, and half a dozen among inducing variables.
        return 3.5 * cells * (j * k) ** 2 + 6.0 * (j * k) ** 3

    def _restore(self, sizes: dict[str, Any]) -> SeparableLatentModel:
        paper, Q, h, d = self.preset == "paper", sizes["num_components"], sizes["latent_dim"], sizes["num_features"]
        j, k = sizes["num_inducing_latents"], sizes["num_inducing_inputs"]
        prior_mean = self._prior_mean(sizes["num_outputs"])
        latents = Latents(
            sizes["num_outputs"] * Q,
            h,
            self.latent_posterior,
            None if prior_mean is None else torch.as_tensor(prior_mean).repeat_interleave(Q, 0),
            self.latent_prior_variance,
            sparse=not paper,
            relative=not paper,
        )
        curvature = FactoredCurvature(j, k) if Q == 1 else DenseCurvature(j, k)
        likelihood = make_likelihood(self.likelihood, sizes["num_outputs"])
        likelihood.sparse_rows = not paper
        return SeparableLatentModel(
            [make_kernel(self.kernel, d, log_parameters=not paper) for _ in range(Q)],
            [make_kernel(self.latent_kernel, h, log_parameters=not paper) for _ in range(Q)],
            torch.zeros(k, d),
            torch.zeros(Q, j, h),
            CholeskyKronecker(j, k) if paper else NaturalKronecker(j, k, curvature),
            latents,
            likelihood,
            torch.ones(d),
            bias=None if likelihood.is_affine else torch.zeros(sizes["num_outputs"], 1),
        )

    def _sizes(self) -> dict[str, Any]:
        Q, j, h = self.model_.Z_H.shape
        return {
            "num_features": self.n_features_in_,
            "num_outputs": self.n_outputs_,
            "num_components": Q,
            "latent_dim": h,
            "num_inducing_latents": j,
            "num_inducing_inputs": len(self.model_.Z_X),
        }


def _given(setting: Any, otherwise: int) -> int:
    return otherwise if isinstance(setting, str) else int(setting)
