"""Predictions of outputs that a model was not trained on: from where they are, and from a few observations."""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from manygp.data import Scaling, Table, as_table
from manygp.data.adapters import own_names
from manygp.data.coordinates import COORDINATE_SYSTEMS, describe_outputs, place_outputs
from manygp.data.exposure import as_exposure
from manygp.data.grid import Grid
from manygp.data.labels import is_annotated
from manygp.errors import DataError, SettingError
from manygp.estimators.cell_noise import noise_of_new_cells
from manygp.estimators.new_outputs import LatentVariableEstimator, moved_scales, names_of
from manygp.estimators.settings import check_choice
from manygp.estimators.trained import undone_by_interrupts
from manygp.estimators.update import Arrivals, updated
from manygp.initialise.pseudo_values import check_support
from manygp.likelihoods import Gaussian, Likelihood
from manygp.models import TransformedLatentModel
from manygp.models.adapt import Adaptation, NewCells, adapt_outputs, adapt_own_parts
from manygp.models.coordinates import add_places, numbers_at, refresh_prior, set_parameters
from manygp.models.new_outputs import Population, joined_model
from manygp.prediction import Prediction
from manygp.terms import Level
from manygp.training import History, settle

__all__ = ["AdaptiveEstimator"]

# Cells that are adapted to in one go.
_ADAPTED_CELLS = 200_000
# Epochs before which a prior over coordinates follows the latents; it does so before the first and after the last too.
_REFRESHED = (3, 10, 30, 100)
# Nats a cell that a run in its first epochs may be below the bound of its start, which is at its best q(u).
_SLACK = 0.5


