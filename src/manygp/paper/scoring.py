"""One run: load, fit, score, and tell what it took."""

import contextlib
import inspect
import os
import platform
import resource
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from manygp._version import __version__
from manygp.data import Grid
from manygp.data.table import FloatArray
from manygp.errors import SettingError
from manygp.paper.datasets import Dataset
from manygp.paper.models import Factory, build, find_model
from manygp.paper.predictions import save_predictions
from manygp.paper.problem import Problem, values_of
from manygp.paper.records import KEYS, METRICS, Record, Run, claim, write_record
from manygp.paper.settings import COORDINATES
from manygp.variational import NaturalPosterior, TensorNormal
from manygp.variational.kronecker import NaturalKronecker

# Cells of the training part that are scored; their number only matters for time.
_TRAIN_CELLS = 50_000
# Variance of a new output's latent vector around its coordinates, as published.
_NEW_OUTPUT_VARIANCE = 0.1
# Posteriors that natural steps move: what they learn is in buffers of their own, and in no parameter.
_NATURAL = (NaturalPosterior, NaturalKronecker, TensorNormal)


def carry_out(
    run: Run, dataset: Dataset, factory: Factory | None, folder: Path, keep: bool, sources: str | None = None
) -> Record | None:
    """Carry a run out and write its record; what goes wrong is recorded too. None if another process is at it.

    Data set and model are those meant by the names in the run, where there is such a model. `keep` saves predictions
    beside the record, for figures; `sources` is the digest of the model's sources.
    """
    with claim(run.path(folder)) as is_ours:
        return _carried_out(run, dataset, factory, folder, keep, sources) if is_ours else None


def _carried_out(
    run: Run, dataset: Dataset, factory: Factory | None, folder: Path, keep: bool, sources: str | None
) -> Record:
    # What is not found out stays None.
    record: Record = dict.fromkeys(KEYS) | asdict(run) | {"metrics": dict.fromkeys(METRICS)}
    record |= {"versions": versions(), "commit": commit(), "sources": sources, "machine": machine()}
    try:
        record |= _outcome(run, dataset, factory, folder if keep else None)
    except Exception as error:
        # The rest goes on; the last line of the trace says where to look.
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())
        record["error"] = f"{type(error).__name__}: {message} ({Path(where.filename).name}:{where.lineno})"
    write_record(run.path(folder), record)
    return record


def _outcome(run: Run, dataset: Dataset, factory: Factory | None, folder: Path | None) -> Record:
    """Scores and costs of a run."""
    problem = dataset.load(run.seed)
    settings = _with_arrays(run.settings, problem)
    model = build(factory or find_model(run.model), settings, run.seed)
    _forget_peak_memory()
    with warnings.catch_warnings():
        # Notes for people at a terminal; a record has no place for them.
        warnings.simplefilter("ignore")
        started, worked = time.perf_counter(), time.process_time()
        _fit(model, problem, settings)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
        if getattr(getattr(model, "history_", None), "stop_reason", "") == "interrupted":
            # A model keeps what it learnt before Ctrl-C, but that is no result.
            raise KeyboardInterrupt
        new = _new_outputs(model, problem, settings) if problem.has_new_outputs else None
        metrics = _metrics(model, problem, new, run.seed)
        score_seconds = time.process_time() - worked - cpu_seconds
        if folder is not None:
            save_predictions(folder / "predictions" / f"{run.key}.npz", model, problem, new)
    history = getattr(model, "history_", ())
    return {
        "metrics": metrics,
        "train_seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "score_seconds": score_seconds,
        "epochs": len(history) or None,
        "num_parameters": _num_parameters(model),
        "peak_memory_mb": _peak_memory_mb(),
    }


