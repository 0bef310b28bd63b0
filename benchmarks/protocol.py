"""How models are held against plain methods: gaps of two kinds in a complete table, the same for all.

A third of the outputs loses a stretch, a fifth of all other cells is lost at random. Along one input a stretch is a run
of successive rows; over several it is a region, the rows nearest to one of them. Scattered cells and stretches are
scored apart: root mean squared error in units of each output's spread, negative log density in the same units, and the
share of cells inside 90% intervals. A plain method has the error bars of its own rehearsal, see `Baseline.error_std`.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manygp.baselines import BASELINES, normal_scores
from manygp.cli.settings import parse_settings
from manygp.estimators import ESTIMATORS

_SCATTERED, _LOSERS = 0.2, 1.0 / 3.0
PARTS = ("scattered", "stretches")
# A model that is this much worse than the best plain method has lost.
_SLACK = 1.02


@dataclass(frozen=True, eq=False)
class GapTable:
    """A table and how much of it is lost.

    Parameters
    ----------
    make
        From a generator of random numbers, which real tables do not need, to inputs (n, d) and values (n, p).
    stretch
        Length of a lost stretch as a share of the output's cells.
    """

    make: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    stretch: float = 0.1


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs (n, d), observations and what was held out of them (both (n, p), NaN elsewhere), and spreads (p,)."""

    X: np.ndarray
    Y: np.ndarray
    held_out: Mapping[str, np.ndarray]
    spread: np.ndarray

    @property
    def has_own_inputs(self) -> bool:
        """Whether no two outputs share an input, so that the table is a list of cells."""
        return bool(sum((~np.isnan(values)).sum(1) for values in (self.Y, *self.held_out.values())).max() <= 1)


def pose(table: GapTable, seed: int) -> Problem:
    """A problem from a table; the same for the same seed."""
    rng = np.random.default_rng(seed)
    X, Y = table.make(rng)
    observed, spread = ~np.isnan(Y), np.nanstd(Y, 0)
    stretches = np.zeros_like(observed)
    for j in rng.choice(Y.shape[1], max(1, round(_LOSERS * Y.shape[1])), replace=False):
        stretches[_stretch(X, np.flatnonzero(observed[:, j]), table.stretch, rng), j] = True
    scattered = observed & ~stretches & (rng.random(Y.shape) < _SCATTERED)
    # Any method gets a constant output right, and its density is a matter of the smallest noise.
    held_out = {
        name: np.where(mask & (spread > 0), Y, np.nan) for name, mask in zip(PARTS, (scattered, stretches), strict=True)
    }
    return Problem(X, np.where(scattered | stretches, np.nan, Y), held_out, np.where(spread > 0, spread, 1.0))


