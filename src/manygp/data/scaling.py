"""Centre and scale of inputs and outputs, and the way back to the user's units."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from manygp.data.seasons import with_circles
from manygp.data.table import FloatArray, IntArray, Table
from manygp.errors import DataError, SettingError

OutputScale = Literal["output", "global", "none"]

# A spread below this share of the centre is rounding error of a constant, not variation.
CONSTANT_SHARE = 1e-12
# Squares of smaller deviations are nothing in double precision.
_SMALLEST = 1e-150


@dataclass(frozen=True, eq=False)
class Scaling:
    """An affine map of inputs and of every output to comparable size: scaled = (raw - center) / scale.

    Inputs with seasons have points on circles behind them first, see `with_circles`.

    Parameters
    ----------
    x_center, x_scale
        One number per input column, shape (d,), or (d + 2 k,) with k seasons.
    y_center, y_scale
        One number per output, shape (p,).
    seasons
        Column and period of every season, shape (k, 2); None where there are none.
    """

    x_center: FloatArray
    x_scale: FloatArray
    y_center: FloatArray
    y_scale: FloatArray
    seasons: FloatArray | None = None

    @classmethod
    def fit(cls, table: Table, inputs: bool = True, outputs: OutputScale = "output") -> "Scaling":
        """Estimate a scaling from the observed cells.

        Parameters
        ----------
        table
            The observations.
        inputs
            Whether to standardise the input columns; constant columns are only centred.
        outputs
            "output" standardises each output by itself, a constant one by the median scale of the others, and falls
            back to the global centre and scale where an output has fewer than two observed cells; "global" uses one
            centre and scale for all outputs; "none" leaves the values as they are. Where all are constants, their
            level is their unit.
        """
        if inputs:
            x_center = table.X.mean(axis=0) if table.num_inputs else np.zeros(table.num_features)
            x_scale = _spread(table.X.std(axis=0) if table.num_inputs else x_center, x_center, np.ones(1))
            _warn_of_inputs(table)
        else:
            x_center, x_scale = np.zeros(table.num_features), np.ones(table.num_features)
        y_center, y_scale = _output_statistics(table, outputs)
        return cls(x_center, x_scale, y_center, y_scale)

    @property
    def num_features(self) -> int:
        """Number of input columns as the user has them."""
        return len(self.x_center) - (0 if self.seasons is None else 2 * len(self.seasons))

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return len(self.y_center)

    def pick(self, outputs: IntArray) -> "Scaling":
        """Return the scaling of some of the outputs."""
        return replace(self, y_center=self.y_center[outputs], y_scale=self.y_scale[outputs])

    def scale_x(self, X: FloatArray) -> FloatArray:
        """Return inputs in scaled units, shape (..., d), with circles of seasons behind them."""
        X = X if self.seasons is None else with_circles(X, self.seasons)
        return (X - self.x_center) / self.x_scale

    def unscale_x(self, X: FloatArray) -> FloatArray:
        """Return scaled inputs in the user's units, shape (..., d)."""
        return (X * self.x_scale + self.x_center)[..., : self.num_features]

    def scale_y(self, y: FloatArray, outputs: IntArray | None = None) -> FloatArray:
        """Return values in scaled units; `outputs` names the output of each entry of the last axis."""
        center, scale = self._pick(outputs)
        return (y - center) / scale

    def unscale_mean(self, mean: FloatArray, outputs: IntArray | None = None) -> FloatArray:
        """Return means, quantiles or samples in the user's units."""
        center, scale = self._pick(outputs)
        return mean * scale + center

    def unscale_variance(self, variance: FloatArray, outputs: IntArray | None = None) -> FloatArray:
        """Return variances in the user's units."""
        return variance * self._pick(outputs)[1] ** 2

    def unscale_log_prob(self, log_prob: FloatArray, outputs: IntArray | None = None) -> FloatArray:
        """Return log densities of scaled values as log densities in the user's units."""
        # log p(y) = log p(scaled) - log scale
        return log_prob - np.log(self._pick(outputs)[1])

    def arrays(self) -> dict[str, FloatArray]:
        """Return the numbers by name, for saving."""
        return {
            "x_center": self.x_center,
            "x_scale": self.x_scale,
            "y_center": self.y_center,
            "y_scale": self.y_scale,
        } | ({} if self.seasons is None else {"seasons": self.seasons})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> "Scaling":
        """Rebuild a scaling from what `arrays` returned."""
        names = ("x_center", "x_scale", "y_center", "y_scale", "seasons")
        return cls(**{name: np.asarray(arrays[name], dtype=np.float64) for name in names if name in arrays})

    def _pick(self, outputs: IntArray | None) -> tuple[FloatArray, FloatArray]:
        if outputs is None:
            return self.y_center, self.y_scale
        return self.y_center[outputs], self.y_scale[outputs]


