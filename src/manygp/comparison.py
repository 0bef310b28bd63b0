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
_SCORES = ("rmse", "nll", "crps", "coverage90", "seconds")


@dataclass(repr=False)
class Comparison:
    """What a comparison found.

    Attributes
    ----------
    scores
        One row for each method, best first: `rmse` and `crps` in units of each output's spread, `nll` of the same,
        `coverage90`, and `seconds`; NaN for methods that did not finish, with the reason in `note`.
    recommended
        Name of the method to use.
    reason
        Why, in a sentence.
    pattern
        What is missing of the table, in words, and so how cells were held out.
    num_cells
        Number of cells held out.
    errors, pit
        Of each held-out cell, with its output: the error of every method in units of the output's spread, and the
        probability integral transform, which is uniform where intervals are right.
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
    where whole rows are, rows. Every method sees the same cells and is scored on the same others.

    Parameters
    ----------
    X, y, inputs
        The table, as `fit` takes it.
    models
        Names of models and baselines, estimators with settings of your own, or both by a name of your choice; by
        default five baselines, `OILMM`, `IndGP` and `TLVMOGP`.
    seconds
        Time for all methods together. A model that is still training when its share is up stops there and is scored as
        it is; a baseline is left out.
    refit
        Whether to fit the recommended method to all observations, as `fitted` of the result.
    random_state
        Seed of the cells that are held out.
    progress
        Whether to tell of each method as it finishes; "auto" does so on a terminal.
    """
    table = given_table(X, y, inputs=inputs)
    methods = _methods(models)
    rng = np.random.default_rng(random_state)
    pattern = _words(table, rng)
    train, test = gap_split(table, rng)
    scale = _spreads(train)
    is_told = sys.stderr.isatty() if progress == "auto" else bool(progress)
    end = time.perf_counter() + seconds
    rows: dict[str, dict[str, Any]] = {}
    errors: dict[str, FloatArray] = {}
    pits: dict[str, FloatArray] = {}
    for position, (name, method) in enumerate(methods.items()):
        left = (end - time.perf_counter()) / (len(methods) - position)
        rows[name], found = _judged(method, train, test, scale, left)
        if found is not None:
            errors[name], pits[name] = found
        if is_told:
            _tell(f"[{position + 1}/{len(methods)}] {name}", rows[name])
    scores = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")
    key = "crps" if scores["crps"].notna().any() else "nll"
    recommended, reason = _choice(scores, key, methods)
    scores = scores.sort_values(key, na_position="last")
    outputs = {"output": [table.output_names[i] for i in test.cells(test.places())[1]]}
    frames = pd.DataFrame(outputs | errors), pd.DataFrame(outputs | pits)
    method = methods[recommended]
    # A baseline has nothing to fit, and is handed back as it is.
    fitted = None if not refit else method if isinstance(method, Baseline) else clone(method).fit(table)
    return Comparison(scores, recommended, reason, pattern, test.num_observed, *frames, fitted)


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


def _judged(
    method: Any, train: Table, test: Table, scale: FloatArray, seconds: float
) -> tuple[dict[str, Any], tuple[FloatArray, FloatArray] | None]:
    """Scores of a method, and error and PIT of each held-out cell, errors in units of the outputs' spreads."""
    scores: dict[str, Any] = dict.fromkeys(_SCORES, np.nan) | {"note": ""}
    if seconds <= 0:
        return scores | {"note": "no time was left"}, None
    started = time.perf_counter()
    row, output, values = test.cells(test.places())
    unit = scale[output]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(method, Baseline):
                parts = _of_baseline(method, train, row, output, values, unit, seconds)
            else:
                parts, scores["note"] = _of_model(method, train, test, values, unit, seconds)
    except KeyboardInterrupt:
        if time.perf_counter() - started < seconds:
            raise
        return scores | {"seconds": time.perf_counter() - started, "note": "not within the time"}, None
    except ManyGPError as error:
        return scores | {"seconds": time.perf_counter() - started, "note": " ".join(str(error).split())}, None
    errors, nll, crps, pit = parts
    scores["rmse"], scores["nll"] = float(np.sqrt(np.mean(errors**2))), float(nll.mean())
    scores["crps"], scores["coverage90"] = float(crps.mean()), float(np.mean((pit >= 0.05) & (pit <= 0.95)))
    return scores | {"seconds": time.perf_counter() - started}, (errors, pit)


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
    with time_limit(seconds):
        model.fit(train)
    row, output, _ = test.cells(test.places())
    dist = model._listed(test.X[row], output)
    try:
        crps = dist.crps(values) / unit
    except SettingError:
        crps = np.full(len(values), np.nan)
    note = "stopped when its time was up" if model.history_.stop_reason == "interrupted" else ""
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


def _tell(name: str, row: dict[str, Any]) -> None:
    figures = row["note"] if np.isnan(row["rmse"]) else f"RMSE {row['rmse']:.3f}, coverage {row['coverage90']:.0%}"
    print(f"{name}: {figures}, {row['seconds']:.1f} s", file=sys.stderr, flush=True)
