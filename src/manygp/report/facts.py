"""What a report tells of a model, as plain numbers and text."""

import base64
import json
import math
import platform
from collections.abc import Hashable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd

from manygp._version import __version__
from manygp.comparison import Comparison
from manygp.data import Table
from manygp.data.containers import known_inputs
from manygp.data.names import match_names
from manygp.data.table import BoolArray, FloatArray, IntArray
from manygp.errors import DataError
from manygp.estimators import Estimator
from manygp.initialise.gaps import Gaps

# What a page holds at most: outputs whose series are drawn, points of one, cells that are scored, names in a matrix.
_SERIES, _POINTS, _SCORED, _MATRIX, _MAPS = 240, 240, 20_000, 60, 36


def collect(model: Estimator | None, table: Table | None, comparison: Comparison | None, source: str) -> dict[str, Any]:
    """Return all facts of a report, by what there is of it; those that cannot be told are None or empty."""
    shared = {
        "source": source,
        "data": None if table is None else _data(table),
        "comparison": None if comparison is None else _comparison(comparison),
        "versions": _versions(),
    }
    if model is None:
        return shared | {
            "title": f"Comparison on {source}",
            "names": [] if table is None else [spelt(name, table.axes.outputs) for name in table.output_names],
            "code": "import manygp\n\nfound = manygp.compare(table)",
            **dict.fromkeys(("choice", "training", "calibration", "series", "latents", "correlation", "maps")),
            "worst": [],
            "unit": "",
        }
    names = _names(model)
    scored = None if table is None else _scores(model, table)
    X = table.X if table is not None else model._inputs_
    rows = None if X is None else _some_rows(X)
    worst = [] if scored is None else scored["worst"]
    # Outputs whose series are drawn: the worst, and others evenly spread.
    first, others = [entry["index"] for entry in worst], _spread_out(len(names), _SERIES).tolist()
    chosen = list(dict.fromkeys([*first, *others]))[:_SERIES]
    return shared | {
        "title": f"{type(model).__name__}: {len(names):,} outputs",
        "names": names,
        "choice": _choice(model),
        "training": _training(model),
        "calibration": None if scored is None else scored["calibration"],
        "worst": worst,
        "series": None if rows is None or X is None else _series(model, X, rows, chosen, table),
        "latents": _latents(model),
        "correlation": None if X is None else _correlation(model, X, chosen[:_MATRIX]),
        "maps": None if X is None else _maps(model, X),
        "code": _code(model),
        # That of a field, if it had one.
        "unit": str(json.loads(model._axes_.attributes or "{}").get("", {}).get("units", "")),
    }


def spelt(name: Hashable, labels: Sequence[str] = ()) -> str:
    """Return the name of an output as people read it, parts of it with what they are called."""
    if isinstance(name, tuple):
        known = labels if len(labels) == len(name) else [""] * len(name)
        return ", ".join(f"{label} {spelt(part)}".strip() for label, part in zip(known, name, strict=True))
    return f"{name:.6g}" if isinstance(name, float) else str(name)


def _names(model: Estimator) -> list[str]:
    return [spelt(name, model._axes_.outputs) for name in model.output_names_]


def _data(table: Table) -> dict[str, Any]:
    gaps = Gaps.of(table, np.random.default_rng(0))
    return {
        "figures": {
            "inputs": f"{table.num_inputs:,} rows, {table.num_features} column{'s' if table.num_features > 1 else ''}",
            "outputs": f"{table.num_outputs:,}",
            "observed cells": f"{table.num_observed:,}",
            "gaps": str(gaps),
        },
        "picture": gap_picture(table),
    }


def _choice(model: Estimator) -> dict[str, Any]:
    given = {key: _short(value) for key, value in model._settings_.items()}
    usual = {key: _short(value) for key, value in type(model)().get_params(deep=False).items()}
    settings = {key: value for key, value in given.items() if value != usual.get(key)}
    return {"summary": model.summary(), "settings": settings}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else f"{type(value).__name__} of shape {np.shape(value)}"


