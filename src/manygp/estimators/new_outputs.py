"""Estimators of models with latent vectors, which can predict outputs that they were not trained on."""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from manygp.data import Scaling, Table
from manygp.data.coordinates import describe_outputs
from manygp.data.names import checked_names
from manygp.data.numbers import as_numbers
from manygp.data.table import FloatArray
from manygp.errors import DataError, SettingError
from manygp.estimators.noise import hold_noise
from manygp.estimators.settings import check_choice, check_positive
from manygp.estimators.trained import TrainedEstimator
from manygp.likelihoods import Gaussian
from manygp.models.new_outputs import Population, model_of_new_outputs
from manygp.prediction import Prediction
from manygp.variational import LATENT_POSTERIORS

# Variances of latent vectors at least this large keep their factors regular.
_LEAST_VARIANCE = 1e-12
# The share of a latent vector's covariance that components of a mixture carry themselves, see `TransformedLatentModel`.
_LINEAR_SHARE = 0.5


@dataclass(repr=False, eq=False, kw_only=True)
class LatentVariableEstimator(TrainedEstimator):
    """An estimator of a model with latent vectors for every output, and so for outputs that it has not seen."""

    latent_posterior: str = "full"
    latent_prior_mean: Any = None
    latent_prior_variance: float = 1.0
    num_samples: int | str = 20

    def _check_settings(self) -> None:
        super()._check_settings()
        check_choice("latent_posterior", self.latent_posterior, LATENT_POSTERIORS)
        check_positive("latent_prior_variance", self.latent_prior_variance)
        if self.latent_prior_variance < _LEAST_VARIANCE:
            raise SettingError(
                f"latent_prior_variance={self.latent_prior_variance!r} is out of range: latent vectors would have no "
                f"density; use {_LEAST_VARIANCE} or more."
            )

    @property
    def latent_mean_(self) -> FloatArray:
        """Means of q(h), shape (p, latent_dim), or (p, num_components, latent_dim) if there are several components."""
        self._check_fitted()
        return self._by_output(self.model_.latents.mean.detach())

    @property
    def latent_covariance_(self) -> FloatArray:
        """Covariances of q(h), shaped as `latent_mean_` with one more axis."""
        self._check_fitted()
        latents = self.model_.latents
        with torch.no_grad():
            L = latents.factor(torch.arange(latents.num_outputs, device=latents.mean.device))
            return self._by_output(L @ L.mT)

    def _by_output(self, rows: Tensor) -> FloatArray:
        grouped = rows.unflatten(0, (-1, self.model_.num_components))
        values: FloatArray = (grouped[:, 0] if self.model_.num_components == 1 else grouped).cpu().numpy()
        return values

    @torch.inference_mode(False)
    def predict_new_outputs(
        self,
        X: Any,
        *,
        latent_mean: Any,
        latent_variance: Any = None,
        output_names: Sequence[Hashable] | None = None,
        observation_noise: bool = True,
        exposure: Any = None,
    ) -> Prediction:
        """Predictive distribution of outputs without any observation, at all inputs, shape (n, k).

        Parameters
        ----------
        X
            Inputs, shape (n, d).
        latent_mean
            Means of their latent vectors, shape (k, latent_dim): in the units of `latent_prior_mean` if the model was
            fitted with one, otherwise in those of `latent_mean_`. All components of an output have the same mean,
            unless there is one for each, shape (k, num_components, latent_dim).
        latent_variance
            Variances about those means, in standardised units: one for all, or shape (k,) or (k, latent_dim), or that
            of `latent_mean`. By default the variance of the prior; the paper inflates it, tenfold for sea temperatures.
        output_names
            Names of the new outputs; by default those in the index of a data frame, or 0 to k − 1.
        observation_noise
            Whether to predict observations y; otherwise the function f behind them.
        exposure
            For counts: the exposure of each row of X, shape (n,); 1 by default.
        """
        self._check_fitted()
        mean, variance = self._new_latents(latent_mean, latent_variance)
        new = self._seen_through(mean, variance, names_of(latent_mean, output_names, len(mean)))
        return new.predict_dist(X, observation_noise=observation_noise, exposure=exposure)

    def _knows_places(self, table: Table) -> bool:
        """Whether outputs are told apart by coordinates of the user's own."""
        is_given = self.latent_prior_mean is not None and not isinstance(self.latent_prior_mean, str)
        return table.coordinates is not None or is_given

    def _new_latents(self, mean: Any, variance: Any) -> tuple[Tensor, Tensor]:
        """Means and variances of all latent vectors in the units of the model, each (k, q h)."""
        latents, Q = self.model_.latents, self.model_.num_components
        is_each = getattr(mean, "ndim", 2) == 3
        rows = describe_outputs(mean.reshape(-1, mean.shape[-1]) if is_each else mean, -1, "latent_mean")
        if rows.shape[1] != latents.dim:
            raise DataError(
                f"latent_mean has {rows.shape[1]} columns, but latent vectors have {latents.dim} dimensions; give "
                "a row of as many numbers for each new output."
            )
        if is_each and mean.shape[1] != Q:
            raise DataError(
                f"latent_mean has shape {mean.shape}, but an output has {Q} latent vectors; give one row for all of "
                "them, or one for each."
            )
        center, scale = latents.prior_center.cpu().numpy(), latents.prior_scale.cpu().numpy()
        rows = (rows - center) / scale
        # (k, q, h)
        values = rows.reshape(-1, Q, latents.dim) if is_each else np.repeat(rows[:, None], Q, axis=1)
        spread = self._spread(latents.prior_variance if variance is None else variance, values.shape)
        return self._tensor(values).flatten(1), self._tensor(spread).flatten(1)

    def _spread(self, variance: Any, shape: tuple[int, ...]) -> FloatArray:
        given = as_numbers(variance, "latent_variance")
        own = given[:, None, None] if given.ndim == 1 else given[:, None] if given.ndim == 2 else given
        try:
            spread = np.broadcast_to(own, shape)
        except ValueError as error:
            expected = (shape[0], shape[2]) if shape[1] == 1 else shape
            raise DataError(
                f"latent_variance has shape {np.shape(given)}, but latent_mean has {expected}; give one number, or one "
                "for each new output, or one for each entry."
            ) from error
        if not (np.isfinite(spread) & (spread >= 0)).all():
            raise DataError("latent_variance holds numbers that are no variances; give finite ones of at least 0.")
        return np.maximum(spread, _LEAST_VARIANCE)

    def _population(self) -> tuple[Population, float, float]:
        """How the outputs of the fit differ, and the centre and scale that this is relative to."""
        center, scale = self.scaling_.y_center, self.scaling_.y_scale
        population = Population.of(self.model_, self._tensor(center), self._tensor(scale))
        return population, float(center.mean()), float(np.exp(np.log(scale).mean()))

    def _seen_through(self, mean: Tensor, variance: Tensor, names: Sequence[Hashable]) -> Self:
        """An estimator like this one whose outputs are new ones with h ~ N(mean, diag variance)."""
        population, base, unit = self._population()
        extra, left = population.extras_given(mean, variance.diag_embed())
        level, level_variance = torch.zeros_like(mean[:, 0]), torch.zeros_like(mean[:, 0])
        center, scale = np.full(len(mean), base), np.full(len(mean), unit)
        if population.extras == "level":
            level, level_variance = extra[:, 0], left[:, 0]
        if population.extras == "scale":
            center, scale = moved_scales(base, unit, extra)
            # Centres are off by as much in all cells; a wrong scale stretches f, whose spread is about 1.
            level_variance = left[:, 0] * (unit / self._tensor(scale)).square() + left[:, 1]
        model = model_of_new_outputs(self.model_, mean, variance, level, level_variance, self._linear_share())
        new = self._like(model, names)
        new._scale(replace(self.scaling_, y_center=center, y_scale=scale))
        return new

    def _scale(self, scaling: Scaling) -> None:
        """Set the units of outputs of which some are new; one noise that the user has fixed is theirs too."""
        self.scaling_ = scaling
        if isinstance(self.likelihood, Gaussian) and self.likelihood.is_shared:
            hold_noise(self.model_.likelihood, self.likelihood, scaling)

    def _like(self, model: Any, names: Sequence[Hashable]) -> Self:
        """A copy of this estimator with other outputs."""
        new = copy.copy(self)
        new.model_, new.output_names_, new.n_outputs_, new._flat_ = model, tuple(names), len(names), False
        # New outputs of a field may be anywhere, not on its grid.
        new._axes_ = replace(self._axes_, stacked=self._axes_.stacked or "output")
        # Cells of the fit are not cells of other outputs.
        new._row_outputs_ = None
        return new

    def _linear_share(self) -> float:
        return _LINEAR_SHARE if self._preset.from_data else 0.0

    def _tensor(self, values: FloatArray) -> Tensor:
        return torch.as_tensor(np.array(values, dtype=np.float64), device=self.model_.units.device)


def names_of(table: Any, given: Sequence[Hashable] | None, count: int) -> tuple[Hashable, ...]:
    """Names of new outputs: as given, those of a table's rows, or their numbers."""
    return checked_names(table.index if given is None and hasattr(table, "iloc") else given, count)


def moved_scales(base: float, unit: float, extra: Tensor) -> tuple[FloatArray, FloatArray]:
    """Centres and scales from what Population calls centre and log scale."""
    moved = extra.detach().cpu().numpy()
    return base + unit * moved[:, 0], unit * np.exp(moved[:, 1])