def _with_arrays(settings: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """Settings with the coordinates of the problem in place of the word that stands for them."""
    meant = settings.get("latent_prior_mean")
    if not isinstance(meant, str) or meant != COORDINATES:
        return settings
    if problem.coordinates is None:
        raise SettingError(f"latent_prior_mean={meant!r} has no meaning for this data set; leave it out.")
    return settings | {"latent_prior_mean": problem.coordinates}


def _fit(model: Any, problem: Problem, settings: dict[str, Any]) -> None:
    table = problem.train
    own: dict[str, Any] = {}
    if problem.has_new_outputs and settings.get("latent_prior_mean") is None:
        # Without a prior from the coordinates themselves, the model learns how latents depend on them.
        own["output_coordinates"] = problem.places
    model.fit(table.X, values_of(table), **own)


def _metrics(model: Any, problem: Problem, new: Any, seed: int) -> dict[str, float | None]:
    """Scores on the cells to predict, of the prediction `new` if their outputs are new, and on those learnt from."""
    held_out = values_of(problem.test)
    if new is None:
        test = _evaluate(model, problem.test.X, held_out, problem.is_counts)
    else:
        test = new.score(held_out, plug_in=problem.is_counts)
    train = _evaluate(model, problem.train.X, _some_cells(problem.train, seed), problem.is_counts)
    told = {
        f"{part}_{name}": value for part, scores in (("test", test), ("train", train)) for name, value in scores.items()
    }
    return {name: told.get(name, test.get(name)) for name in METRICS}


def _new_outputs(model: Any, problem: Problem, settings: dict[str, Any]) -> Any:
    """The prediction of outputs that were never observed, from where they are."""
    if settings.get("latent_prior_mean") is not None:
        return model.predict_new_outputs(
            problem.test.X, latent_mean=problem.new_coordinates, latent_variance=_NEW_OUTPUT_VARIANCE
        )
    return model.predict_new_outputs(problem.test.X, output_coordinates=problem.new_places)


def _evaluate(model: Any, X: FloatArray, Y: FloatArray, is_counts: bool) -> dict[str, float]:
    plug_in = {"plug_in": True} if is_counts and "plug_in" in inspect.signature(model.evaluate).parameters else {}
    return dict(model.evaluate(X, Y, **plug_in))


def _some_cells(table: Grid, seed: int) -> FloatArray:
    """The values of at most so many observed cells, NaN elsewhere."""
    values = values_of(table)
    seen = np.flatnonzero(~np.isnan(values))
    if len(seen) <= _TRAIN_CELLS:
        return values
    kept = np.random.default_rng(seed).choice(seen, _TRAIN_CELLS, replace=False)
    some = np.full(values.size, np.nan)
    some[kept] = values.reshape(-1)[kept]
    return some.reshape(values.shape)


def _num_parameters(model: Any) -> int | None:
    """Numbers that an estimator has learnt; a model of another make may tell them itself."""
    module = getattr(model, "model_", None)
    if isinstance(module, torch.nn.Module):
        return count_parameters(module)
    return getattr(model, "num_parameters", None)


def count_parameters(module: torch.nn.Module) -> int:
    """Numbers in the parameters of a model and in its q(u), whether gradients or natural steps move that.

    A precision counts like the factor of a covariance, as a full square, so that both presets of a model have the same
    number but for c of a `LatentKernel`. Kernels and likelihood are counted, unlike in appendix I of the paper. What a
    fit finds beside the bound (scalings, priors, effects of single inputs) is not.
    """
    natural = [part for part in module.modules() if isinstance(part, _NATURAL)]
    learnt = [*module.parameters(), *(values for part in natural for values in part.buffers(recurse=False))]
    return sum(values.numel() for values in learnt)


# -- where and with what -----------------------------------------------------------------------------------------


def _forget_peak_memory() -> None:
    """Start the peak anew, so that it is this run's; where the system does not allow that, it is the process's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory_mb() -> float:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    # Kilobytes on Linux, bytes on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


@cache
def versions() -> dict[str, str]:
    """Versions of the library and of what its numbers depend on."""
    names = ("torch", "gpytorch", "numpy", "scipy", "scikit-learn")
    return {"manygp": __version__, "python": platform.python_version()} | {
        name: metadata.version(name) for name in names
    }


@cache
def commit() -> str | None:
    """The commit of the sources if they are a git checkout; "+" if files of the package differ from it."""
    source = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(source), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if git("ls-files", "--error-unmatch", "_version.py") == "":
            return None
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", str(source)) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """The machine, what of it was used, and when."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
    }


@cache
def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
