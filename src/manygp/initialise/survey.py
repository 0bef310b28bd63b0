"""The survey of a table: all that models begin with, each fact computed once, when it is first asked for."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import cKDTree

from manygp.data import Scaling, Table
from manygp.data.factorisation import Factorisation
from manygp.data.table import FloatArray
from manygp.initialise.evidence import Lengthscales, OutputSample
from manygp.initialise.factorisers import Factoriser, make_factoriser
from manygp.initialise.gaps import Gaps
from manygp.initialise.pseudo_values import pseudo_values
from manygp.initialise.rehearsal import RANKS, Choice, rehearse, rehearse_alone
from manygp.initialise.trend import find_slopes, without_slopes
from manygp.likelihoods import Likelihood

__all__ = ["NoiseSpread", "Roughness", "Survey"]

# Relative gain of held-out error that is not worth a factor. Pseudo-values are mostly noise, of which no rank explains
# anything.
_TOLERANCE, _PSEUDO_TOLERANCE = 0.02, 2e-3
# The least noise, and the least as a share of the error on held-out cells.
_MIN_NOISE, _MIN_NOISE_SHARE = 1e-4, 0.1
# Differences of evidence, in nats a cell, that do not count, and how many times larger a noise is far larger, or not.
_FLAT, _FAR_MORE, _ABOUT = 0.02, 2.0, 1.5
# Noise of each output's own: least and most prior variance of its logarithm, and what it takes to tell.
_LEAST_SPREAD, _MOST_SPREAD = 0.1, 4.0
# Outputs for every factor, and cells of an output beyond its factors, from which on residuals tell of noise.
_OUTPUTS_PER_FACTOR, _LEAST_FREEDOM = 4, 4
# Inputs that are compared with neighbours: the nearest, one somewhat farther and one far away; and the least share of
# the difference from the nearest that is no part of a smooth function.
_MOST_NEIGHBORS, _FARTHER, _FAR, _LEAST_NUGGET, _LEAST_DISTANCE = 2000, 3, 16, 0.05, 1e-3
# How mean squares of differences grow with the distance of functions that have a derivative.
_SMOOTH = 1.5
_SCALINGS: dict[bool | str, tuple[str, ...]] = {True: ("global", "completed", "output"), False: ("none",)}


@dataclass(frozen=True)
class NoiseSpread:
    """How much the log noise of outputs differs: its prior variance, and a first guess of each output's deviation."""

    variance: float
    deviation: FloatArray

    @property
    def is_negligible(self) -> bool:
        """Whether one noise level serves all outputs."""
        return self.variance <= _LEAST_SPREAD


@dataclass(frozen=True)
class Roughness:
    """Standard deviations (1 + rank,) of what row mean and factors do at one input and no other, and at a few.

    `lengthscale` (d,) says how far a few inputs reach, in scaled units, and `half_integer` is twice the smoothness of
    Matern functions that change like that.
    """

    shocks: FloatArray
    rough: FloatArray
    lengthscale: FloatArray
    half_integer: int


if TYPE_CHECKING:
    fact = cached_property
else:

    class fact(cached_property):
        """A cached property that tells its survey how long it took."""

        def __get__(self, survey, owner=None):
            if survey is None:
                return self
            with survey.timed():
                return super().__get__(survey, owner)


