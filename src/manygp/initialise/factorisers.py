"""How tables are factorised and rehearsed: a grid by the rows that outputs share, a list by smooth functions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from manygp.data import Cells, Grid, Scaling, Table
from manygp.data.factorisation import Factorisation, completed_scaling, factorise, factorise_path, thinned
from manygp.data.splits import pattern_split, random_split
from manygp.data.table import FloatArray, IntArray
from manygp.errors import DataError
from manygp.initialise.cells import CellStatistics, Mixture, RadialFeatures
from manygp.initialise.evidence import evidence_lengthscales

__all__ = ["Factoriser", "Fit", "make_factoriser"]

# Most inputs, outputs and cells to rehearse on; held-out sets of a small table, in which a few cells decide.
_SIDE, _CELLS, _SPLIT_CELLS, _MOST_SPLITS = 300, 60_000, 10_000, 3
# The change of the noise that ends the factorisation of a whole table.
_WHOLE = 3e-4
# A list of cells: the share held out, passes at most, and what ends them, roughly and in the end.
_HELD_SHARE, _STEPS, _ROUGHLY, _SETTLED = 0.2, 60, 3e-3, 1e-3
# Lengthscales to try for it, in multiples of those by evidence, with so many functions, and unknowns at most of all.
_STRETCHES, _FUNCTIONS, _MOST_UNKNOWNS = (1.0, 2.0, 0.5), 3, 900
# Gram matrices of all outputs together have so many numbers: beyond that, functions are learnt from some outputs.
_MOST_NUMBERS = 8_000_000
# Inputs at which columns of a list are completed.
_REFERENCE_INPUTS = 500

Split = tuple[Table, Table]


@dataclass(frozen=True)
class Fit:
    """Mean squared error on held-out cells in scaled units, and the scaling that goes with completed columns."""

    error: float
    completed: Callable[[], Scaling]


class Factoriser(ABC):
    """Factorises a table, and rehearses that on parts of it with cells held out.

    Attributes
    ----------
    outputs
        Outputs of the table that rehearsals see, shape (q,).
    splits
        Training and held-out parts.
    """

    outputs: IntArray
    splits: Sequence[Split]

    @abstractmethod
    def factorise(self, scaling: Scaling, rank: int) -> Factorisation:
        """Factors of the whole table."""

    @abstractmethod
    def completed(self, scaling: Scaling, rank: int) -> Scaling:
        """Centres and scales of the outputs as they would be without gaps, by factors in units of `scaling`."""

    @abstractmethod
    def path(self, split: Split, scaling: Scaling, ranks: Sequence[int]) -> Iterator[Fit]:
        """Fits to the training part of ascending ranks, and their errors on the held-out part."""

    @property
    def lengthscale(self) -> FloatArray | None:
        """Lengthscales (d,) in units of the inputs, where the factors have some."""
        return None

    @abstractmethod
    def most_factors(self) -> int:
        """Largest rank that is worth a try."""


def make_factoriser(table: Table, rng: np.random.Generator) -> Factoriser:
    """The factoriser that goes with the layout of a table."""
    if isinstance(table, Grid):
        return GridFactoriser(table, rng)
    assert isinstance(table, Cells)
    return CellFactoriser(table, rng)


class GridFactoriser(Factoriser):
    """Masked factorisation of rows that outputs share, see `manygp.data.factorisation`."""

    def __init__(self, table: Grid, rng: np.random.Generator):
        self.table, self.seed = table, int(rng.integers(2**31))
        part, self.outputs = thinned(table, rng, _SIDE, _CELLS)
        repeats = int(np.clip(_SPLIT_CELLS // max(part.num_observed, 1), 1, _MOST_SPLITS))
        try:
            self.splits = [pattern_split(part, rng) for _ in range(repeats)]
        except DataError:
            # Too few cells to hold any out: every choice looks the same.
            self.splits = [(part, part)]

    def factorise(self, scaling: Scaling, rank: int) -> Factorisation:
        return factorise(self.table, scaling, rank, rng=np.random.default_rng(self.seed), tolerance=_WHOLE)

    def completed(self, scaling: Scaling, rank: int) -> Scaling:
        factors = factorise(self.table, scaling, rank, rng=np.random.default_rng(self.seed), tolerance=_ROUGHLY)
        return completed_scaling(self.table, scaling, factors)

    def path(self, split: Split, scaling: Scaling, ranks: Sequence[int]) -> Iterator[Fit]:
        train, held = split
        assert isinstance(train, Grid)
        for factors in factorise_path(train, scaling, ranks):
            error = factors.mean_squared_error(held, scaling, scaling.y_scale)
            yield Fit(error, lambda factors=factors: completed_scaling(train, scaling, factors))  # type: ignore[misc]

    def most_factors(self) -> int:
        train = self.splits[0][0]
        return min(train.num_inputs, train.num_outputs)


class CellFactoriser(Factoriser):
    """Mixtures of smooth functions, each output seen at inputs of its own, see `manygp.initialise.cells`."""

    def __init__(self, table: Cells, rng: np.random.Generator):
        self.table, self.outputs, self.seed = table, np.arange(table.num_outputs), int(rng.integers(2**31))
        try:
            self.splits = [random_split(table, _HELD_SHARE, rng)]
        except DataError:
            self.splits = [(table, table)]
        self.reference = table.X[rng.choice(table.num_inputs, min(table.num_inputs, _REFERENCE_INPUTS), replace=False)]

    @cached_property
    def features(self) -> RadialFeatures:
        """Features with the lengthscales, near those by evidence, that predict held-out cells best."""
        scaling, rank = Scaling.fit(self.table), min(_FUNCTIONS, self.table.num_outputs - 1)
        lengthscale = evidence_lengthscales(self.table, scaling, np.random.default_rng(self.seed)).lengthscale
        tried = [self._features(stretch * lengthscale * scaling.x_scale) for stretch in _STRETCHES]
        errors = [next(self._fits(self.splits[0], scaling, [rank], features)).error for features in tried]
        return tried[int(np.argmin(errors))]

    @property
    def lengthscale(self) -> FloatArray | None:
        return self.features.lengthscale

    def factorise(self, scaling: Scaling, rank: int) -> Factorisation:
        mixture = self._mixture(self.table, scaling, min(rank, self.most_factors()), self.features, _SETTLED)
        return mixture.factorisation(self.table.X, self.table, scaling, self.features, rank)

    def completed(self, scaling: Scaling, rank: int) -> Scaling:
        return self._completed(self._mixture(self.table, scaling, rank, self.features, _ROUGHLY), self.table, scaling)

    def path(self, split: Split, scaling: Scaling, ranks: Sequence[int]) -> Iterator[Fit]:
        return self._fits(split, scaling, ranks, self.features)

    def most_factors(self) -> int:
        return max(1, _MOST_UNKNOWNS // len(self.features.Z) - 1)

    def _fits(self, split: Split, scaling: Scaling, ranks: Sequence[int], features: RadialFeatures) -> Iterator[Fit]:
        train, held = split
        for rank in ranks:
            mixture = self._mixture(train, scaling, rank, features, _ROUGHLY)
            factors = mixture.factorisation(held.X, train, scaling, features)
            error = factors.mean_squared_error(held, scaling, scaling.y_scale)
            yield Fit(error, lambda mixture=mixture: self._completed(mixture, train, scaling))  # type: ignore[misc]

    def _features(self, lengthscale: FloatArray) -> RadialFeatures:
        return RadialFeatures(self.table.X, lengthscale, np.random.default_rng(self.seed))

    def _mixture(
        self, table: Table, scaling: Scaling, rank: int, features: RadialFeatures, tolerance: float
    ) -> Mixture:
        outputs, most = np.flatnonzero(table.count_per_output()), max(rank + 1, _MOST_NUMBERS // len(features.Z) ** 2)
        if len(outputs) > most:
            outputs = np.random.default_rng(self.seed).choice(outputs, most, replace=False)
        return Mixture(CellStatistics.of(table, scaling, features, outputs), rank).fit(_STEPS, tolerance)

    def _completed(self, mixture: Mixture, train: Table, scaling: Scaling) -> Scaling:
        factors = mixture.factorisation(self.reference, train, scaling, self.features)
        filled = factors.predict()
        spread = np.sqrt(filled.var(axis=0) + mixture.noise)
        return replace(scaling, y_center=scaling.unscale_mean(filled.mean(axis=0)), y_scale=spread * scaling.y_scale)
