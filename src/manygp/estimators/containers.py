"""Ways in and out of an estimator for the containers that people have: frames, fields, AnnData."""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from sklearn import get_config

from manygp.data.axes import Axes
from manygp.data.containers import OTHER_FRAMES, in_container, known_inputs
from manygp.data.frames import long_parts
from manygp.data.labels import as_dates, is_annotated, labelled_inputs
from manygp.data.names import find_outputs
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError
from manygp.estimators.filling import fill_long, fill_table

if TYPE_CHECKING:
    from manygp.prediction import Prediction

CONTAINERS = ("default", "numpy", "pandas", "xarray", *OTHER_FRAMES)


class ContainerMixin:
    """What an estimator knows of the container that its fit was given."""

    output_names_: tuple[Hashable, ...]
    exposure_: FloatArray
    # What the container of the fit called inputs and outputs.
    _axes_: Axes = Axes()
    # Inputs of the fit, and the output of each of them where they are cells: where predictions without inputs are made.
    _inputs_: FloatArray | None = None
    _row_outputs_: IntArray | None = None
    _flat_: bool

    # Of `Estimator`.
    fit_cells: Any
    predict_dist: Any
    _check_fitted: Any
    _check_inputs: Any

    def fit_long(
        self,
        frame: Any,
        *,
        inputs: Sequence[Hashable] | Hashable,
        output: Hashable,
        value: Hashable,
        output_names: Sequence[Hashable] | None = None,
        exposure: Hashable | None = None,
        y_std: Hashable | None = None,
        output_coordinates: Any = None,
        checkpoint: Any = None,
        checkpoint_every: str | float = "5min",
        time_limit: str | float | None = None,
    ) -> Self:
        """Fit to a long frame, one observation in each row.

        Parameters
        ----------
        frame
            A frame of pandas, polars or the like.
        inputs
            Columns, or levels of the index, that hold the inputs, or the one that does.
        output
            Column that names the output of each row.
        value
            Column of the observed values; rows where it is missing are left out.
        output_names
            Names of all outputs in order; by default those that occur.
        exposure
            For counts: the column of exposures, or "auto", see `fit_cells`.
        y_std
            The column of known standard deviations, see `fit_cells`.
        output_coordinates, checkpoint, checkpoint_every, time_limit
            As in `fit`.
        """
        told = None if exposure == "auto" else exposure
        x, outputs, y, exposures = long_parts(frame, inputs, output, value, told)
        self.fit_cells(
            x,
            outputs,
            y,
            output_names=output_names,
            exposure="auto" if exposure == "auto" else exposures,
            y_std=None if y_std is None else long_parts(frame, inputs, output, value, y_std)[3],
            output_coordinates=output_coordinates,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            time_limit=time_limit,
        )
        return self

    def set_output(self, *, transform: str | None = None) -> Self:
        """Say what `predict` returns, as scikit-learn's transformers have it.

        Parameters
        ----------
        transform
            "default" for the container of the fit, "numpy", "pandas", "polars" or "xarray"; None changes nothing.
            Without a choice of its own, a model follows `sklearn.set_config(transform_output=...)`.
        """
        if transform is not None and transform not in CONTAINERS:
            raise SettingError(f"set_output(transform={transform!r}) is unknown: use one of {', '.join(CONTAINERS)}.")
        if transform is not None:
            # The name under which scikit-learn keeps it, and hands it on to clones.
            self._sklearn_output_config = {"transform": transform}
        return self

    def fill(
        self,
        X: Any,
        y: Any = None,
        *,
        statistic: str = "mean",
        level: float = 0.9,
        inputs: Sequence[Hashable] | None = None,
        exposure: Any = None,
    ) -> Any:
        """The same table with its gaps filled; what was observed stays as it is.

        Parameters
        ----------
        X, y
            A table as `fit` takes it: a frame, a DataArray, or inputs and values. It need not be that of the fit.
            Columns of a frame that are no outputs of the model, and places of a field that the model does not know,
            such as land, stay as they are.
        statistic
            What gaps are filled with: "mean", or "lower" or "upper" for the ends of the central interval; or "std",
            which puts 0 where something was observed.
        level
            Probability of the interval.
        inputs
            Columns of a frame that hold the inputs, where its index does not.
        exposure
            For counts: the exposure of each row; that of the fit by default if the inputs are those of the fit, else 1.
        """
        self._check_fitted()
        return fill_table(self, X, y, (statistic,), level, inputs, exposure)[statistic]

    def fill_long(
        self,
        frame: Any,
        *,
        inputs: Sequence[Hashable] | Hashable,
        output: Hashable,
        value: Hashable,
        statistic: str = "mean",
        level: float = 0.9,
    ) -> Any:
        """The same long frame with its missing values filled, see `fill` and `fit_long`."""
        self._check_fitted()
        return fill_long(self, frame, inputs, output, value, (statistic,), level)[statistic]

    def annotate(self, data: Any, *, exposure: Any = None, key: str = "manygp") -> None:
        """Write what the model says into an AnnData.

        `layers[f"{key}_mean"]` and `layers[f"{key}_std"]` are the predictions at the places of its observations for
        all of its variables, which must be outputs of the model; `varm[f"{key}_latent"]` are the means of the latent
        vectors, if the model has some.

        Parameters
        ----------
        data
            The AnnData.
        exposure
            As in `predict_dist`: with 1, the default, the layers are maps that do not depend on library sizes.
        key
            What the names begin with.
        """
        self._check_fitted()
        if not is_annotated(data):
            raise DataError(f"annotate takes an AnnData and got a {type(data).__name__}; use predict_dist instead.")
        names = tuple(data.var_names)
        dist = self.predict_dist(data, names, exposure=exposure)
        data.layers[f"{key}_mean"] = dist.mean.astype(np.float32)
        data.layers[f"{key}_std"] = dist.std.astype(np.float32)
        latents: FloatArray | None = getattr(self, "latent_mean_", None)
        if latents is not None:
            data.varm[f"{key}_latent"] = latents[find_outputs(self.output_names_, names)]

    def _asked(self, X: Any) -> tuple[FloatArray, pd.DataFrame]:
        """Inputs of a prediction as numbers and as the user knows them; those of the fit for None."""
        self._check_fitted()
        if X is not None:
            X = as_dates(X, self._axes_)
            if isinstance(X, pd.Index) and [X.name] == list(getattr(self, "feature_names_in_", ())):
                X = X.to_frame(index=False)
            inputs: FloatArray = self._check_inputs(X)
            return inputs, labelled_inputs(X, inputs, self._axes_)
        if self._inputs_ is None:
            raise DataError("X is None, and this model was saved without the inputs of its fit; give X.")
        return self._inputs_, known_inputs(self._inputs_, self._axes_)

    def _in_container(self, values: FloatArray, X: Any, dist: "Prediction", is_flat: bool) -> Any:
        """Numbers of a prediction as the user wants them."""
        own = getattr(self, "_sklearn_output_config", {}).get("transform")
        wanted = get_config().get("transform_output", "default") if own is None else own
        container = self._axes_.container if wanted == "default" else wanted
        return in_container(values, X, dist._rows, dist.output_names, dist._axes, container, is_flat)