class AdaptiveEstimator(LatentVariableEstimator):
    """An estimator that knows outputs by where they are, and takes in new ones from a few observations."""

    coordinate_system: str
    model_: TransformedLatentModel
    # What came since the fit.
    _arrivals: Arrivals | None = None

    @torch.inference_mode(False)
    def predict_new_outputs(
        self,
        X: Any,
        *,
        output_coordinates: Any = None,
        latent_mean: Any = None,
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
        output_coordinates
            Where they are, shape (k, c), as in `fit`: their latent vectors, levels and the like follow from those of
            their neighbours, and how sure that is enters the prediction.
        latent_mean
            Instead of coordinates, means of their latent vectors, shape (k, latent_dim): in the units of
            `latent_prior_mean` if the model was fitted with one, otherwise in those of `latent_mean_`.
        latent_variance
            Variances about those means, in standardised units: one for all, or shape (k,) or (k, latent_dim). By
            default the variance of the prior; the paper inflates it, tenfold for sea temperatures.
        output_names
            Names of the new outputs; by default those in the index of a data frame, or 0 to k − 1.
        observation_noise
            Whether to predict observations y; otherwise the function f behind them.
        exposure
            For counts: the exposure of each row of X, shape (n,); 1 by default.
        """
        self._check_fitted()
        if (output_coordinates is None) == (latent_mean is None):
            raise SettingError(
                "predict_new_outputs needs to know which outputs: give output_coordinates or latent_mean."
            )
        if latent_mean is None:
            features = self._features(output_coordinates)
            new = self._seen_at(features, names_of(output_coordinates, output_names, len(features)))
        else:
            mean, variance = self._new_latents(latent_mean, latent_variance)
            new = self._seen_through(mean, variance, names_of(latent_mean, output_names, len(mean)))
        return new.predict_dist(X, observation_noise=observation_noise, exposure=exposure)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def adapt(
        self,
        X: Any,
        y: Any = None,
        *,
        mask: Any = None,
        output_names: Sequence[Hashable] | None = None,
        exposure: Any = None,
        output_coordinates: Any = None,
        latent_mean: Any = None,
        latent_variance: Any = None,
    ) -> Self:
        """A model that also predicts new outputs, of which some observations are given; nothing else changes.

        The latent vectors of the new outputs, and what else belongs to an output (its level or scale, parameters of its
        likelihood), follow from their observations and from how the outputs of the fit differ.

        Parameters
        ----------
        X
            Inputs of the observations, shape (n, d).
        y
            Values of the new outputs, shape (n, k), NaN where missing.
        mask, output_names, exposure
            As in `fit`. Without names, new outputs are numbered on from those of the fit.
        output_coordinates, latent_mean, latent_variance
            What is known of them beforehand, as in `predict_new_outputs`; by default what is usual among the outputs of
            the fit. A model that was fitted with coordinates needs those of the new outputs.
        """
        self._check_fitted()
        table = as_table(X, y, mask, output_names)
        self._check_inputs(table if X is None or y is None else X)
        if exposure is not None:
            self._check_exposure(self.model_.likelihood)
            table.exposure = as_exposure(exposure, table)
        check_support(self.model_.likelihood, table)
        names = self._names_behind(table, output_names, X if is_annotated(X) else y)
        population, base, unit = self._population()
        prior = None if latent_mean is None else self._new_latents(latent_mean, latent_variance)
        if prior is not None and len(prior[0]) != len(names):
            raise DataError(f"latent_mean has {len(prior[0])} rows for {len(names)} new outputs; give a row for each.")
        features = None
        if output_coordinates is not None or self.model_.coordinates is not None:
            features = self._features(output_coordinates, names)
            prior = numbers_at(self.model_, features)
        found = self._adapted(table, population, base, unit, prior)
        new = self._joined(found, table, names, population.extras, base, unit)
        if features is not None and prior is not None:
            add_places(new.model_, features, *prior)
        return new

    def update(
        self,
        X: Any = None,
        y: Any = None,
        *,
        mask: Any = None,
        outputs: Any = None,
        exposure: Any = None,
        forget: Any = None,
    ) -> Self:
        """A model that has taken in further observations of its outputs, in seconds and without a fit.

        Only q(u), the latent vectors of the outputs observed, effects of new inputs and neighbours change. With
        Gaussian noise that is exact for the sparse posterior with all else held fixed. `surprise_` and `refit_advised_`
        tell whether the old parameters still fit.

        Parameters
        ----------
        X, y
            Inputs (n, d) and values (n, p), NaN where missing: new rows, and new cells of rows that are known. Cells
            that came with an earlier update are corrected; so are those of the fit in a model with neighbours, which
            knows them. Or a `Table` alone.
        mask, exposure
            As in `fit`.
        outputs
            Names or positions of the outputs that the columns of y are, as in `evaluate`.
        forget
            Observations that were wrong: a pair (X, y), NaN where nothing is to be forgotten. Those that came with an
            update leave nothing behind, whatever their values here. Those of the fit no longer count for q(u) and
            neighbours, but parameters have been learned with them; a model without neighbours needs their values.
        """
        return cast("Self", updated(self, X, y, mask, outputs, exposure, forget))

    @property
    def surprise_(self) -> float:
        """Nats a cell by which what came last was less likely than the model expected; NaN before any update."""
        self._check_fitted()
        return float("nan") if self._arrivals is None else self._arrivals.surprise

    @property
    def refit_advised_(self) -> bool:
        """Whether what came with updates is so unlike what was expected that the model should be fitted anew."""
        self._check_fitted()
        return self._arrivals is not None and self._arrivals.advises_refit

    def _after_fit(self) -> None:
        self._arrivals = None

    def _kept_data(self) -> dict[str, Any]:
        return super()._kept_data() | ({} if self._arrivals is None else self._arrivals.arrays())

    def _keep_data(self, data: dict[str, Any]) -> None:
        super()._keep_data(data)
        if "base_theta" in data:
            self._arrivals = Arrivals.from_arrays(data, self.model_.units.device)

    # -- coordinates ---------------------------------------------------------------------------------------------

    def _place(self, table: Table, output_coordinates: Any) -> None:
        check_choice("coordinate_system", self.coordinate_system, COORDINATE_SYSTEMS)
        for name, value, allowed in (
            ("preset", self.preset, ("fast", "quick")),
            ("latent_prior_mean", self.latent_prior_mean, (None,)),
            ("standardize", self.standardize, (True, False, "global")),
        ):
            if not any(value is choice or (isinstance(value, str) and value == choice) for choice in allowed):
                raise SettingError(
                    f"{name}={value!r} does not go with output_coordinates, from which the prior of latent vectors and "
                    f"all else of a new output must follow: use {allowed[0]!r}."
                )
        table.coordinates = place_outputs(output_coordinates, table.output_names, self.coordinate_system)

    def _train(
        self, model: Any, table: Table, scaling: Scaling, dtype: torch.dtype, device: torch.device, seed: int
    ) -> History:
        """Train a model; the prior over coordinates, if there is one, follows the latents.

        Where next to nothing is noise, factors that places have chosen are hard to improve on, and steps of any size
        may lead away from them: a run that does not reach their bound ends early, and one that ends below it is undone.
        """
        if table.coordinates is None:
            return super()._train(model, table, scaling, dtype, device, seed)
        plan = self._plan(table, scaling)
        schedule = self._schedule(plan, model)
        empty = torch.as_tensor(np.flatnonzero(table.count_per_output() == 0), device=model.units.device)

        def refresh(epoch: int) -> None:
            if epoch in _REFRESHED:
                refresh_prior(model, empty, seed)

        refresh_prior(model, empty, seed)
        is_gaussian, best, start = isinstance(model.likelihood, Gaussian), -np.inf, {}
        if is_gaussian:
            best = settle(model, plan, dtype=dtype, device=device, seed=seed)
            schedule.least_bound, start = best - _SLACK, copy.deepcopy(model.state_dict())
        history = self._run(model, plan, schedule, dtype, device, seed, refresh)
        if history.stop_reason == "interrupted":
            return history
        with undone_by_interrupts(model, history):
            refresh_prior(model, empty, seed)
            if is_gaussian and settle(model, plan, dtype=dtype, device=device, seed=seed) < best:
                model.load_state_dict(start)
                history.stop_reason = "start"
        return history

    def _features(self, given: Any, names: Sequence[Hashable] | None = None) -> Tensor:
        coordinates = self.model_.coordinates
        if coordinates is None:
            raise SettingError(
                "This model was fitted without output_coordinates: give them to fit, or latent_mean here."
            )
        if given is None:
            raise SettingError(
                "This model tells outputs apart by coordinates: give output_coordinates of the new ones."
            )
        values = describe_outputs(given, -1 if names is None else names, "output_coordinates")
        return self._tensor(coordinates.map.features(values))

    def _seen_at(self, features: Tensor, names: Sequence[Hashable]) -> Self:
        """An estimator like this one of outputs that lie somewhere else."""
        assert self.model_.coordinates is not None
        h, (mean, variance) = self.model_.latents.dim, numbers_at(self.model_, features)
        scale = self.model_.coordinates.tail_scales(features).unsqueeze(-1)
        new = self._seen_through(mean[:, :h], scale * variance[:, :h], names)
        new.model_.latents.freedom = float(self.model_.coordinates.freedom)
        at = h + len(self.model_.terms.constants())
        # Levels follow from places, where the model has some.
        for level, column in zip(new.model_.terms.of(Level), range(h, at), strict=False):
            level.set(mean[:, column])
            level.unknown.copy_(variance[:, column])
        set_parameters(new.model_.likelihood, mean[:, at:], self.model_.likelihood.row_names())
        return new

    # -- behind the scenes ---------------------------------------------------------------------------------------

    def _model_for(self, observation_noise: bool) -> Any:
        # What outputs do together at inputs of which nothing is known is noise as well.
        return self.model_ if observation_noise else self.model_.without_noise()

    def _adapted(
        self,
        table: Grid,
        population: Population,
        base: float,
        unit: float,
        prior: tuple[Tensor, Tensor] | None,
    ) -> Adaptation:
        k, t = table.num_outputs, len(population.mean)
        mean, covariance = population.mean.expand(k, t), population.covariance.expand(k, t, t)
        if prior is not None:
            mean, covariance = _prior_with_extras(population, *(part[:, : self.model_.latents.dim] for part in prior))
        counts = np.cumsum(table.count_per_output())
        parts = []
        for columns in np.split(np.arange(k), _cuts(counts)):
            cells = self._cells(table, columns, base, unit)
            parts.append(adapt_outputs(self.model_, cells, mean[columns], covariance[columns], population.extras))
        likelihood: Likelihood = parts[0].likelihood
        for part in parts[1:]:
            likelihood = likelihood.joined(part.likelihood)
        return Adaptation(
            torch.cat([part.mean for part in parts]), torch.cat([part.covariance for part in parts]), likelihood
        )

    def _cells(self, table: Grid, columns: np.ndarray, base: float, unit: float) -> NewCells:
        values = table.block(np.arange(table.num_inputs), columns)
        row, column = np.nonzero(~np.isnan(values))
        y = values[row, column]
        x, told = self._tensor(self.scaling_.scale_x(table.X[row])), table.exposure
        extra = None if told is None else self._tensor(told[row])
        if self.model_.cell_noise is not None:
            extra = noise_of_new_cells(self.model_, x)
        return NewCells(
            x,
            self._tensor((y - base) / unit if self.model_.likelihood.is_affine else y),
            torch.as_tensor(column, device=self.model_.units.device),
            extra,
        )

    def _joined(
        self, found: Adaptation, table: Grid, names: Sequence[Hashable], extras: str, base: float, unit: float
    ) -> Self:
        h = self.model_.latents.dim
        mean, covariance, extra = found.mean[:, :h], found.covariance[:, :h, :h], found.mean[:, h:]
        level = extra[:, 0] if extras == "level" else torch.zeros_like(mean[:, 0])
        model = joined_model(self.model_, mean, covariance, mean, level, found.likelihood, self._linear_share())
        new = self._like(model, (*self.output_names_, *names))
        center, scale = np.full(len(mean), base), np.full(len(mean), unit)
        if extras == "scale":
            center, scale = moved_scales(base, unit, extra)
        if model.observed is not None:
            values = table.block(np.arange(table.num_inputs), np.arange(table.num_outputs))
            row, column = np.nonzero(~np.isnan(values))
            x = self._tensor(self.scaling_.scale_x(table.X[row]))
            y = self._tensor((values[row, column] - center[column]) / scale[column])
            output = torch.as_tensor(self.n_outputs_ + column, device=model.units.device)
            beside = None if model.cell_noise is None else noise_of_new_cells(self.model_, x)
            adapt_own_parts(model, NewCells(x, y, output, beside))
            model.observed = model.observed.joined(x, output, y)
        old = self.scaling_
        new._scale(replace(old, y_center=np.append(old.y_center, center), y_scale=np.append(old.y_scale, scale)))
        return new

    def _names_behind(self, table: Grid, given: Any, Y: Any) -> tuple[Hashable, ...]:
        """Names of new outputs that none of the fit has."""
        if given is None and own_names(Y) is None:
            first = 1 + max([self.n_outputs_ - 1, *(name for name in self.output_names_ if isinstance(name, int))])
            return tuple(range(first, first + table.num_outputs))
        known = set(self.output_names_)
        twice = [name for name in table.output_names if name in known]
        if twice:
            raise DataError(
                f"{twice[0]!r} is an output of the fit already; give new outputs names of their own with output_names=."
            )
        return table.output_names


def _prior_with_extras(population: Population, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """A prior of all numbers of an output from one of its latent vector, extras as usual among outputs."""
    extra, extra_variance = population.extras_given(mean, variance.diag_embed())
    return torch.cat([mean, extra], -1), torch.cat([variance, extra_variance], -1).diag_embed()


def _cuts(counts: np.ndarray) -> np.ndarray:
    """Where to cut outputs into parts of a bounded number of cells, from running totals."""
    cuts = np.unique(np.searchsorted(counts, np.arange(_ADAPTED_CELLS, counts[-1], _ADAPTED_CELLS), side="right"))
    return cuts[(cuts > 0) & (cuts < len(counts))]