def _training(model: Estimator) -> dict[str, Any]:
    history = model.history_
    return {
        "bound": [_round(value) for value in history["bound"]],
        "epochs": len(history),
        "seconds": round(history.seconds, 1),
        "reason": history.ending,
    }


def _comparison(found: Comparison) -> dict[str, Any]:
    rows = []
    for name, row in found.scores.iterrows():
        figures = {
            key: None if pd.isna(row[key]) else _round(row[key]) for key in ("rmse", "nll", "crps", "coverage90")
        }
        seconds = None if pd.isna(row["seconds"]) else round(float(row["seconds"]), 1)
        is_chosen = name == found.recommended
        rows.append({"method": str(name), **figures, "seconds": seconds, "note": row["note"], "chosen": is_chosen})
    pit = found.pit[found.recommended].to_numpy() if found.recommended in found.pit else None
    curve = None if pit is None else reliability(pit, {"all outputs": np.ones(len(pit), dtype=bool)})
    return {
        "rows": rows,
        "reason": found.reason,
        "pattern": found.pattern,
        "cells": found.num_cells,
        "calibration": curve,
    }


def _scores(model: Estimator, table: Table) -> dict[str, Any]:
    """Calibration and the worst outputs, on observed cells of a table, some of them if there are many."""
    rng = np.random.default_rng(0)
    row, output, y = table.sample(_SCORED, rng)
    known = {name: i for i, name in enumerate(model.output_names_)}
    position = np.array([known.get(name, -1) for name in match_names(table.output_names, model.output_names_)])
    if not (position >= 0).any():
        raise DataError(
            f"The data hold no output of the model ({', '.join(map(repr, table.output_names[:3]))} instead of "
            f"{', '.join(map(repr, model.output_names_[:3]))}): give data with some of its outputs, or leave them out."
        )
    kept = position[output] >= 0
    row, output, y = row[kept], position[output[kept]], y[kept]
    dist = model._listed(table.X[row], output)
    below = cdf = dist.cdf(y)
    if dist._likelihood.is_discrete:
        # A randomised PIT is uniform for counts, too.
        below = np.maximum(cdf - np.exp(dist.log_prob(y)), 0.0)
    pit = below + rng.random(len(y)) * (cdf - below)
    count = np.bincount(output, minlength=len(known))
    center = np.bincount(output, y, len(known)) / np.maximum(count, 1)
    spread = np.sqrt(np.bincount(output, (y - center[output]) ** 2, len(known)) / np.maximum(count, 1))
    spread = np.where(spread > 0, spread, np.median(spread[count > 0]) or 1.0)
    rmse = np.sqrt(np.bincount(output, ((y - dist.mean) / spread[output]) ** 2, len(known)) / np.maximum(count, 1))
    order = np.argsort(-np.where(count > 0, rmse, -1.0), kind="stable")[: min(12, int((count > 0).sum()))]
    names = _names(model)
    inside = (pit >= 0.05) & (pit <= 0.95)
    covered = np.bincount(output, inside, len(known)) / np.maximum(count, 1)
    worst = [
        {
            "index": int(p),
            "name": names[p],
            "cells": int(count[p]),
            "rmse": _round(rmse[p] * spread[p]),
            "share": _round(rmse[p]),
            "coverage": round(float(covered[p]), 2),
        }
        for p in order
    ]
    return {"worst": worst, "calibration": reliability(pit, _groups(table.count_per_output(), position, output))}


def _groups(counts: IntArray, position: IntArray, output: IntArray) -> dict[str, Any]:
    """Cells by how much was observed of their output: many outputs differ in that, and calibration with it."""
    cells = np.zeros(position.max() + 1, dtype=np.int64)
    cells[position[position >= 0]] = counts[position >= 0]
    low, high = np.quantile(cells[cells > 0], [1 / 3, 2 / 3])
    everything = {"all outputs": np.ones(len(output), dtype=bool)}
    if low == high:
        return everything
    own = cells[output]
    return everything | {
        f"outputs of at most {low:,.0f} cells": own <= low,
        f"outputs of more than {high:,.0f} cells": own > high,
    }


