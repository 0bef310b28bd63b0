"""Predictive distributions: a mixture over draws of the latent vectors, cell by cell."""

import copy
import html
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from manygp.data import Scaling
from manygp.data.axes import Axes
from manygp.data.containers import output_columns, row_index
from manygp.data.fields import as_dataset, input_names, storable
from manygp.data.names import find_outputs, given_names
from manygp.data.numbers import as_numbers, as_pandas
from manygp.data.stores import FIELD_SUFFIXES
from manygp.data.streams import write_field_parts, write_frame_parts
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError
from manygp.exchange import ALONE, Exchange
from manygp.likelihoods import Likelihood, Noiseless
from manygp.memory import check_memory
from manygp.summaries import JointCells
from manygp.summaries.aggregate import central_levels, checked_levels
from manygp.summaries.mixture import Mixture
from manygp.summaries.together import TogetherMixin, check_draws
from manygp.training.progress import tracked

if TYPE_CHECKING:
    import xarray

__all__ = ["Prediction"]

# Components of at most this many cells times draws are kept; larger predictions are computed anew for each question.
_MAX_KEPT = 4_000_000
# Cells that are written to a file at once.
_PART_CELLS = 200_000
# Squares of larger errors, and their sums, are beyond double precision.
_LARGEST_ERROR = 1e150

Components = Callable[[IntArray], tuple[Tensor, Tensor, Tensor]]


