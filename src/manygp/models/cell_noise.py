"""Gaussian noise that differs between the cells of an output: known, or learnt for every input."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manygp.data import Scaling, Table
from manygp.data.batches import known_noise
from manygp.data.table import IntArray
from manygp.variational.known_inputs import KnownInputs

# Prior variance of the logarithms of factors to begin with, and the least; the least mean square of residuals.
_SPREAD, _LEAST_SPREAD, _LEAST_SQUARE = 0.25, 0.02, 1e-12


class CellNoise(nn.Module):
    """σ²_np = σ²_p exp(τ_n) + s²_np: what a cell has of noise beside σ²_p, that of its output.

    s_np is known; τ_n ~ N(0, ω) is learnt, and ω with it, or zero. The c_n cells of an input have a say of c_n/2 in the
    precision of τ_n, so that by Laplace's approximation

        log p(y | ω) ≈ log p(y | τ) − ½ Σ_n (τ_n²/ω + log(1 + ½ c_n ω)),   v_n = 1 / (1/ω + ½ c_n)

    with v_n the variance of what is not known of τ_n: factors are near 1 where an input has few cells, or inputs do not
    differ. Cells that were not observed have the known noise that is typical of their output, times the ratio that is
    typical of their input; new inputs have the ratio 1.

    Parameters
    ----------
    num_outputs, num_inputs, num_features
        Number of outputs, of inputs of the table, and of their dimensions. A list of cells has no inputs that outputs
        share, and counts none.
    is_learned
        Whether τ_n is learnt.

    Attributes
    ----------
    log_factor, log_spread
        τ_n, shape (n,), and log ω, shape ().
    count
        c_n, shape (n,).
    typical, ratio
        The known variance that is typical of each output in scaled units, shape (p,), and its ratios, shape (n,).
    inputs
        Inputs of the table in scaled units, shape (n, d).
    """

    count: Tensor
    typical: Tensor
    ratio: Tensor
    inputs: Tensor

    def __init__(self, num_outputs: int, num_inputs: int, num_features: int, is_learned: bool):
        super().__init__()
        zeros = torch.zeros(num_inputs, dtype=torch.float64)
        self.log_factor = nn.Parameter(zeros, requires_grad=is_learned)
        spread = torch.tensor(_SPREAD, dtype=torch.float64).log()
        self.log_spread = nn.Parameter(spread, requires_grad=is_learned)
        self.register_buffer("count", zeros.clone())
        self.register_buffer("ratio", torch.ones_like(zeros))
        self.register_buffer("typical", torch.zeros(num_outputs, dtype=torch.float64))
        self.register_buffer("inputs", torch.zeros(num_inputs, num_features, dtype=torch.float64))

    @torch.no_grad()
    def set_known(self, table: Table, scaling: Scaling) -> None:
        """Take over inputs and known noise of a table: medians over cells of an output, then over those of an input."""
        if len(self.inputs):
            self.inputs.copy_(torch.as_tensor(scaling.scale_x(table.X)))
            self.count.copy_(torch.as_tensor(table.count_per_input()))
        row, output, _ = table.cells(table.places())
        variance = known_noise(table, scaling, row, output)
        if variance is None:
            return
        typical = _medians(variance, output, table.num_outputs)
        self.typical.copy_(torch.as_tensor(np.where(np.isnan(typical), np.median(variance), typical)))
        if len(self.inputs):
            usual = self.typical.cpu().numpy()[output]
            ratio = _medians(np.divide(variance, usual, where=usual > 0, out=np.ones_like(usual)), row, len(self.ratio))
            self.ratio.copy_(torch.as_tensor(np.where(np.isnan(ratio), 1.0, ratio)))

    @torch.no_grad()
    def start(self, residual: Float[np.ndarray, " c"], row: IntArray) -> None:
        """Begin where residuals of cells have the factors, in units of anything that all inputs share.

        Logarithms of mean squares of c values have the variance 2/c by chance, and what they vary beyond that is ω.
        """
        count = np.bincount(row, minlength=len(self.inputs))
        seen = count > 0
        if not self.log_factor.requires_grad or seen.sum() < 2:
            return
        squares = np.maximum(np.bincount(row, np.square(residual), len(self.inputs))[seen] / count[seen], _LEAST_SQUARE)
        logs, chance = np.log(squares), 2.0 / count[seen]
        spread = max(float(logs.var() - chance.mean()), _LEAST_SPREAD)
        found = (logs - np.median(logs)) * spread / (spread + chance)
        self.log_factor[torch.as_tensor(np.flatnonzero(seen))] = torch.as_tensor(found)
        self.log_spread.fill_(np.log(spread))

    def factor(self, row: Int[Tensor, "*g"]) -> Float[Tensor, "*g"]:
        """exp(τ_n), what the noise of an output is multiplied by at inputs of the table; its mean at those behind."""
        if not len(self.inputs):
            return torch.ones(row.shape, dtype=torch.float64, device=row.device)
        is_known = row < len(self.inputs)
        factor = self.log_factor[row.clamp(max=len(self.inputs) - 1)].exp()
        return torch.where(is_known, factor, self._usual())

    def beside(
        self, own: Float[Tensor, "*g"], row: Int[Tensor, "*g"], known: Float[Tensor, "*g"] | None
    ) -> Float[Tensor, "*g"]:
        """What observed cells have beside σ²_p: σ²_p (exp(τ_n) − 1) + s²_np."""
        extra = own * (self.factor(row) - 1.0)
        return extra if known is None else extra + known

    def finder(self) -> Callable[[Float[Tensor, " b"], Float[Tensor, "b d"], Int[Tensor, " b"]], Float[Tensor, " b"]]:
        """What any cells have beside σ²_p, as a function of that, their inputs and their outputs."""
        inputs = KnownInputs(self.inputs) if len(self.inputs) else None

        def beside(own: Tensor, x: Tensor, outputs: Tensor) -> Tensor:
            typical = self.typical[outputs]
            if inputs is None:
                return typical
            row = inputs.find(x)
            is_known, at = row >= 0, row.clamp(min=0)
            # E exp(τ) = exp(τ_n + ½ v_n) at inputs of the table, exp(½ ω) elsewhere
            told = (self.log_factor[at] + 0.5 * self._open()[at]).exp()
            factor = torch.where(is_known, told, self._usual()) if self.log_factor.requires_grad else 1.0
            return own * (factor - 1.0) + typical * torch.where(is_known, self.ratio[at], 1.0)

        return beside

    def penalty(self, row: Int[Tensor, "*g"]) -> Float[Tensor, "*g"]:
        """½ (τ_n²/ω + log(1 + ½ c_n ω)) / c_n: what a cell of input n loses of the log likelihood at τ to that of ω."""
        if not len(self.inputs):
            return torch.zeros(row.shape, dtype=torch.float64, device=row.device)
        spread, τ, count = self.log_spread.exp(), self.log_factor[row], self.count[row]
        return 0.5 * (τ.square() / spread + (0.5 * count * spread).log1p()) / count

    def _usual(self) -> Float[Tensor, ""]:
        """E exp(τ) of an input of which nothing is known."""
        one = torch.ones_like(self.log_spread)
        return (0.5 * self.log_spread.exp()).exp() if self.log_factor.requires_grad else one

    def _open(self) -> Float[Tensor, " n"]:
        """v_n, what is not known of τ_n."""
        return 1.0 / ((-self.log_spread).exp() + 0.5 * self.count)

    def for_outputs(self, count: int, behind: bool = False) -> "CellNoise":
        """A copy for so many other outputs, or with so many more, of which nothing is known: they have the mean."""
        new = copy.deepcopy(self)
        mean = self.typical.mean().expand(count)
        new.typical = torch.cat([self.typical, mean]) if behind else mean.clone()
        return new


def _medians(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Medians of the values of every group, NaN where there are none."""
    order = np.lexsort((values, group))
    size = np.bincount(group, minlength=count)
    first = np.cumsum(size) - size
    middle = order[np.minimum(first + size // 2, len(order) - 1)]
    return np.where(size > 0, values[middle], np.nan)
