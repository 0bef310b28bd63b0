"""The scikit-learn facade: data in, model trained, predictions out. No mathematics."""

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from manygp.data import Scaling, Table, as_inputs, cells_table
from manygp.data.adapters import own_features
from manygp.data.coordinates import coordinates_of
from manygp.data.exposure import as_exposure, as_y_std, observed_exposure, observed_y_std
from manygp.data.labels import check_labels, input_frame
from manygp.data.names import as_positions, find_outputs
from manygp.data.seasons import with_circles
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, NotFittedError, SettingError
from manygp.estimators.checkpoint import deadline_of, open_checkpoint
from manygp.estimators.config import Config
from manygp.estimators.containers import ContainerMixin
from manygp.estimators.encoding import check_names
from manygp.estimators.preset import Preset
from manygp.estimators.remarks import remark_on_kernels, remark_on_learning, remark_on_values
from manygp.estimators.scoring import ScoringMixin
from manygp.estimators.settings import check_size, check_sizes, resolve_device, seasons_in
from manygp.estimators.summary import SummaryMixin
from manygp.estimators.tables import given_table
from manygp.estimators.together import TogetherMixin
from manygp.exchange import ALONE, Exchange
from manygp.likelihoods import Likelihood, Noiseless
from manygp.memory import foreseen
from manygp.prediction import Prediction
from manygp.summaries import JointCells
from manygp.summaries.cells import exposure_of
from manygp.training import History, Journal
from manygp.training.interrupts import ending_early

# Memory for one chunk of a prediction: draws x cells x inducing points, in numbers.
_CHUNK_NUMBERS = 8_000_000
# Draws of latent vectors where "auto" needs some.
_AUTO_DRAWS = 20