class Prediction(TogetherMixin):
    """The predictive distribution of every cell asked for, in the user's units.

    Made by `predict_dist` of an estimator. All arrays have the shape of the request: (n, p) for inputs times outputs,
    (c,) for a list of cells. Nothing larger than a chunk of cells is held beyond the arrays that are returned.

    Parameters
    ----------
    components
        For flat cell numbers (b,): means (s, b) and variances (s, b) of the components of f, and outputs (b,).
    shape
        Shape of the request.
    likelihood
        What turns f into an observation.
    scaling
        The way back to the user's units.
    chunk_cells
        Number of cells that are computed together.
    inputs
        Inputs of the rows, for export.
    outputs, output_names
        Numbers and names of the columns, or of the output of each cell.
    device
        Where the components and the likelihood live.
    exposure
        For flat cell numbers (b,): what the likelihood is told of them, such as the exposure of counts; None for
        nothing.
    rows
        Inputs of the rows as the user knows them, for export; `inputs` by default.
    axes
        What the container of the fit called inputs and outputs.
    together
        All cells together, with the noise of observations or without; None if only single cells are known.
    progress
        Whether to show how far a long computation is: True, False, or "auto" for a bar on a terminal and the log
        elsewhere.
    exchange
        Other processes that ask the same questions of the same cells: each computes some of the chunks for all.
    """

    def __init__(
        self,
        components: Components,
        shape: tuple[int, ...],
        likelihood: Likelihood,
        scaling: Scaling,
        chunk_cells: int,
        inputs: FloatArray,
        outputs: IntArray,
        output_names: Sequence[Hashable],
        device: torch.device,
        exposure: Callable[[IntArray], Tensor | None] | None = None,
        rows: pd.DataFrame | None = None,
        axes: Axes | None = None,
        together: Callable[[bool], JointCells] | None = None,
        progress: bool | str = False,
        exchange: Exchange = ALONE,
    ):
        self._components, self.shape, self._likelihood, self._scaling = components, shape, likelihood, scaling
        self._chunk_cells, self.inputs, self.output_names = chunk_cells, inputs, tuple(output_names)
        self._outputs, self._device, self._exposure = outputs, device, exposure
        self._rows, self._axes = pd.DataFrame(inputs) if rows is None else rows, axes or Axes()
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._together_by, self._progress, self._exchange = together, progress, exchange

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.output_names[:3])) + (", ..." if len(self.output_names) > 3 else "")
        kind = "functions" if isinstance(self._likelihood, Noiseless) else f"{type(self._likelihood).__name__} values"
        axes = ("cells",) if len(self.shape) == 1 else ("inputs", "outputs")
        size = " x ".join(f"{count:,} {axis}" for count, axis in zip(self.shape, axes, strict=True))
        return f"<Prediction of {kind}: {size} ({names}); see mean, std, interval, sample and to_frame>"

    def _repr_html_(self) -> str:
        """The same with the first few cells, for notebooks; no others are computed."""
        n, p = self.shape[0], math.prod(self.shape[1:])
        rows, columns = np.arange(min(n, 5)), np.arange(min(p, 6))
        cells = (rows[:, None] * p + columns).reshape(-1)
        with torch.no_grad():
            mean, variance = (part.cpu().numpy() for part in self._mixture(cells).moments())
        which = self._outputs[cells if len(self.shape) == 1 else cells % p]
        center = self._scaling.unscale_mean(mean, which)
        spread = np.sqrt(self._scaling.unscale_variance(variance, which))
        texts = np.array([f"{a:.4g} ± {b:.2g}" for a, b in zip(center, spread, strict=True)]).reshape(len(rows), -1)
        names = ["prediction"] if len(self.shape) == 1 else [str(self.output_names[i]) for i in columns]
        frame = pd.DataFrame(texts, row_index(None, self._rows)[rows], names)
        return f"<div>{html.escape(repr(self))}{frame.to_html(border=0)}</div>"

    # -- moments -------------------------------------------------------------------------------------------------

    @property
    def mean(self) -> FloatArray:
        """Predictive mean."""
        return self._moments[0]

    @property
    def variance(self) -> FloatArray:
        """Predictive variance."""
        return self._moments[1]

    @property
    def std(self) -> FloatArray:
        """Predictive standard deviation."""
        return np.sqrt(self.variance)

    @cached_property
    def _moments(self) -> tuple[FloatArray, FloatArray]:
        mean, variance = self._map(lambda cells: torch.stack(cells.moments()), 2)
        outputs = self._outputs
        return self._scaling.unscale_mean(mean, outputs), self._scaling.unscale_variance(variance, outputs)

    # -- distribution --------------------------------------------------------------------------------------------

    def zero_probability(self) -> FloatArray:
        """Predictive probability of a value of exactly zero; zero unless values are discrete."""
        return self._map(lambda cells: cells.zero_probability().unsqueeze(0), 1)[0]

    def quantile(self, q: float | Sequence[float]) -> FloatArray:
        """Predictive quantile; for several levels, the first axis of the result runs over them.

        Of discrete values it is the smallest whole number that is not exceeded with a probability of at least q.
        """
        levels = checked_levels(q)
        found = self._map(lambda cells: torch.stack([cells.quantile(float(level)) for level in levels]), len(levels))
        values = self._scaling.unscale_mean(found, self._outputs)
        return values[0] if np.ndim(q) == 0 else values

    def interval(self, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of the central interval that holds y with probability `level`, or more if discrete."""
        lower, upper = self.quantile(central_levels(level))
        return lower, upper

    def sample(self, n: int = 1, random_state: int = 0, *, independent: bool = False) -> FloatArray:
        """`n` joint draws of all cells, with a new first axis.

        A draw is a function: the same at a cell however it is asked, and however many cells are asked for. Observations
        have noise of their own in every cell beside that.

        Parameters
        ----------
        n
            Number of draws.
        random_state
            Seed.
        independent
            Whether to draw every cell by itself instead, which is faster and says nothing about cells together.
        """
        check_draws(n, random_state)
        cells = math.prod(self.shape)
        # The draws themselves, and a few numbers for each of those of a chunk.
        check_memory(f"sample({n})", 8.0 * n * (cells + 4 * min(cells, self._chunk_cells)))
        if not independent and self._together_by is not None:
            return self._joint_draws(0, int(n), int(random_state))
        generator = torch.Generator(self._device).manual_seed(int(random_state))
        # Draws follow one after the other, so that every process makes all of them.
        drawn = self._map(lambda cells: cells.sample(int(n), generator), n, ALONE)
        return self._scaling.unscale_mean(drawn, self._outputs)

    def log_prob(self, Y: Any, plug_in: bool = False) -> FloatArray:
        """Log predictive density of given values, or log probability if they are discrete; NaN where they are NaN.

        Averages over f. With `plug_in`, the mean of f in each component of the mixture stands for f, as in the paper's
        figures for counts.
        """
        self._likelihood.check(self._as_values(Y))
        density = Mixture.plug_in_log_prob if plug_in else Mixture.log_prob
        return self._scaling.unscale_log_prob(self._map_values(Y, [density])[0], self._outputs)

    def cdf(self, Y: Any) -> FloatArray:
        """Predictive probability of a value at or below the given ones; NaN where they are NaN."""
        return self._map_values(Y, [Mixture.cdf])[0]

    def crps(self, Y: Any) -> FloatArray:
        """Continuous ranked probability score of given values (lower is better); NaN where they are NaN.

        In closed form for Gaussian observations, by sums or quadrature of the distribution function for all others.
        """
        self._likelihood.check(self._as_values(Y))
        return self._map_values(Y, [Mixture.crps])[0] * self._scaling.y_scale[self._outputs]

    def score(self, Y: Any, plug_in: bool = False) -> dict[str, float]:
        """Averages over the cells of Y that are not NaN.

        Keys: `mse`, `nll` (see `log_prob` for `plug_in`), `crps`, `coverage50` and
        `coverage90` (shares of values inside the central intervals), and `num_cells`. An interval of whole numbers
        holds more than its level, so discrete values count by the share of their probability that lies in the middle
        half, or 90 per cent, of the distribution: what a randomised interval would cover on average.
        """
        values, scale = self._as_values(Y), self._scaling.y_scale[self._outputs]
        self._likelihood.check(values)
        seen = ~np.isnan(values)
        if not seen.any():
            raise DataError("Y has no value to score: every one is NaN, or there is none; give at least one.")
        functions: dict[str, Callable[[Mixture, Tensor], Tensor]] = {"cdf": Mixture.cdf, "log_prob": Mixture.log_prob}
        functions |= {"mean": lambda cells, _: cells.moments()[0], "crps": Mixture.quick_crps}
        functions |= {"plug_in": Mixture.plug_in_log_prob} if plug_in else {}
        found = dict(zip(functions, self._map_values(Y, list(functions.values())), strict=True))
        log_prob = self._scaling.unscale_log_prob(found["plug_in" if plug_in else "log_prob"], self._outputs)
        below = cdf = found["cdf"]
        if self._likelihood.is_discrete:
            # P(Y < y) = P(Y ≤ y) − P(y)
            below = np.maximum(cdf - np.exp(found["log_prob"]), 0.0)
        error = (self._scaling.unscale_mean(found["mean"], self._outputs) - values)[seen]
        if np.abs(error).max() > _LARGEST_ERROR:
            raise DataError(
                f"Y is {np.abs(error).max():.3g} away from its prediction, which is too far to square; check its units."
            )
        return {
            "mse": float(np.mean(error**2)),
            "nll": float(-np.mean(log_prob[seen])),
            "crps": float(np.mean((found["crps"] * scale)[seen])),
            "coverage50": float(np.mean(_share_inside(below[seen], cdf[seen], 0.5))),
            "coverage90": float(np.mean(_share_inside(below[seen], cdf[seen], 0.9))),
            "num_cells": int(seen.sum()),
        }

    # -- export --------------------------------------------------------------------------------------------------

    def to_frame(self, level: float = 0.9, wide: bool = False) -> pd.DataFrame:
        """A long table: inputs, output, mean, std and the ends of the central interval.

        Inputs have the names and dates that they were given with, else x0, x1 and so on. Labels of rows become the
        index. An input that is called like one of the other columns gets "input_" in front.

        With `wide`, inputs are the index, and `frame["mean"]`, `frame["std"]` and so on have a column for each output.
        A list of cells is long only.
        """
        named = {"lower": f"lower{100 * level:g}", "upper": f"upper{100 * level:g}"}
        columns = {named.get(name, name): values for name, values in self._statistics(level).items()}
        if wide and len(self.shape) == 1:
            raise SettingError("A list of cells has no outputs side by side: leave wide=True out.")
        if wide:
            index, outputs = row_index(None, self._rows), output_columns(self.output_names, self._axes)
            return pd.concat({name: pd.DataFrame(values, index, outputs) for name, values in columns.items()}, axis=1)
        frame = self._rows.iloc[np.arange(len(self._rows)).repeat(math.prod(self.shape[1:]))]
        if isinstance(self._rows.index, pd.RangeIndex):
            frame = frame.reset_index(drop=True)
        frame = frame.set_axis(input_names(frame, {"output", *columns}), axis=1)
        repeated = list(self.output_names) * (1 if len(self.shape) == 1 else self.shape[0])
        frame["output"] = pd.Series(repeated, frame.index, dtype=object)
        return frame.assign(**{name: values.reshape(-1) for name, values in columns.items()})

    def to_xarray(self, level: float = 0.9) -> "xarray.Dataset":
        """An xarray Dataset: mean, std and the ends of the central interval, lower and upper.

        After a fit to a DataArray it has the dimensions of that, and NaN where an output was not asked for; otherwise
        one dimension of inputs and one of outputs, called "input" and "output" unless they have names. A list of cells
        has the one dimension "cell". Stacked dimensions stay one, with their levels as plain coordinates, so that
        `to_netcdf` can write it all.
        """
        values = self._statistics(level)
        dataset: xarray.Dataset = storable(as_dataset(values, self._rows, self.output_names, self._axes))
        return dataset.assign_attrs(level=level)

    def write(self, path: str | Path, level: float = 0.9) -> None:
        """Write mean, std and interval of all cells to a file, part by part, so that they need not fit into memory.

        A Zarr or NetCDF file holds what `to_xarray` tells, a CSV or Parquet file what `to_frame` tells. What was there
        before stays until all is written.

        Parameters
        ----------
        path
            A .zarr, .nc, .nc4, .csv or .parquet file.
        level
            Probability of the interval.
        """
        path, step = Path(path), max(1, _PART_CELLS // math.prod(self.shape[1:]))
        parts = [slice(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step)]
        told = parts, self._rows, self.output_names, self._axes, {"level": level}

        def framed(rows: slice) -> pd.DataFrame:
            return self._part(rows).to_frame(level)

        def counted(rows: slice) -> dict[str, FloatArray]:
            return self._part(rows)._statistics(level)

        if path.suffix.lower() in FIELD_SUFFIXES:
            self._exchange.lead(counted, lambda compute: write_field_parts(path, compute, *told))
        else:
            self._exchange.lead(framed, lambda compute: write_frame_parts(path, map(compute, parts)))

    def _statistics(self, level: float) -> dict[str, FloatArray]:
        lower, upper = self.interval(level)
        return {"mean": self.mean, "std": self.std, "lower": lower, "upper": upper}

    def _part(self, rows: slice) -> "Prediction":
        """The prediction at some successive rows, or of some successive cells of a list."""
        first, is_list, told = rows.start * math.prod(self.shape[1:]), len(self.shape) == 1, self._exposure
        part = copy.copy(self)
        # What the whole has found of itself is not that of a part.
        part.__dict__.pop("_moments", None)
        part._components, part._kept = lambda cells: self._components(cells + first), {}
        part._exposure = None if told is None else lambda cells: told(cells + first)
        part.shape, part._together_by, part._progress = (rows.stop - rows.start, *self.shape[1:]), None, False
        part.inputs, part._rows = self.inputs[rows], self._rows.iloc[rows]
        if is_list:
            part._outputs, part.output_names = self._outputs[rows], self.output_names[rows]
        return part

    # -- iteration over chunks -----------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def _map(self, function: Callable[[Mixture], Tensor], rows: int, exchange: Exchange | None = None) -> FloatArray:
        """Apply a function to all cells; it returns (rows, b) for a chunk of b cells."""
        exchange, result = exchange or self._exchange, np.zeros((rows, math.prod(self.shape)))
        for cells, mixture in self._chunks(np.arange(result.shape[1]), exchange):
            result[:, cells] = function(mixture).cpu().numpy()
        return exchange.total(result).reshape(rows, *self.shape)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _map_values(self, Y: Any, functions: Sequence[Callable[[Mixture, Tensor], Tensor]]) -> list[FloatArray]:
        """Apply functions to the cells whose value is not NaN, in one pass."""
        values = self._as_values(Y)
        scaled = self._scaling.scale_y(values, self._outputs).reshape(-1)
        is_gap, results = np.isnan(scaled), np.zeros((len(functions), len(scaled)))
        for cells, mixture in self._chunks(np.flatnonzero(~is_gap), self._exchange):
            y = torch.as_tensor(scaled[cells]).to(mixture.parts[0])
            for result, function in zip(results, functions, strict=True):
                result[cells] = function(mixture, y).cpu().numpy()
        return [np.where(is_gap, np.nan, result).reshape(self.shape) for result in self._exchange.total(results)]

    def _mixture(self, cells: IntArray, parts: tuple[Tensor, Tensor, Tensor] | None = None) -> Mixture:
        """The predictive distributions of some cells by number."""
        mean, variance, outputs = self._components(cells) if parts is None else parts
        told = None if self._exposure is None else self._exposure(cells)
        return Mixture(self._likelihood, mean, variance, outputs, None if told is None else told.to(mean))

    def _as_values(self, Y: Any) -> FloatArray:
        Y = as_pandas(Y)
        if isinstance(Y, pd.DataFrame) and set(names := given_names(Y.columns)) == set(self.output_names):
            # Columns that say which outputs they are may come in any order.
            Y = Y.iloc[:, find_outputs(names, self.output_names)]
        values = as_numbers(Y, "Y", allow_dates=False)
        if values.ndim == 1 and len(self.shape) == 2 and self.shape[1] == 1:
            values = values[:, None]
        if values.shape != self.shape:
            raise DataError(f"Y has shape {values.shape}, but the prediction has shape {self.shape}; they must agree.")
        # Torch does not read arrays backwards.
        return values.copy() if min(values.strides) < 0 else values

    def _chunks(self, cells: IntArray, exchange: Exchange) -> Iterator[tuple[IntArray, Mixture]]:
        """The predictive distributions of some cells, chunk by chunk, of which processes take turns."""
        everything = len(cells) == math.prod(self.shape)
        starts = range(0, len(cells), self._chunk_cells)[exchange.rank :: exchange.size]
        for start in tracked(starts, self._progress, "predicting"):
            chunk = cells[start : start + self._chunk_cells]
            parts = self._kept.get(start) if everything else None
            if parts is None:
                parts = self._components(chunk)
                if everything and parts[0].shape[0] * len(cells) <= _MAX_KEPT:
                    self._kept[start] = parts
            yield chunk, self._mixture(chunk, parts)


def _share_inside(below: FloatArray, cdf: FloatArray, level: float) -> FloatArray:
    """Share of [below, cdf] that lies in the central `level` of [0, 1]; whether the point does if they are one."""
    first, last = 0.5 - 0.5 * level, 0.5 + 0.5 * level
    width = cdf - below
    inside = np.minimum(cdf, last) - np.maximum(below, first)
    point = (cdf >= first) & (cdf <= last)
    return np.where(width > 1e-9, np.clip(inside / np.maximum(width, 1e-9), 0.0, 1.0), point)