def _output_statistics(table: Table, outputs: OutputScale) -> tuple[FloatArray, FloatArray]:
    zeros, ones = np.zeros(table.num_outputs), np.ones(table.num_outputs)
    if outputs == "none":
        return zeros, ones
    if outputs not in ("output", "global"):
        raise SettingError(f'outputs={outputs!r} is not a way to scale; choose "output", "global" or "none".')
    counts = table.count_per_output()
    if not counts.any():
        raise DataError("There is no observed cell to estimate a scale from; give at least one value that is not NaN.")
    with np.errstate(over="ignore", invalid="ignore"):
        center = table.power_sums(1, zeros) / np.maximum(counts, 1)
        squares = table.power_sums(2, center)
        total = counts.sum()
        global_center = float((counts / total) @ center)
        # Σ_cells (y - c)² = Σ_p [Σ_cells of p (y - c_p)² + n_p (c_p - c)²]
        global_squares = float((squares + counts * (center - global_center) ** 2).sum())
    if not np.isfinite(global_squares):
        raise DataError("The values of Y are too large to square in double precision; divide them by a large number.")
    _warn_of_outputs(table, counts, center, squares)
    # Without any variation the level is the only unit that there is.
    level = abs(global_center) if abs(global_center) > _SMALLEST else 1.0
    global_scale = float(_spread(np.sqrt(global_squares / total), np.asarray(global_center), np.asarray(level)))
    if outputs == "global":
        return zeros + global_center, ones * global_scale
    std, few = np.sqrt(squares / np.maximum(counts, 1)), counts < 2
    varies = ~few & (std > CONSTANT_SHARE * np.abs(center))
    # A constant has no unit of its own: it has that of the other outputs, so that no choice of units shows, if its
    # rounding errors are small in it.
    unit = np.maximum(np.median(std[varies]), CONSTANT_SHARE * np.abs(center)) if varies.any() else global_scale
    scale = np.where(varies, std, unit)
    return np.where(few, global_center, center), np.where(few, global_scale, scale)


def _warn_of_inputs(table: Table) -> None:
    """Warn of inputs that differ by so little that they pass for equal."""
    reach = np.ptp(table.X, axis=0) if table.num_inputs else np.zeros(table.num_features)
    faint = (reach > 0) & (reach < _SMALLEST)
    if faint.any():
        _warn_of_unit("An input", reach[faint][0])


def _warn_of_outputs(table: Table, counts: IntArray, center: FloatArray, squares: FloatArray) -> None:
    """Warn of values that differ by so little that they pass for constants."""
    faint = (counts > 1) & (squares < _SMALLEST**2 * counts)
    if not faint.any():
        return
    with np.errstate(over="ignore"):
        squares = table.power_sums(2, center, unit=_SMALLEST)
    std = np.sqrt(squares / np.maximum(counts, 1)) * _SMALLEST
    varies = faint & (std > CONSTANT_SHARE * np.abs(center))
    if varies.any():
        output = int(np.flatnonzero(varies)[0])
        _warn_of_unit(f"Output {table.output_names[output]!r}", std[output])


def _warn_of_unit(subject: str, spread: float) -> None:
    message = f"{subject} varies by {spread:.3g} only, too little to square: it counts as constant, so change its unit."
    warnings.warn(message, UserWarning, stacklevel=5)


def _spread(std: FloatArray, center: FloatArray, unit: FloatArray) -> FloatArray:
    """Return standard deviations with those of constants replaced by a unit."""
    return np.where(std > CONSTANT_SHARE * np.abs(center), std, unit)