class Estimator(TogetherMixin, ContainerMixin, ScoringMixin, SummaryMixin, MultiOutputMixin, BaseEstimator):
    """Base of all estimators: a model of many outputs with `fit`, `predict`, `predict_dist`, `evaluate` and `save`.

    A leaf is a dataclass of its settings, defines `_fit_table`, which sets `model_`, `scaling_` and `history_`, and
    names the `Config` that builds its model.

    Attributes
    ----------
    n_features_in_, n_outputs_
        Number of input columns and of outputs.
    output_names_
        Names of the outputs, in order.
    config_
        What the model is, with nothing left open.
    history_
        Bound and its terms per epoch, and why training stopped.
    exposure_
        Exposure of the inputs, or of the observed cells of a list, given or estimated, if there was one.
    """

    # Draws of the predictive mixture: one component says it all, unless there are latent vectors to draw.
    num_samples: int | str = 1
    dtype: Any
    device: Any
    random_state: Any

    model_: Any
    scaling_: Scaling
    history_: History
    output_names_: tuple[Hashable, ...]
    n_features_in_: int
    n_outputs_: int
    exposure_: FloatArray
    # Settings may be changed after a fit, and those of the fit are needed to save its model.
    _settings_: dict[str, Any]
    _seed: int
    _flat_: bool
    # How far a fit has come, while it runs.
    _journal: Journal = Journal()
    # Who else takes part in a fit.
    _exchange: Exchange = ALONE
    # Whether the model hands the exposure of a cell to its likelihood.
    _knows_exposure = False
    # Whether the model knows what to make of noise that differs between cells.
    _knows_y_std = False
    # Whether a fit needs no more in memory than batches, and a part of the table to begin with.
    _reads_batches = False
    _config_class: type[Config]

    @abstractmethod
    def _check_settings(self) -> None:
        """Refuse settings that make no sense, whatever the data."""

    @abstractmethod
    def _fit_table(self, table: Table) -> None:
        """Train on a table and set `model_`, `scaling_` and `history_`."""

    @property
    @abstractmethod
    def _preset(self) -> Preset:
        """How the model is made, begun and trained."""

    def _sizes(self) -> dict[str, Any]:
        """The configuration as it is saved, from which `_restore` makes an untrained model like the fitted one."""
        return self._resolved().plain()

    def _restore(self, sizes: dict[str, Any], generator: torch.Generator | None = None) -> Any:
        """An untrained model of the sizes that `_sizes` told; what they do not tell is as the settings have it."""
        config = self._config_class.of(self, {"natural": self._preset.natural} | sizes)
        model = config.build(generator)
        model.config = config  # type: ignore[assignment]
        return model

    def _build(self, sizes: dict[str, Any], generator: torch.Generator | None = None) -> Any:
        """An untrained model, unless it would not fit into memory, where training takes a few times as much."""
        shown = ", ".join(f"{key}={value}" for key, value in sizes.items() if type(value) is int)
        with foreseen(f"A {type(self).__name__} of {shown}", "choose smaller sizes", resolve_device(self.device)):
            return self._restore(sizes, generator)

    def _kept_data(self) -> dict[str, FloatArray | IntArray]:
        """Data that are saved beside the model, by name, since predictions or users need them; a leaf may add some."""
        kept = {
            "exposure": getattr(self, "exposure_", None),
            "inputs": self._inputs_,
            "row_outputs": self._row_outputs_,
        }
        return {name: values for name, values in kept.items() if values is not None}

    def _keep_data(self, data: dict[str, Any]) -> None:
        """Take back what `_kept_data` gave."""
        if "exposure" in data:
            self.exposure_ = as_exposure(data["exposure"], len(data["exposure"]))
        if "inputs" in data:
            self._inputs_ = as_inputs(data["inputs"], self.n_features_in_)
        if "row_outputs" in data:
            self._row_outputs_ = as_positions(data["row_outputs"], len(data["inputs"]), self.n_outputs_)

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        mask: Any = None,
        output_names: Sequence[Hashable] | None = None,
        exposure: Any = None,
        y_std: Any = None,
        layer: str | None = None,
        inputs: Sequence[Hashable] | None = None,
        output_coordinates: Any = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: str | float = "5min",
        time_limit: str | float | None = None,
    ) -> Self:
        """Fit to a grid of observations.

        Parameters
        ----------
        X
            Inputs, shape (n, d): numpy, pandas or lists. Or all of the data: a frame, whose index is the input and
            whose columns are outputs; a DataArray, whose first dimension is the input and whose other dimensions are
            outputs, but for places that were never observed; an AnnData, with inputs in `obsm["spatial"]` and outputs
            named by `var_names`; or a `Table` of `manygp.data`.
        y
            Observations, shape (n, p) or (n,), NaN where missing: numpy, pandas, xarray or lists; or a scipy sparse
            matrix, which stays sparse and whose zeros are observations. What is too large for memory stays where it is
            (memory maps, HDF5, Zarr, dask, backed AnnData), for models that are trained on batches of it: `TLVMOGP`,
            `SVLMC`, `LVMOGP`, `GSLVMOGP`.
        mask
            True where a cell of y is observed; cells that are NaN are missing in any case.
        output_names
            Names of the outputs; those of a pandas or xarray y by default, else 0 to p − 1.
        exposure
            For counts: what the means of all outputs are multiplied by at each input, shape (n,), such as the library
            size of a spot; "auto" takes the totals of the rows over what the same cells hold on average.
        y_std
            For `TLVMOGP` with Gaussian observations: known standard deviations of their errors, in units of y, beside
            which a noise is learnt all the same. A number for all; one for each output, in order or by name; one for
            each input, shape (n, 1); or one for each cell, in a container like that of y. Predictions have the errors
            that are typical of their output, and of their input if it is one of the fit.
        layer
            Layer of an AnnData that holds the observations; its `X` by default.
        inputs
            Columns of a frame that hold the inputs, where its index does not.
        output_coordinates
            For `TLVMOGP`: where the outputs are, so that latent vectors of neighbours are alike and new outputs can be
            predicted from their place alone. A row of numbers for each output in order, shape (p, c), or a data frame
            by output name; "names" if the names of the outputs are their coordinates; "coords" for the coordinates of a
            DataArray. Any numbers will do: latitude and longitude (see `coordinate_system`), altitude, embeddings of
            genes.
        checkpoint
            Folder in which the fit keeps how far it has come. The same call finds it there after a crash or an
            interrupt, goes on, and ends as if it had never stopped. What it needs of it stays there after the fit.
        checkpoint_every
            Time between two writes: text such as "90s", "5min" or "2h", or seconds.
        time_limit
            About how long the fit may take, in the same way. Training goes as far as it can in most of that time, step
            sizes fall in time, and what follows training has the rest; a table that takes longer to look at does so.
        """
        table = given_table(X, y, mask, output_names, layer, inputs)
        if isinstance(output_coordinates, str) and output_coordinates == "coords":
            output_coordinates = coordinates_of(X if y is None else y, table.output_names)
        if y_std is not None:
            table.y_std = as_y_std(y_std, table, X if y is None else y)
        self._fit(table, exposure, output_coordinates, checkpoint, checkpoint_every, time_limit)
        held = X if y is None else y
        # An AnnData or a table, which comes alone, has outputs side by side.
        is_array_like = isinstance(y, list | tuple) or (hasattr(y, "__array__") and not hasattr(y, "ndim"))
        self._flat_ = getattr(held, "ndim", np.asarray(y).ndim if is_array_like else 2) == 1
        return self

    def fit_cells(
        self,
        x: Any,
        outputs: Any,
        y: Any,
        *,
        output_names: Sequence[Hashable] | None = None,
        exposure: Any = None,
        y_std: Any = None,
        output_coordinates: Any = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: str | float = "5min",
        time_limit: str | float | None = None,
    ) -> Self:
        """Fit to a list of observations, so that every output may have inputs of its own.

        Parameters
        ----------
        x
            Input of each cell, shape (c, d).
        outputs
            Name of the output of each cell, shape (c,).
        y
            Value of each cell, shape (c,).
        output_names
            Names of all outputs in order; by default those that occur.
        exposure
            As in `fit`, but of each cell, shape (c,); "auto" takes cells with the same input for a row.
        y_std
            As in `fit`, but of each cell, shape (c,), or one number for all.
        output_coordinates, checkpoint, checkpoint_every, time_limit
            As in `fit`.
        """
        table = cells_table(x, outputs, y, output_names)
        table.y_std = None if y_std is None else observed_y_std(y_std, y)
        exposure = None if exposure is None else observed_exposure(exposure, y)
        self._fit(table, exposure, output_coordinates, checkpoint, checkpoint_every, time_limit)
        self._flat_ = False
        return self

    def _fit(
        self,
        table: Table,
        exposure: Any = None,
        output_coordinates: Any = None,
        checkpoint: Any = None,
        checkpoint_every: Any = "5min",
        time_limit: Any = None,
    ) -> None:
        deadline = deadline_of(time_limit)
        if not self._knows_exposure and (exposure is not None or table.exposure is not None):
            raise SettingError(f"{type(self).__name__} takes no exposure: leave it out, or use TLVMOGP.")
        if not self._knows_y_std and table.y_std is not None:
            raise SettingError(
                f"{type(self).__name__} takes no y_std: leave it out, use TLVMOGP, or fix variances of outputs by "
                "likelihood=Gaussian(noise=..., learn_noise=False)."
            )
        if table.is_stored and not self._reads_batches:
            raise SettingError(
                f"{type(self).__name__} needs all cells in memory, and this table of {table.num_inputs:,} x "
                f"{table.num_outputs:,} is stored elsewhere: read the values first, as in y[:], or use TLVMOGP."
            )
        if exposure is not None:
            table.exposure = as_exposure(exposure, table)
        if output_coordinates is not None:
            self._place(table, output_coordinates)
        check_names(table.output_names)
        _warn_of_gaps(table)
        remark_on_values(self, table)
        remark_on_kernels(self)
        check_sizes(self.get_params(deep=False), resolve_device(self.device))
        # Whatever surrounds a fit: it needs gradients, and what ends a program should not end it without a model.
        with torch.inference_mode(False), torch.enable_grad(), ending_early():
            try:
                self._journal = self._exchange.journal(open_checkpoint, self, table, checkpoint, checkpoint_every)
                self._exchange = self._exchange.with_shards(self._journal.shards(self._exchange.shards))
                seasons = seasons_in(self, table)
                self._journal.deadline = deadline
                self._fit_table(table if seasons is None else table.with_inputs(with_circles(table.X, seasons)))
                self.scaling_ = replace(self.scaling_, seasons=seasons)
            finally:
                for name in ("_journal", "_exchange"):
                    self.__dict__.pop(name, None)
        self._after_fit()
        self._settings_ = self.get_params(deep=False)
        features = None if table.feature_names is None else np.asarray(table.feature_names, dtype=object)
        for name, value in (("exposure_", table.exposure), ("feature_names_in_", features)):
            self.__dict__.pop(name, None)
            if value is not None:
                setattr(self, name, value)
        self.n_features_in_, self.n_outputs_ = table.num_features, table.num_outputs
        self.output_names_, self._axes_ = table.output_names, table.axes
        # A copy: what the user does to their array later must not change where the model was fitted.
        self._inputs_, self._row_outputs_ = table.X.copy(), table.row_outputs
        remark_on_learning(self, table)

    def _after_fit(self) -> None:
        """What a leaf has to do once a fit has succeeded."""

    def _place(self, table: Table, output_coordinates: Any) -> None:
        """Say in the table where its outputs are."""
        raise SettingError(f"{type(self).__name__} takes no output_coordinates: leave them out, or use TLVMOGP.")

    def update(self, *observations: Any, **settings: Any) -> Self:
        """Take in further observations without a fit, which only `TLVMOGP` can do."""
        raise SettingError(f"{type(self).__name__} cannot be updated: fit it anew with all data, or use TLVMOGP.")

    # -- predicting ----------------------------------------------------------------------------------------------

    def predict(self, X: Any = None, return_std: bool = False, outputs: Any = None, *, exposure: Any = None) -> Any:
        """Predictive mean of the observations, shape (n, p), and their standard deviation if asked for.

        In the container that the values of the fit came in, see `set_output`: a frame for a frame, a DataArray for a
        DataArray, else an array.

        Parameters
        ----------
        X
            Inputs, shape (n, d), those of the fit by default: after a fit to a list of cells, these cells. Where inputs
            are dates, times and texts such as "2024-03-01" will do.
        return_std
            Whether to return (mean, std).
        outputs
            Names or positions of the outputs to predict; all by default.
        exposure
            As in `predict_dist`.
        """
        dist = self.predict_dist(X, outputs, exposure=exposure)
        flat = self._flat_ and outputs is None
        mean = self._in_container(dist.mean, X, dist, flat)
        return (mean, self._in_container(dist.std, X, dist, flat)) if return_std else mean

    def predict_dist(
        self, X: Any = None, outputs: Any = None, *, observation_noise: bool = True, exposure: Any = None
    ) -> Prediction:
        """Predictive distribution at all pairs of inputs and outputs.

        Parameters
        ----------
        X
            Inputs, shape (n, d); by default those of the fit, or its cells where it was given a list of cells.
        outputs
            Names or positions of the outputs to predict; all by default.
        observation_noise
            Whether to predict observations y; otherwise the function f behind them.
        exposure
            For counts: the exposure of each row of X, shape (n,); that of the fit by default where X is left out, and
            otherwise 1, at inputs of the fit too, since a prediction does not know which of them X repeats.
        """
        inputs, rows = self._asked(X)
        if X is None and exposure is None:
            exposure = getattr(self, "exposure_", None)
        if X is None and outputs is None and self._row_outputs_ is not None:
            return self._listed(inputs, self._row_outputs_, observation_noise, exposure, rows)
        chosen = find_outputs(self.output_names_, outputs)
        return self._prediction(inputs, chosen, (len(inputs), len(chosen)), observation_noise, exposure, rows)

    def predict_to(
        self,
        path: str | Path,
        X: Any = None,
        outputs: Any = None,
        *,
        observation_noise: bool = True,
        exposure: Any = None,
        level: float = 0.9,
    ) -> None:
        """Write predictions to a file, part by part, so that they need not fit into memory.

        Parameters
        ----------
        path
            A .zarr, .nc, .nc4, .csv or .parquet file; what is there already stays until all is written.
        X, outputs, observation_noise, exposure
            As in `predict_dist`.
        level
            Probability of the interval that is written beside mean and standard deviation.
        """
        asked: dict[str, Any] = {"observation_noise": observation_noise, "exposure": exposure}
        self.predict_dist(X, outputs, **asked).write(path, level)

    def predict_cells(
        self, x: Any, outputs: Any, *, observation_noise: bool = True, exposure: Any = None
    ) -> Prediction:
        """Predictive distribution of a list of cells: input x[i] and output outputs[i], with exposure[i] if given."""
        inputs, rows = self._asked(x)
        chosen = find_outputs(self.output_names_, outputs)
        if len(chosen) != len(inputs):
            raise DataError(f"x has {len(inputs)} rows and outputs names {len(chosen)}; give one output for each row.")
        return self._listed(inputs, chosen, observation_noise, exposure, rows)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted model to a folder, without pickle; a model already there is replaced once all is written.

        Settings are those of the fit, but for `num_samples`, which predictions take as it is now.

        Parameters
        ----------
        path
            The folder, made if there is none; links are followed.
        overwrite
            Whether to write into a folder that holds files of others, too, which stay as they are, and to replace a
            `manygp.json` there that is not a model's.
        """
        from manygp.estimators.persistence import save

        self._check_fitted()
        fitted = copy.copy(self).set_params(**self._settings_)
        fitted.num_samples = self.num_samples
        # Nothing is written that could not be loaded.
        fitted._check_settings()
        save(fitted, path, overwrite)

    # -- behind the scenes ---------------------------------------------------------------------------------------

    def _listed(
        self,
        inputs: FloatArray,
        outputs: IntArray,
        observation_noise: bool = True,
        exposure: Any = None,
        rows: pd.DataFrame | None = None,
    ) -> Prediction:
        """Predictive distribution of a list of cells, given by the numbers of their outputs."""
        return self._prediction(inputs, outputs, (len(inputs),), observation_noise, exposure, rows)

    @torch.inference_mode(False)
    def _prediction(
        self,
        inputs: FloatArray,
        outputs: IntArray,
        shape: tuple[int, ...],
        observation_noise: bool,
        exposure: Any,
        rows: pd.DataFrame | None,
    ) -> Prediction:
        """Predictive distribution of inputs times outputs, or of an output at each input, by the shape."""
        check_size("num_samples", self.num_samples, automatic=("auto",))
        device, num_samples, likelihood = (
            next(self.model_.parameters()).device,
            self._num_draws(),
            self.model_.likelihood,
        )
        check_sizes({"num_samples": num_samples}, device)
        predictor, size = self._predictor(self._model_for(observation_noise)), math.prod(shape[1:])

        def locate(cells: IntArray) -> tuple[Tensor, Tensor]:
            # Small variances are differences of large numbers: predictions are float64 whatever the fit was.
            x = torch.as_tensor(self.scaling_.scale_x(inputs[cells // size]), device=device)
            return x, torch.as_tensor(outputs[cells if len(shape) == 1 else cells % size], device=device)

        def components(cells: IntArray) -> tuple[Tensor, Tensor, Tensor]:
            x, where = locate(cells)
            return *predictor(x, where), where

        def together(has_noise: bool) -> JointCells:
            joint = self._model_for(has_noise).joint(num_samples, self._seed)
            kind = likelihood if has_noise else Noiseless()
            return JointCells(joint, locate, math.prod(shape), kind, self.scaling_, of_cells)

        if exposure is not None:
            self._check_exposure(likelihood)
            exposure = as_exposure(exposure, shape[0])
        of_cells = self._of_cells(exposure_of(exposure, size, device), locate)
        return Prediction(
            components,
            shape,
            likelihood if observation_noise else Noiseless(),
            self.scaling_,
            max(1, _CHUNK_NUMBERS // (num_samples * max(predictor.width, 1))),
            inputs,
            outputs,
            [self.output_names_[i] for i in outputs],
            device,
            of_cells if observation_noise else None,
            rows,
            # Some outputs of a field need not span all of it.
            self._axes_ if len(outputs) >= self.n_outputs_ else replace(self._axes_, grid=()),
            together,
            getattr(self, "progress", False),
            self._exchange,
        )

    def _of_cells(
        self, exposure: Callable[[IntArray], Tensor | None], locate: Callable[[IntArray], tuple[Tensor, Tensor]]
    ) -> Callable[[IntArray], Tensor | None]:
        """What the likelihood is told of single cells by number: their exposure; a leaf may know more."""
        return exposure

    def _num_draws(self) -> int:
        """Draws of latent vectors; "auto" takes as many as usual where it takes any."""
        # A numpy integer may be too short for products of sizes.
        return _AUTO_DRAWS if isinstance(self.num_samples, str) else int(self.num_samples)

    def _predictor(self, model: Any) -> Any:
        """Components of predictions; a leaf may know a shorter way where `num_samples` is "auto"."""
        return model.predictor(self._num_draws(), self._seed)

    def _model_for(self, observation_noise: bool) -> Any:
        """The model that predicts, with noise or without; a leaf may have noise beside that of its likelihood."""
        return self.model_

    def _check_exposure(self, likelihood: Likelihood) -> None:
        if not (self._knows_exposure and likelihood.takes_exposure):
            raise SettingError(
                f"{type(self).__name__} with {type(likelihood).__name__} observations takes no exposure, which belongs "
                "to counts: leave it out or choose another likelihood."
            )

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError(f"This {type(self).__name__} has not been fitted: call fit or fit_cells first.")
        check_is_fitted(self, "model_")

    def _check_inputs(self, X: Any) -> FloatArray:
        self._check_fitted()
        inputs = as_inputs(X, self.n_features_in_, model=type(self).__name__)
        frame = input_frame(X) if isinstance(X, Table) else X
        try:
            # Only frames have names to compare; scikit-learn finds no features in series, times or AnnData.
            validate_data(self, inputs if own_features(frame) is None else frame, reset=False, skip_check_array=True)
        except ValueError as error:
            raise DataError(" ".join(str(error).split())) from error
        check_labels(X, self._axes_)
        return inputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.non_deterministic = False
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")


def _warn_of_gaps(table: Table) -> None:
    empty = np.flatnonzero(table.count_per_output() == 0)
    if len(empty):
        names = ", ".join(repr(table.output_names[i]) for i in empty[:3]) + (", …" if len(empty) > 3 else "")
        warnings.warn(
            f"{len(empty)} of {table.num_outputs} outputs have no observed cell ({names}): they are predicted from the "
            "prior.",
            UserWarning,
            stacklevel=4,
        )