class Survey:
    """What a table tells before training, for any model and both layouts.

    Every fact is computed when it is first asked for, and kept. Each has random numbers of its own, so that the order
    in which they are asked for changes nothing. `print(survey)` asks for all of them.

    Parameters
    ----------
    table
        The observations.
    likelihood
        What they are; where these are not real numbers on a scale of any unit, facts are those of pseudo-values of f.
    rng
        Source of randomness; one number of it is drawn.
    standardize
        As the setting of estimators: True lets held-out cells choose how outputs are scaled, False leaves inputs and
        outputs as they are, "global", "output" and "completed" name a way.
    max_rank
        Largest rank to look for.
    looks_for_trend
        Whether slopes along the inputs are taken off first where they explain much.
    """

    def __init__(
        self,
        table: Table,
        likelihood: Likelihood,
        rng: np.random.Generator,
        standardize: bool | str = True,
        max_rank: int | None = None,
        looks_for_trend: bool = False,
    ):
        self.table, self.likelihood, self.standardize = table, likelihood, standardize
        self.max_rank, self.looks_for_trend = max_rank, looks_for_trend
        self._seed = int(rng.integers(2**31))
        self._kept: dict[Any, Any] = {}
        self._seconds, self._depth = 0.0, 0
        # What was told last about functions, with the scaling that they are seen in, and about noise of outputs.
        self._found: tuple[Lengthscales, Scaling] | None = None
        self._spread: NoiseSpread | None = None

    @property
    def seconds(self) -> float:
        """Time that went into all facts so far."""
        return self._seconds

    # -- what is looked at -----------------------------------------------------------------------------------------

    @fact
    def gaps(self) -> Gaps:
        """The pattern of what is missing."""
        return Gaps.of(self.table, self.rng("gaps"))

    @fact
    def _pseudo(self) -> tuple[Table, FloatArray | None]:
        if self.likelihood.is_affine:
            return self.table, None
        return pseudo_values(self.likelihood, self.table, self.rng("pseudo-values"))

    @property
    def levels(self) -> FloatArray | None:
        """Levels of f (p,) behind counts or labels; None where observations are measurements."""
        return self._pseudo[1]

    @fact
    def slopes(self) -> FloatArray | None:
        """Slopes of every output along the inputs (p, d), in the table's units, where these explain much."""
        return find_slopes(self.table) if self.looks_for_trend and self.levels is None else None

    @fact
    def values(self) -> Table:
        """The observations, or pseudo-values less levels in their place; less the trend, if there is one."""
        return self._pseudo[0] if self.slopes is None else without_slopes(self.table, self.slopes, self.rng("values"))

    # -- rank, scaling, factors ------------------------------------------------------------------------------------

    @fact
    def _factoriser(self) -> Factoriser:
        return make_factoriser(self.values, self.rng("splits"))

    @fact
    def choice(self) -> Choice:
        """Rank and scaling by held-out cells."""
        is_affine, p = self.likelihood.is_affine, self.table.num_outputs
        kinds = _SCALINGS.get(self.standardize, (str(self.standardize),))
        if p == 1:
            kind: Any = "output" if not is_affine or kinds[0] == "completed" else kinds[0]
            found = Choice(1, Scaling.fit(self.values, inputs=kind != "none", outputs=kind), kind, np.inf)
        else:
            limit = min(RANKS[-1], p - 1, self.table.num_inputs - 1)
            most = max(1, limit if self.max_rank is None else min(self.max_rank, limit))
            tolerance = _TOLERANCE if is_affine else _PSEUDO_TOLERANCE
            found = rehearse(self.values, self._factoriser, kinds if is_affine else ("none",), most, tolerance)
        if is_affine:
            return found
        scaling = Scaling.fit(self.table, inputs=self.standardize is not False, outputs="none")
        return replace(found, scaling=scaling, kind="none")

    @property
    def rank(self) -> int:
        """Number of factors that predict held-out cells best."""
        return self.choice.rank

    @property
    def scaling(self) -> Scaling:
        """Centres and scales of inputs and outputs."""
        return self.choice.scaling

    def factors(self, rank: int | None = None) -> Factorisation | None:
        """Factors of the values in scaled units, of the rank of the data by default; None for a single output."""
        if self.table.num_outputs == 1:
            return None
        rank = self.rank if rank is None else rank
        return self._once(("factors", rank), lambda: self._factoriser.factorise(self.scaling, rank))

    # -- functions and noise ---------------------------------------------------------------------------------------

    @fact
    def sample(self) -> OutputSample:
        """Cells of a few outputs, by whose evidence lengthscales are found."""
        return OutputSample.of(self.values, self.scaling, self.rng("evidence"))

    @fact
    def alone(self) -> Lengthscales:
        """Lengthscales, signal and noise by the plain evidence of outputs by themselves."""
        return self.sample.lengthscales()

    def functions(
        self,
        factors: Factorisation | None,
        has_effects: bool = False,
        least_noise: float = _MIN_NOISE,
        least_share: float = _MIN_NOISE_SHARE,
    ) -> Lengthscales:
        """Lengthscales of the inputs by evidence, with the noise that factors leave if there are some.

        What factors leave is too small where they fit everything, so the noise is at least a share of their error on
        held-out cells. If a model will have effects of single inputs (`has_effects`), what outputs share at one input
        and at no other is for these to explain: where far more looks like noise to each output by itself than to the
        factors, functions are those of that view.
        """
        found = self._functions(factors, has_effects, least_noise, least_share)
        self._found = found, self.scaling
        return found

    def _functions(
        self, factors: Factorisation | None, has_effects: bool, least_noise: float, least_share: float
    ) -> Lengthscales:
        error = self.choice.held_out_error
        if factors is None:
            found = self.sample.lengthscales(error)
            return replace(found, noise=max(found.noise, least_noise))
        noise = max(factors.noise_variance, least_share * error, least_noise)
        if has_effects:
            alone = self._once("noisiest", lambda: self.sample.lengthscales(tolerance=_FLAT))
            if alone.noise > _FAR_MORE * max(noise, error):
                return alone
        # Where outputs by themselves tell about the same noise, below their signal, they tell the same functions.
        is_same = has_effects and alone.noise <= min(_ABOUT * noise, alone.signal)
        found = alone if is_same else self._once(("functions", noise), lambda: self.sample.lengthscales(noise))
        found = replace(found, noise=noise)
        own = self._factoriser.lengthscale
        return found if own is None else replace(found, lengthscale=own / self.scaling.x_scale)

    def roughness(self, factors: Factorisation) -> Roughness:
        """What the row mean and each factor do over distances at which inputs are neighbours.

        Half the mean squares of differences between inputs, at the shortest distance and at one somewhat longer, lead
        to that at none, the nugget of geostatistics. What comes on top of it a few neighbours away is rough.
        """
        x = self.scaling.scale_x(self.values.X) / self.alone.lengthscale
        some = self.rng("roughness").permutation(len(x))[:_MOST_NEIGHBORS]
        distance, near = cKDTree(x).query(x[some], k=[2, 1 + min(_FARTHER, len(x) - 1), min(_FAR, len(x))])
        series = np.column_stack([factors.row_mean, factors.row_factors])
        one, two, far = np.median(distance, axis=0)
        first, second, last = (0.5 * np.square(series[some] - series[at]).mean(axis=0) for at in near.T)
        slope = (second - first) / (two - one) if two > one else np.zeros_like(first)
        nugget = np.clip(first - slope * one, _LEAST_NUGGET * first, first)
        rough = np.maximum(np.minimum(last, series.var(axis=0)) - nugget, _LEAST_NUGGET * first)
        # Mean squares of differences grow as r²ᴴ: with H = 1/2 for a random walk, with 1 for what is smooth.
        growth = np.log(second.sum() / first.sum()) / np.log(two / one) if two > one > 0 and first.sum() > 0 else 0.0
        reach = max(far, _LEAST_DISTANCE) * self.alone.lengthscale
        return Roughness(np.sqrt(nugget), np.sqrt(rough), reach, 3 if growth > _SMOOTH else 1)

    def noise_spread(self, factors: Factorisation | None) -> NoiseSpread:
        """Spread of the log noise over outputs, by what factors leave.

        The log of a variance that n cells tell varies by 2/n, so that is taken off what residuals show, and each
        output's deviation shrinks to the share that is left. Where few outputs make many factors, residuals tell
        nothing, and any spread is possible; where outputs have few cells, nothing ever will.
        """
        self._spread = self._noise_spread(factors)
        return self._spread

    def _noise_spread(self, factors: Factorisation | None) -> NoiseSpread:
        table, none = self.values, np.zeros(self.table.num_outputs)
        if table.num_outputs == 1:
            return NoiseSpread(_LEAST_SPREAD, none)
        if factors is None or table.num_outputs < _OUTPUTS_PER_FACTOR * factors.rank:
            return NoiseSpread(1.0, none)
        freedom = table.count_per_output() - float(factors.rank)
        seen = freedom >= _LEAST_FREEDOM
        if seen.sum() < _OUTPUTS_PER_FACTOR:
            return NoiseSpread(_LEAST_SPREAD, none)
        residual = factors.squared_errors(table, self.scaling, self.scaling.y_scale) / np.maximum(freedom, 1.0)
        level = np.log(np.maximum(residual[seen], _MIN_NOISE))
        chance = 2.0 / freedom[seen]
        variance = float(np.clip(np.var(level) - chance.mean(), _LEAST_SPREAD, _MOST_SPREAD))
        deviation = none
        deviation[seen] = (level - level.mean()) * variance / (variance + chance)
        return NoiseSpread(variance, deviation)

    # -- outputs by themselves -------------------------------------------------------------------------------------

    @fact
    def own_scaling(self) -> Scaling:
        """Centres and scales for models in which an output returns to its centre far from its own cells."""
        is_affine, given = self.likelihood.is_affine, self.standardize
        if is_affine and given is True and self.table.num_outputs > 1:
            return rehearse_alone(self.values, self._factoriser)
        outputs: Any = {True: "output", False: "none"}.get(given, given) if is_affine else "none"  # type: ignore[arg-type]
        return Scaling.fit(self.table, inputs=given is not False, outputs=outputs)

    @fact
    def own_functions(self) -> Lengthscales:
        """Lengthscales, signal and noise of outputs by themselves."""
        found = OutputSample.of(self.values, self.own_scaling, self.rng("evidence")).lengthscales()
        self._found = found, self.own_scaling
        return found

    # -- behind the scenes -----------------------------------------------------------------------------------------

    def rng(self, fact: str) -> np.random.Generator:
        """Random numbers of one fact."""
        return np.random.default_rng([self._seed, *fact.encode()])

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self._kept:
            with self.timed():
                self._kept[key] = compute()
        return self._kept[key]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of a fact; facts that it asks for are part of it."""
        started, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._seconds += time.perf_counter() - started

    def report(self) -> dict[str, str]:
        """The facts that have been asked for so far, each in a line."""
        table, facts = self.table, dict[str, str]()
        layout = f"{table.num_inputs:,} inputs x {table.num_outputs:,} outputs, {table.num_observed:,} cells"
        facts["table"] = f"{layout}, {table.num_features} input dimension{'s' * (table.num_features > 1)}"
        known = vars(self)
        if "gaps" in known:
            facts["gaps"] = str(self.gaps)
        levels = known.get("_pseudo", (None, None))[1]
        if levels is not None:
            low, middle, high = np.quantile(levels, [0.0, 0.5, 1.0])
            facts["levels of f"] = f"{low:.3g} to {high:.3g}, median {middle:.3g}"
        if known.get("slopes") is not None:
            facts["trend"] = "linear along the inputs"
        if "choice" in known:
            error = f", held-out error {self.choice.held_out_error:.3g} of unit variance"
            facts["rank"] = f"{self.rank}{error if np.isfinite(self.choice.held_out_error) else ''}"
            facts["scaling"] = self.choice.kind
        if self._found is not None:
            found, scaling = self._found
            lengthscale = ", ".join(f"{value:.3g}" for value in found.lengthscale * scaling.x_scale)
            facts["lengthscales"] = f"{lengthscale} in units of the inputs"
            facts["variances"] = f"signal {found.signal:.3g}, noise {found.noise:.3g}"
        if self._spread is not None:
            facts["noise"] = "one for all outputs" if self._spread.is_negligible else "of each output its own"
        return facts

    def __str__(self) -> str:
        # All facts, whether a model has asked for them or not.
        factors = self.factors()
        _ = self.functions(factors), self.noise_spread(factors), self.gaps
        return "\n".join(f"{name:<13} {fact}" for name, fact in self.report().items())
