"""Predictive distributions: a mixture over draws of the latent vectors, cell by cell."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from manygp.data import Scaling
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError, SettingError
from manygp.likelihoods import Gaussian, Likelihood, Noiseless

__all__ = ["Prediction"]

# Components of at most this many cells times draws are kept; larger predictions are computed anew for each question.
_MAX_KEPT = 4_000_000
_BISECTIONS = 60

Components = Callable[[IntArray], tuple[Tensor, Tensor, Tensor]]


class Prediction:
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
    ):
        self._components, self.shape, self._likelihood, self._scaling = components, shape, likelihood, scaling
        self._chunk_cells, self.inputs, self.output_names = chunk_cells, inputs, tuple(output_names)
        self._outputs, self._device = outputs, device
        self._kept: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

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
        def moments(mean: Tensor, variance: Tensor, outputs: Tensor, _: Tensor) -> Tensor:
            m, v = self._likelihood.predictive_moments(mean, variance, outputs)
            # var y = E[v_s] + var[m_s] over the components s
            return torch.stack([m.mean(0), v.mean(0) + m.var(0, unbiased=False)])

        mean, variance = self._map(moments, 2)
        outputs = self._outputs
        return self._scaling.unscale_mean(mean, outputs), self._scaling.unscale_variance(variance, outputs)

    # -- distribution --------------------------------------------------------------------------------------------

    def quantile(self, q: float | Sequence[float]) -> FloatArray:
        """Predictive quantile; for several levels, the first axis of the result runs over them."""
        levels = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if levels.ndim != 1 or not np.all((levels > 0) & (levels < 1)):
            raise SettingError(f"quantile({q!r}): levels must lie strictly between 0 and 1.")

        def quantiles(mean: Tensor, variance: Tensor, outputs: Tensor, _: Tensor) -> Tensor:
            return torch.stack([self._bisect(mean, variance, outputs, float(level)) for level in levels])

        values = self._scaling.unscale_mean(self._map(quantiles, len(levels)), self._outputs)
        return values[0] if np.ndim(q) == 0 else values

    def interval(self, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of the central interval that holds y with probability `level`."""
        if not 0 < level < 1:
            raise SettingError(f"interval({level!r}): the level must lie strictly between 0 and 1.")
        lower, upper = self.quantile([0.5 - 0.5 * level, 0.5 + 0.5 * level])
        return lower, upper

    def sample(self, n: int = 1, random_state: int = 0) -> FloatArray:
        """`n` draws of every cell, independent between cells, with a new first axis."""
        if n < 1:
            raise SettingError(f"sample({n!r}): the number of draws must be at least 1.")
        generator = torch.Generator(self._device).manual_seed(random_state)

        def draw(mean: Tensor, variance: Tensor, outputs: Tensor, _: Tensor) -> Tensor:
            chosen = torch.randint(mean.shape[0], (n, mean.shape[1]), generator=generator, device=self._device)
            noise = torch.randn(chosen.shape, dtype=mean.dtype, generator=generator, device=self._device)
            f = mean.gather(0, chosen) + variance.gather(0, chosen).sqrt() * noise
            return self._likelihood.sample(f, outputs.expand(f.shape), generator)

        return self._scaling.unscale_mean(self._map(draw, n), self._outputs)

    def log_prob(self, Y: Any) -> FloatArray:
        """Log predictive density of given values; NaN where they are NaN."""
        return self._map_values(Y, [self._log_prob])[0] - np.log(self._scaling.y_scale[self._outputs])

    def cdf(self, Y: Any) -> FloatArray:
        """Predictive probability of a value at or below the given ones; NaN where they are NaN."""
        return self._map_values(Y, [self._cdf])[0]

    def crps(self, Y: Any) -> FloatArray:
        """Continuous ranked probability score of given values (lower is better); NaN where they are NaN."""
        return self._map_values(Y, [self._crps])[0] * self._scaling.y_scale[self._outputs]

    def score(self, Y: Any) -> dict[str, float]:
        """Averages over the cells of Y that are not NaN.

        Keys: `mse`, `nll`, `crps`, `coverage50` and `coverage90` (shares of values inside the central intervals), and
        `num_cells`.
        """
        mean, log_prob, cdf, crps = self._map_values(Y, [self._mean, self._log_prob, self._cdf, self._crps])
        values, scale = self._as_values(Y), self._scaling.y_scale[self._outputs]
        seen = ~np.isnan(values)
        tail = np.abs(cdf[seen] - 0.5)
        return {
            "mse": float(np.mean((self._scaling.unscale_mean(mean, self._outputs) - values)[seen] ** 2)),
            "nll": float(-np.mean((log_prob - np.log(scale))[seen])),
            "crps": float(np.mean((crps * scale)[seen])),
            "coverage50": float(np.mean(tail <= 0.25)),
            "coverage90": float(np.mean(tail <= 0.45)),
            "num_cells": int(seen.sum()),
        }

    # -- export --------------------------------------------------------------------------------------------------

    def to_frame(self, level: float = 0.9) -> pd.DataFrame:
        """A long table: inputs, output, mean, std and the ends of the central interval."""
        lower, upper = self.interval(level)
        percent = f"{100 * level:g}"
        rows = np.arange(len(self.inputs))
        names: Sequence[Hashable] = self.output_names
        if len(self.shape) == 2:
            rows, names = rows.repeat(self.shape[1]), list(self.output_names) * self.shape[0]
        frame = pd.DataFrame(self.inputs[rows], columns=[f"x{d}" for d in range(self.inputs.shape[1])])
        frame["output"] = pd.Series(list(names), dtype=object)
        columns = {"mean": self.mean, "std": self.std, f"lower{percent}": lower, f"upper{percent}": upper}
        return frame.assign(**{name: values.reshape(-1) for name, values in columns.items()})

    # -- one chunk at a time -------------------------------------------------------------------------------------

    def _mean(self, mean: Tensor, variance: Tensor, outputs: Tensor, _: Tensor) -> Tensor:
        return self._likelihood.predictive_moments(mean, variance, outputs)[0].mean(0)

    def _log_prob(self, mean: Tensor, variance: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        # log 1/S Σ_s E[p(y | f_s)]
        parts = self._likelihood.predictive_log_prob(mean, variance, y, outputs)
        return torch.logsumexp(parts, 0) - math.log(parts.shape[0])

    def _cdf(self, mean: Tensor, variance: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        return self._likelihood.predictive_cdf(mean, variance, y, outputs).mean(0)

    def _crps(self, mean: Tensor, variance: Tensor, outputs: Tensor, y: Tensor) -> Tensor:
        if not isinstance(self._likelihood, Gaussian | Noiseless):
            raise SettingError(f"The CRPS has no closed form for {type(self._likelihood).__name__} observations.")
        mean, variance = self._likelihood.predictive_moments(mean, variance, outputs)
        s = mean.shape[0]
        spread = sum(
            (_absolute_moment(mean - mean.roll(k, 0), variance + variance.roll(k, 0)).mean(0) for k in range(s)),
            torch.zeros_like(y),
        )
        # CRPS = E|Y − y| − ½ E|Y − Y'|, both sums over Gaussian components
        return _absolute_moment(y - mean, variance).mean(0) - 0.5 * spread / s

    def _bisect(self, mean: Tensor, variance: Tensor, outputs: Tensor, level: float) -> Tensor:
        """Solve cdf(y) = level between bounds that hold the quantiles of all components."""
        m, v = self._likelihood.predictive_moments(mean, variance, outputs)
        # By Chebyshev's inequality no component has its quantile farther out.
        reach = (v / min(level, 1.0 - level)).sqrt()
        lower, upper = (m - reach).amin(0), (m + reach).amax(0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            below = self._cdf(mean, variance, outputs, middle) < level
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return 0.5 * (lower + upper)

    # -- iteration over chunks -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _map(self, function: Callable[..., Tensor], rows: int) -> FloatArray:
        """Apply a function to all cells; it returns (rows, b) for a chunk of b cells."""
        result = np.empty((rows, math.prod(self.shape)))
        for cells, (mean, variance, outputs) in self._chunks(np.arange(result.shape[1])):
            result[:, cells] = function(mean, variance, outputs, mean[0]).cpu().numpy()
        return result.reshape(rows, *self.shape)

    @torch.no_grad()
    def _map_values(self, Y: Any, functions: Sequence[Callable[..., Tensor]]) -> list[FloatArray]:
        """Apply functions of (components, y) to the cells whose value is not NaN, in one pass."""
        values = self._as_values(Y)
        scaled = self._scaling.scale_y(values, self._outputs).reshape(-1)
        results = [np.full(scaled.shape, np.nan) for _ in functions]
        for cells, (mean, variance, outputs) in self._chunks(np.flatnonzero(~np.isnan(scaled))):
            y = torch.as_tensor(scaled[cells]).to(mean)
            for result, function in zip(results, functions, strict=True):
                result[cells] = function(mean, variance, outputs, y).cpu().numpy()
        return [result.reshape(self.shape) for result in results]

    def _as_values(self, Y: Any) -> FloatArray:
        values = np.asarray(Y, dtype=np.float64)
        if values.ndim == 1 and len(self.shape) == 2 and self.shape[1] == 1:
            values = values[:, None]
        if values.shape != self.shape:
            raise DataError(f"Y has shape {values.shape}, but the prediction has shape {self.shape}; they must agree.")
        return values

    def _chunks(self, cells: IntArray) -> Iterator[tuple[IntArray, tuple[Tensor, Tensor, Tensor]]]:
        everything = len(cells) == math.prod(self.shape)
        for start in range(0, len(cells), self._chunk_cells):
            chunk = cells[start : start + self._chunk_cells]
            parts = self._kept.get(start) if everything else None
            if parts is None:
                parts = self._components(chunk)
                if everything and parts[0].shape[0] * len(cells) <= _MAX_KEPT:
                    self._kept[start] = parts
            yield chunk, parts


def _absolute_moment(d: Tensor, variance: Tensor) -> Tensor:
    """E|X| of X ~ N(d, variance)."""
    σ = variance.sqrt()
    z = d / σ
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2.0 * math.pi)
    return 2.0 * σ * density + d * (2.0 * torch.special.ndtr(z) - 1.0)