def _spread_out(count: int, most: int) -> IntArray:
    """At most so many positions, evenly spread over all."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _some_rows(X: FloatArray) -> IntArray:
    """Distinct rows in order, not more than can be drawn."""
    order = np.unique(X, axis=0, return_index=True)[1] if X.shape[1] == 1 else np.arange(len(X))
    return np.asarray(order[_spread_out(len(order), _POINTS)], dtype=np.int64)


def _axis(model: Estimator, X: FloatArray) -> tuple[list[Any], str, str]:
    """Numbers, kind and label of the axis that series are drawn over."""
    if X.shape[1] > 1:
        return list(range(len(X))), "number", "row"
    column = known_inputs(X, model._axes_).iloc[:, 0]
    label = "input" if isinstance(column.name, int) else str(column.name)
    if column.dtype.kind == "M":
        return (X[:, 0] * 86_400_000.0).round().tolist(), "date", label
    return [_round(value) for value in X[:, 0]], "number", label


def _series(
    model: Estimator, X: FloatArray, rows: IntArray, chosen: Sequence[int], table: Table | None
) -> dict[str, Any]:
    outputs = np.asarray(chosen, dtype=np.int64)
    dist = model.predict_dist(_at(model, X[rows]), outputs=[model.output_names_[i] for i in outputs])
    lower, upper = dist.interval(0.9)
    axis, kind, label = _axis(model, X[rows])
    every = _axis(model, X)[0]
    entries = []
    known = {name: i for i, name in enumerate(() if table is None else table.output_names)}
    for column, p in enumerate(outputs):
        name = model.output_names_[p]
        place = known.get(name, known.get(str(name)))
        dots: list[list[Any]] = []
        if table is not None and place is not None:
            row, values = table.column(place)
            some = _spread_out(len(row), _POINTS)
            dots = [[every[row[i]], _round(values[i])] for i in some]
        bands = {
            key: [_round(v) for v in held[:, column]] for key, held in (("m", dist.mean), ("l", lower), ("u", upper))
        }
        entries.append({"name": spelt(name, model._axes_.outputs), "dots": dots, **bands})
    return {"x": axis, "kind": kind, "label": label, "entries": entries, "total": model.n_outputs_}


def _at(model: Estimator, X: FloatArray) -> Any:
    """Inputs of a fit, or like them, in the kinds and by the names that predictions ask for."""
    frame = known_inputs(X, model._axes_)
    if hasattr(model, "feature_names_in_"):
        return frame.set_axis(list(model.feature_names_in_), axis=1)
    if frame.shape[1] == 1:
        return pd.Index(frame.iloc[:, 0])
    kinds = set(model._axes_.kinds)
    return X if kinds <= {"numbers"} else pd.MultiIndex.from_frame(frame)


def _latents(model: Estimator) -> dict[str, Any] | None:
    means = getattr(model, "latent_mean_", None)
    if means is None or len(means) < 3:
        return None
    flat = means.reshape(len(means), -1)
    centred = flat - flat.mean(0)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    plane = np.pad(U * s, ((0, 0), (0, 2)))[:, :2]
    shares = np.pad(s**2, (0, 2))[:2] / max(float((s**2).sum()), 1e-300)
    return {"points": [[_round(a), _round(b)] for a, b in plane], "shares": [round(float(v), 2) for v in shares]}


def _correlation(model: Estimator, X: FloatArray, chosen: Sequence[int]) -> dict[str, Any] | None:
    """Correlation of predicted functions over the inputs, outputs that go together side by side."""
    rows = _some_rows(X)
    if len(chosen) < 2 or len(rows) < 3:
        return None
    dist = model.predict_dist(_at(model, X[rows]), outputs=[model.output_names_[i] for i in chosen])
    centred = dist.mean - dist.mean.mean(0)
    norms = np.sqrt((centred**2).sum(0))
    matrix = (centred.T @ centred) / np.maximum(np.outer(norms, norms), 1e-300)
    # Along the first principal axes, which sorts by angle those that are alike.
    vectors = np.linalg.eigh(matrix)[1]
    order = np.argsort(np.arctan2(vectors[:, -2], vectors[:, -1]))
    names = _names(model)
    return {"names": [names[chosen[i]] for i in order], "matrix": np.round(matrix[np.ix_(order, order)], 2).tolist()}


def _maps(model: Estimator, X: FloatArray) -> dict[str, Any] | None:
    """Means and standard deviations on the plane, where names of outputs are two numbers, at some of the inputs."""
    places = [name for name in model.output_names_ if isinstance(name, tuple) and len(name) == 2]
    if len(places) < len(model.output_names_) or len(places) < 4:
        return None
    try:
        north, east = np.array(places, dtype=np.float64).T
    except (TypeError, ValueError):
        return None
    rows = _some_rows(X)
    rows = rows[_spread_out(len(rows), _MAPS)]
    dist = model.predict_dist(_at(model, X[rows]))
    axis, kind, label = _axis(model, X[rows])
    labels = list(model._axes_.outputs) if len(model._axes_.outputs) == 2 else ["first", "second"]
    return {
        "y": [_round(v) for v in north],
        "x": [_round(v) for v in east],
        "labels": labels,
        "steps": axis,
        "kind": kind,
        "label": label,
        "mean": [[_round(v) for v in part] for part in dist.mean],
        "std": [[_round(v) for v in part] for part in dist.std],
    }


def _versions() -> dict[str, str]:
    found = {"manygp": __version__, "Python": platform.python_version(), "system": platform.platform()}
    for package in ("torch", "gpytorch", "numpy", "scikit-learn", "pandas"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _code(model: Estimator) -> str:
    """Lines that fit the same model again."""
    usual = type(model)().get_params(deep=False)
    given = {
        key: value
        for key, value in model._settings_.items()
        if isinstance(value, str | int | float | bool) and value != usual.get(key) and key != "random_state"
    }
    settings = ", ".join(f"{key}={value!r}" for key, value in (given | {"random_state": model._seed}).items())
    return f"import manygp\n\nmodel = manygp.{type(model).__name__}({settings}).fit(table)"


def _round(value: Any) -> float | None:
    """A number as short as figures need it; JSON has no NaN."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return float(f"{number:.5g}")