def _stretch(X: np.ndarray, rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """The rows, among some, of a lost stretch or region."""
    length = max(1, round(share * len(rows)))
    if X.shape[1] == 1:
        first = rng.integers(0, len(rows) - length + 1)
        return rows[np.argsort(X[rows, 0], kind="stable")[first : first + length]]
    scaled = X[rows] / np.where(X.std(0) > 0, X.std(0), 1.0)
    distance = ((scaled - scaled[rng.integers(len(rows))]) ** 2).sum(1)
    return rows[np.argsort(distance, kind="stable")[:length]]


def run(problem: Problem, name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Scores of a plain method or of an estimator on both parts, and how long it took."""
    score = _score_plain if name in BASELINES else _score_estimator
    return score(problem, name, settings, seed)


def _score_plain(problem: Problem, name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    method = BASELINES[name](random_state=seed, **settings)
    clock = _Clock()
    filled = method.fill(problem.X, problem.Y)
    took = clock.read()
    std = np.broadcast_to(method.error_std(problem.X, problem.Y), filled.shape)
    scores = {}
    for part, values in problem.held_out.items():
        seen = ~np.isnan(values)
        error, unit = (values - filled)[seen], np.broadcast_to(problem.spread, values.shape)[seen]
        scores[part] = _averages(error / unit, *normal_scores(error / unit, std[seen] / unit))
    return scores | took


def _score_estimator(problem: Problem, name: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    model = ESTIMATORS[name](**{"random_state": seed, "progress": False} | dict(settings))
    clock = _Clock()
    if problem.has_own_inputs:
        row, output = np.nonzero(~np.isnan(problem.Y))
        model.fit_cells(problem.X[row], output, problem.Y[row, output])
    else:
        model.fit(problem.X, problem.Y)
    took = clock.read()
    scores = {}
    whole = None if problem.has_own_inputs else model.predict_dist(problem.X)
    for part, values in problem.held_out.items():
        seen = ~np.isnan(values)
        row, output = np.nonzero(seen)
        unit = problem.spread[output]
        if whole is None:
            y, dist = values[seen], model.predict_cells(problem.X[row], output)
            mean, log_prob, crps, cdf = dist.mean, dist.log_prob(y), dist.crps(y), dist.cdf(y)
        else:
            y, mean = values[seen], whole.mean[seen]
            log_prob, crps, cdf = (score(values)[seen] for score in (whole.log_prob, whole.crps, whole.cdf))
        scores[part] = _averages((y - mean) / unit, -log_prob - np.log(unit), crps / unit, cdf)
    return scores | took | {"with_predictions": clock.read()}


class _Clock:
    """Seconds on the wall since it was made, and of all cores, which other processes hardly change."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


def _averages(error: np.ndarray, nll: np.ndarray, crps: np.ndarray, pit: np.ndarray) -> dict[str, float]:
    """Scores of some cells, from each cell's in units of spread, and from the probability integral transform."""
    return {
        "rmse": round(float(np.sqrt(np.mean(error**2))), 5),
        "nll": round(float(np.mean(nll)), 4),
        "crps": round(float(np.mean(crps)), 5),
        "coverage90": round(float(np.mean(np.abs(2.0 * pit - 1.0) <= 0.9)), 4),
        "cells": len(error),
    }


def summary(records: list[dict[str, Any]]) -> str:
    """Every table and method in a line, then models against the best plain method on each part."""
    names = list(dict.fromkeys(record["table"] for record in records))
    lines = [
        f"{'table':18} {'method':28} {'scattered: rmse nll cover':>27} {'stretches: rmse nll cover':>27} {'CPU s':>8}"
    ]
    verdicts = []
    for table in names:
        rows = _by_method([record for record in records if record["table"] == table])
        lines += [_line(table, label, row) for label, row in rows.items()]
        plain = {label: row for label, row in rows.items() if row["model"] in BASELINES}
        for label, row in rows.items():
            if plain and label not in plain:
                verdicts.append(_verdict(table, label, row, plain))
    won = sum(verdict.count("won") for verdict in verdicts)
    lost = sum(verdict.count("LOST") for verdict in verdicts)
    tail = ["", *verdicts, f"{won} won, {lost} lost by more than 2%"] if verdicts else []
    return "\n".join(lines + tail)


def _by_method(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Records of one table averaged over seeds; a later record of a seed replaces an earlier one."""
    latest: dict[str, dict[int, dict[str, Any]]] = {}
    for record in records:
        settings = " ".join(f"{key}={value}" for key, value in record["settings"].items())
        latest.setdefault(f"{record['model']} {settings}".strip(), {})[record["seed"]] = record
    return {
        label: {
            "model": next(iter(seeds.values()))["model"],
            "cpu_seconds": np.mean([record["cpu_seconds"] for record in seeds.values()]),
            **{
                part: {
                    key: float(np.mean([record[part][key] for record in seeds.values()]))
                    for key in ("rmse", "nll", "coverage90")
                }
                for part in PARTS
            },
        }
        for label, seeds in latest.items()
    }


def _line(table: str, label: str, row: dict[str, Any]) -> str:
    parts = [
        f"{row[part]['rmse']:10.4f} {row[part]['nll']:9.3f} {100 * row[part]['coverage90']:5.0f}%" for part in PARTS
    ]
    return f"{table:18} {label:28} {parts[0]:>27} {parts[1]:>27} {row['cpu_seconds']:8.1f}"


def _verdict(table: str, label: str, row: dict[str, Any], plain: dict[str, dict[str, Any]]) -> str:
    texts = []
    for part in PARTS:
        best = min(plain, key=lambda name: plain[name][part]["rmse"])
        ratio = row[part]["rmse"] / plain[best][part]["rmse"]
        word = "won" if ratio < 1.0 else "even" if ratio <= _SLACK else "LOST"
        texts.append(f"{part} {word:4} {ratio:5.2f} x {best:13} covers {100 * row[part]['coverage90']:3.0f}%")
    return f"{table:18} {label:28} " + "   ".join(texts)


def command(tables: Mapping[str, GapTable], about: str) -> None:
    """The command line of a benchmark over some tables."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    methods = [*BASELINES, *ESTIMATORS]
    parser.add_argument("--table", nargs="+", choices=list(tables), default=list(tables), metavar="NAME")
    parser.add_argument("--model", nargs="*", choices=[*methods, "plain"], default=["plain", "tlvmogp"], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the estimators")
    parser.add_argument("--records", type=Path, help="a JSONL file to append to, whose records join the summary")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    chosen = list(dict.fromkeys(m for name in arguments.model for m in (BASELINES if name == "plain" else [name])))
    records = _read(arguments.records, arguments.table)
    for table in arguments.table:
        for seed in arguments.seeds:
            try:
                problem = pose(tables[table], seed)
            except ModuleNotFoundError as missing:
                print(f"{table} is left out. {missing}", file=sys.stderr)
                continue
            for name in chosen:
                settings = parse_settings(ESTIMATORS[name], arguments.set) if name in ESTIMATORS else {}
                record = {"table": table, "shape": problem.Y.shape, "model": name, "settings": settings, "seed": seed}
                record |= run(problem, name, settings, seed)
                records.append(record)
                _write(record, arguments.records)
    print(summary(records))


def _read(path: Path | None, tables: list[str]) -> list[dict[str, Any]]:
    """Earlier records of some tables."""
    if path is None or not path.exists():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [record for record in records if record["table"] in tables]


def _write(record: dict[str, Any], path: Path | None) -> None:
    line = json.dumps(record)
    print(line, file=sys.stderr, flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
