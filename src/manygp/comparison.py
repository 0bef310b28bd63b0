"""Which method fills the gaps of a table best: plain ones and models, on cells held out as its own gaps are."""

import sys
import time
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from manygp.baselines import BASELINES, Baseline, normal_scores
from manygp.data import Table, gap_split
from manygp.data.table import FloatArray
from manygp.errors import ManyGPError, SettingError
from manygp.estimators import ESTIMATORS, Estimator
from manygp.estimators.tables import given_table
from manygp.initialise.gaps import Gaps
from manygp.training.interrupts import time_limit
from manygp.training.progress import is_watched

__all__ = ["DEFAULT_MODELS", "Comparison", "compare"]

# From the plainest to the most costly.
DEFAULT_MODELS = (
    "interpolation",
    "nearest-rows",
    "low-rank",
    "ridge-outputs",
    "boosting",
    "oilmm",
    "ind-gp",
    "tlvmogp",
)
# A plainer method is as good if its score is at most so much worse than the best.
_AS_GOOD = 0.03
# Where one round holds out few cells, others follow until there are so many, or so many rounds: what a lost stretch or
# two tell of a method is a matter of chance.
_ENOUGH_CELLS, _MOST_ROUNDS = 2_000, 4
# Share of the observed cells that a round holds out: what is left should be much like the whole table.
_SHARE = 0.1
# The share of its time that a fit may plan with; the rest is for predictions.
_FIT_SHARE = 0.9
_SCORES = ("rmse", "nll", "crps", "coverage90", "seconds")