# Blocks of a picture of gaps, at most.
_WIDE, _HIGH = 320, 160
_LEVELS = np.linspace(0.05, 0.95, 19)
_BINS = 20


def gap_picture(table: Table) -> dict[str, Any] | None:
    """Return the share of cells that are observed, in blocks of outputs (down) and inputs (across); None for lists."""
    if table.row_outputs is not None:
        return None
    n, p = table.num_inputs, table.num_outputs
    order = np.argsort(table.X[:, 0], kind="stable") if table.num_features == 1 else np.arange(n)
    rank = np.empty(n, dtype=np.int64)
    rank[order] = np.arange(n)
    wide, high = min(n, _WIDE), min(p, _HIGH)
    seen = np.zeros(high * wide)
    for row, output, _ in table.chunks():
        block = (output * high // p) * wide + rank[row] * wide // n
        seen += np.bincount(block, minlength=high * wide)
    down, across = np.bincount(np.arange(p) * high // p), np.bincount(np.arange(n) * wide // n)
    share = seen.reshape(high, wide) / np.outer(down, across)
    shades = np.round(255 * np.clip(share, 0.0, 1.0)).astype(np.uint8)
    return {"width": wide, "height": high, "shades": base64.b64encode(shades.tobytes()).decode("ascii")}


def reliability(pit: FloatArray, groups: Mapping[str, BoolArray]) -> dict[str, Any]:
    """Return the histogram of the PIT of cells (c,), and how many central intervals of each level hold, by group."""
    share = np.histogram(pit, bins=_BINS, range=(0.0, 1.0))[0] / max(len(pit), 1)
    # |2 PIT − 1| ≤ level says that a value lies in the central interval.
    reach = np.abs(2.0 * pit - 1.0)
    curves = {
        name: [round(float(np.mean(reach[inside] <= level)), 4) for level in _LEVELS]
        for name, inside in groups.items()
        if inside.any()
    }
    return {
        "pit": [round(float(value), 4) for value in share],
        "levels": [round(float(level), 2) for level in _LEVELS],
        "curves": curves,
        "cells": len(pit),
        "coverage90": round(float(np.mean(reach <= 0.9)), 3),
    }