@dataclass(repr=False)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    scores
        One row for each method, best first: `rmse` and `crps` in units of each output's spread, `nll` of the same,
        `coverage90`, and `seconds` of a fit and its predictions; NaN for methods that did not finish, with the reason
        in `note`.
    recommended
        Name of the method to use.
    reason
        Why, in a sentence.
    pattern
        What is missing of the table, in words, and so how cells were held out.
    num_cells
        Number of cells held out, in all rounds.
    errors, pit
        Of each held-out cell, with its output, round after round: the error of every method in units of the output's
        spread, and the probability integral transform, which is uniform where intervals are right.
    fitted
        The recommended method, fitted to all observations, if `refit` asked for it.
    """

    scores: pd.DataFrame
    recommended: str
    reason: str
    pattern: str
    num_cells: int
    errors: pd.DataFrame = field(default_factory=pd.DataFrame)
    pit: pd.DataFrame = field(default_factory=pd.DataFrame)
    fitted: Any = None

    def __repr__(self) -> str:
        shown = self.scores[[*_SCORES]].round(4).to_string()
        return f"{shown}\n{self.reason}\n({self.num_cells:,} cells held out; the table: {self.pattern})"

    def _repr_html_(self) -> str:
        marked = self.scores[[*_SCORES]].round(4).to_html(border=0)
        return f"{marked}<p>{self.reason}</p><p>{self.num_cells:,} cells held out; the table: {self.pattern}.</p>"


def compare(
    X: Any,
    y: Any = None,
    *,
    models: Sequence[Any] | Mapping[str, Any] | None = None,
    seconds: float = 600.0,
    inputs: Sequence[Hashable] | None = None,
    refit: bool = False,
    random_state: int = 0,
    progress: bool | str = "auto",
) -> Comparison:
    """Compare plain methods and models on cells held out in the pattern of a table's own gaps, and recommend one.

    Where cells are missing here and there, cells here and there are held out; where stretches are missing, stretches;
    where whole rows are, rows. Every method sees the same cells and is scored on the same others. In small tables,
    where few cells can be held out at a time, others are held out in further rounds as long as there is time.

    Parameters
    ----------
    X, y, inputs
        The table, as `fit` takes it.
    models
        Names of models and baselines, estimators with settings of your own, or both by a name of your choice; by
        default five baselines, `OILMM`, `IndGP` and `TLVMOGP`.
    seconds
        Time for all methods together. A model that is still training when its share is up stops there and is scored as
        it is; a baseline is left out. What a first round leaves of it is for further ones.
    refit
        Whether to fit the recommended method to all observations, as `fitted` of the result.
    random_state
        Seed of the cells that are held out.
    progress
        Whether to tell of each method as it finishes; "auto" does so on a terminal and in a notebook.
    """
    table = given_table(X, y, inputs=inputs)
    methods = _methods(models)
    rng = np.random.default_rng(random_state)
    pattern = _words(table, rng)
    is_told = is_watched() if progress == "auto" else bool(progress)
    tests, judged = _rounds(table, methods, rng, time.perf_counter() + seconds, is_told)
    rows = {name: _scores(found) for name, found in judged.items()}
    finished = {name: _over_rounds(found) for name, found in judged.items() if found[0].parts is not None}
    errors, pits = ({name: parts[i] for name, parts in finished.items()} for i in (0, 3))
    scores = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
    key = "crps" if scores["crps"].notna().any() else "nll"
    recommended, reason = _choice(scores, key, methods)
    scores = scores.sort_values(key, na_position="last")
    outputs = {"output": [table.output_names[i] for test in tests for i in test.cells(test.places())[1]]}
    frames = pd.DataFrame(outputs | errors), pd.DataFrame(outputs | pits)
    method = methods[recommended]
    # A baseline has nothing to fit, and is handed back as it is.
    fitted = None if not refit else method if isinstance(method, Baseline) else clone(method).fit(table)
    num_cells = sum(test.num_observed for test in tests)
    return Comparison(scores, recommended, reason, pattern, num_cells, *frames, fitted)


@dataclass(frozen=True)
class _Judged:
    """What a method made of the cells held out in a round.

    Parameters
    ----------
    seconds
        How long it took.
    note
        What there is to say of it.
    parts
        Error, NLL, CRPS and PIT of each cell, in units of the outputs' spreads; None if the method did not finish.
    """

    seconds: float
    note: str
    parts: tuple[FloatArray, ...] | None = None


def _rounds(
    table: Table, methods: Mapping[str, Any], rng: np.random.Generator, end: float, is_told: bool
) -> tuple[list[Table], dict[str, list[_Judged]]]:
    """Cells held out in each round, and what methods made of them."""
    tests: list[Table] = []
    judged: dict[str, list[_Judged]] = {name: [] for name in methods}
    running, took = list(methods), 0.0
    while not tests or (
        len(tests) < _MOST_ROUNDS
        and sum(test.num_observed for test in tests) < _ENOUGH_CELLS
        and time.perf_counter() + took < end
    ):
        started = time.perf_counter()
        train, test = gap_split(table, rng, _SHARE)
        found: dict[str, _Judged] = {}
        for position, name in enumerate(running):
            left = (end - time.perf_counter()) / (len(running) - position)
            found[name] = _judged(methods[name], train, test, left)
            if is_told:
                again = f"round {len(tests) + 1}, " if tests else ""
                _tell(f"[{again}{position + 1}/{len(running)}] {name}", found[name])
        if tests and any(one.note for one in found.values()):
            # All methods are scored on the same cells, so a round that one could not finish does not count.
            break
        tests.append(test)
        for name, one in found.items():
            judged[name].append(one)
        running = [name for name in running if found[name].parts is not None]
        took = time.perf_counter() - started
    return tests, judged


def _methods(models: Sequence[Any] | Mapping[str, Any] | None) -> dict[str, Any]:
    """Methods by name, plain ones first."""
    if models is None:
        models = DEFAULT_MODELS
    if isinstance(models, str):
        models = [models]
    named = models.items() if isinstance(models, Mapping) else ((None, model) for model in models)
    found: dict[str, Any] = {}
    for name, model in named:
        if isinstance(model, str):
            kinds = {**BASELINES, **ESTIMATORS}
            if model not in kinds:
                raise SettingError(f"There is no method {model!r}; choose from: {', '.join(kinds)}.")
            name, model = name or model, kinds[model]()
        if not isinstance(model, Baseline | Estimator):
            raise SettingError(f"{model!r} is no model; give names, estimators or baselines.")
        found[name or type(model).__name__] = model
    if not found:
        raise SettingError("models is empty; name at least one method.")
    return dict(sorted(found.items(), key=lambda pair: not isinstance(pair[1], Baseline)))


def _words(table: Table, rng: np.random.Generator) -> str:
    empty = int((table.count_per_input() == 0).sum())
    words = str(Gaps.of(table, rng))
    return f"{words}; {empty:,} inputs without any value" if empty else words


def _spreads(table: Table) -> FloatArray:
    """Spread of every output, or the typical one where it cannot be told, shape (p,)."""
    count = np.maximum(table.count_per_output(), 1)
    mean = table.power_sums(1, np.zeros(table.num_outputs)) / count
    spread = np.sqrt(table.power_sums(2, mean) / count)
    known = (spread > 0) & (table.count_per_output() > 2)
    typical = float(np.median(spread[known])) if known.any() else 1.0
    return np.where(known, spread, typical)


def _judged(method: Any, train: Table, test: Table, seconds: float) -> _Judged:
    """A method, judged by the cells of a round."""
    if seconds <= 0:
        return _Judged(np.nan, "no time was left")
    started = time.perf_counter()
    row, output, values = test.cells(test.places())
    unit, note = _spreads(train)[output], ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(method, Baseline):
                parts = _of_baseline(method, train, row, output, values, unit, seconds)
            else:
                parts, note = _of_model(method, train, test, values, unit, seconds)
    except KeyboardInterrupt:
        if time.perf_counter() - started < seconds:
            raise
        return _Judged(time.perf_counter() - started, "not within the time")
    except ManyGPError as error:
        return _Judged(time.perf_counter() - started, " ".join(str(error).split()))
    return _Judged(time.perf_counter() - started, note, parts)


def _scores(judged: Sequence[_Judged]) -> dict[str, Any]:
    """Scores over the cells of all rounds."""
    known = {"seconds": float(np.mean([one.seconds for one in judged])), "note": judged[0].note}
    if judged[0].parts is None:
        return dict.fromkeys(_SCORES, np.nan) | known
    errors, nll, crps, pit = _over_rounds(judged)
    return {
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "nll": float(nll.mean()),
        "crps": float(crps.mean()),
        "coverage90": float(np.mean((pit >= 0.05) & (pit <= 0.95))),
    } | known


def _over_rounds(judged: Sequence[_Judged]) -> tuple[FloatArray, ...]:
    """Error, NLL, CRPS and PIT of the cells of all rounds."""
    return tuple(map(np.concatenate, zip(*(one.parts for one in judged if one.parts is not None), strict=True)))


def _of_baseline(
    method: Baseline, train: Table, row: Any, output: Any, values: FloatArray, unit: FloatArray, seconds: float
) -> tuple[FloatArray, ...]:
    grid = train.to_grid()
    Y = grid.block(np.arange(grid.num_inputs), np.arange(grid.num_outputs))
    with time_limit(seconds):
        # Of an output of which nothing is left a plain method knows what is usual.
        known = ~np.isnan(Y).all(0)
        filled, std = np.full(Y.shape, np.nanmean(Y)), np.full(Y.shape[1], np.nanstd(Y))
        filled[:, known], std[known] = method.fill(grid.X, Y[:, known]), method.error_std(grid.X, Y[:, known])
    error = (values - filled[row, output]) / unit
    return error, *normal_scores(error, std[output] / unit)


def _of_model(
    method: Estimator, train: Table, test: Table, values: FloatArray, unit: FloatArray, seconds: float
) -> tuple[tuple[FloatArray, ...], str]:
    model = clone(method)
    if hasattr(model, "progress"):
        model.progress = False
    started = time.perf_counter()
    with time_limit(seconds):
        model.fit(train, time_limit=_FIT_SHARE * seconds)
    is_up = model.history_.stop_reason == "time limit" or time.perf_counter() - started >= seconds
    row, output, _ = test.cells(test.places())
    dist = model._listed(test.X[row], output)
    try:
        crps = dist.crps(values) / unit
    except SettingError:
        crps = np.full(len(values), np.nan)
    note = "stopped when its time was up" if is_up else ""
    if not is_up and model.history_.stop_reason == "interrupted":
        note = "interrupted"
    parts = (values - dist.mean) / unit, -(dist.log_prob(values) + np.log(unit)), crps, dist.cdf(values)
    return parts, note


def _choice(scores: pd.DataFrame, key: str, methods: Mapping[str, Any]) -> tuple[str, str]:
    """The plainest method that is as good as the best, and why."""
    finished = scores[scores[key].notna()]
    if finished.empty:
        raise SettingError("No method finished; give more seconds, or fewer models.")
    best = str(finished[key].idxmin())
    least = float(finished.loc[best, key])
    reach = least + _AS_GOOD * abs(least)
    is_good = finished[finished[key] <= reach]
    plain = [name for name in is_good.index if isinstance(methods[str(name)], Baseline)]
    chosen = str(plain[0]) if plain else str(is_good["seconds"].idxmin())
    figures = f"{key.upper()} {finished.loc[chosen, key]:.3g}, RMSE {finished.loc[chosen, 'rmse']:.3g} of a spread"
    if chosen == "interpolation":
        others = "" if best == chosen else f", and the best method, {best}, has {least:.3g}"
        return chosen, f"Interpolation is enough: {figures}{others}."
    if chosen == best:
        rivals = finished[key].drop(best)
        behind = f"; next is {rivals.idxmin()} with {rivals.min():.3g}" if len(rivals) else ""
        return chosen, f"Use {chosen}: it predicts held-out cells best, {figures}{behind}."
    return chosen, f"Use {chosen}: {figures}, within {_AS_GOOD:.0%} of {best} ({least:.3g}) and plainer or quicker."


def _tell(name: str, judged: _Judged) -> None:
    scores = _scores([judged])
    figures = judged.note if judged.parts is None else f"RMSE {scores['rmse']:.3f}, coverage {scores['coverage90']:.0%}"
    print(f"{name}: {figures}, {judged.seconds:.1f} s", file=sys.stderr, flush=True)
