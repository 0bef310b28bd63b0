"""Fits, saves, predictions and table runs that are killed again and again.

`python -m benchmarks.kills` kills fits of four kinds (Gaussian noise, counts, OILMM, neighbours) with SIGKILL at random
moments, 50 for each kind, resumes them each time, and compares every model that comes out with that of a fit which was
left alone: the end is the same to the bit. One JSON line for each kind: kills, finished fits, how many of those are
equal, and for one fit with checkpoints at the default interval its seconds, those of a write, and the share of the
copies for the way back.

It then kills processes that write one thing after the other to one place: models ("save"), predictions ("zarr",
"netcdf", "parquet") and records of the paper's tables ("records"). After each kill, there is what was written last or
before ("old_or_new"); the next to write leaves nothing of the others behind ("litter").
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray

import manygp
from manygp.data import Grid, files
from manygp.estimators.checkpoint import Checkpoint
from manygp.paper import (
    Dataset,
    Problem,
    Run,
    carry_out_all,
    read_records,
    register_dataset,
    register_model,
)
from manygp.training import loop

_MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "gaussian": (manygp.TLVMOGP, {"num_neighbors": 0, "num_inducing": 40, "latent_dim": 3, "epochs": 40}),
    "counts": (manygp.TLVMOGP, {"likelihood": "poisson", "num_inducing": 30, "latent_dim": 2, "epochs": 30}),
    "oilmm": (manygp.OILMM, {"num_latents": 4, "num_inducing": 20, "epochs": 40}),
    "neighbours": (manygp.TLVMOGP, {"num_neighbors": 12, "num_inducing": 30, "latent_dim": 3, "epochs": 40}),
}
_WRITES = ("save", "zarr", "netcdf", "parquet", "records")
# Checkpoints are written as often as there is something new, and there is after a few steps.
_LOOK_STEPS = 5
# The latest moment of a kill, in times that a fit takes: kills fall everywhere, and some fits come to their end.
_LONGEST = 1.5


def make_table(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Smooth curves with noise and gaps."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0.0, 6.0, (60, 1)), axis=0)
    Y = np.sin(X + np.linspace(0.0, 3.0, 40)) + 0.1 * rng.standard_normal((60, 40))
    Y = rng.poisson(np.exp(Y)).astype(float) if kind == "counts" else Y
    Y[rng.random(Y.shape) < 0.2] = np.nan
    return X, Y


def fit(kind: str, **checkpoint: Any) -> Any:
    """Fit a model of a kind."""
    torch.set_num_threads(1)
    loop._LOOK_STEPS = _LOOK_STEPS
    estimator, settings = _MODELS[kind]
    return estimator(**settings, device="cpu", progress=False).fit(*make_table(kind), **checkpoint)


def tensors(model: Any) -> dict[str, torch.Tensor]:
    """All numbers of a fitted model."""
    return dict(model.model_.state_dict())


def run(kind: str, kills: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kill fits of one kind so many times, and compare what comes out of them with a fit that was left alone."""
    started = time.perf_counter()
    whole = tensors(fit(kind))
    alone = time.perf_counter() - started
    killed = finished = equal = 0
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, out = Path(folder) / "checkpoint", Path(folder) / "model"
        while killed < kills:
            command = [sys.executable, "-m", "benchmarks.kills", "--child", kind, str(checkpoint), str(out)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                try:
                    process.wait(rng.uniform(0.0, _LONGEST * alone))
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
            if out.exists():
                ours = tensors(manygp.load(out))
                finished += 1
                equal += ours.keys() == whole.keys() and all(torch.equal(ours[key], whole[key]) for key in whole)
                shutil.rmtree(out)
                shutil.rmtree(checkpoint)
        litter = [path.name for path in Path(folder).rglob(".manygp-*")]
        model = fit(kind, checkpoint=checkpoint, checkpoint_every=0)
        ours = tensors(model)
        finished += 1
        equal += all(torch.equal(ours[key], whole[key]) for key in whole)
    return {"kind": kind, "kills": killed, "finished": finished, "equal": equal, "litter": litter} | overhead(kind)


# -- writes ------------------------------------------------------------------------------------------------------------


class Writes:
    """Two versions of one thing in one place, written in turns by processes that are killed.

    Parameters
    ----------
    kind
        "save", "zarr", "netcdf" or "parquet".
    folder
        Where it is written.
    """

    def __init__(self, kind: str, folder: Path):
        torch.set_num_threads(1)
        X, Y = make_table("gaussian")
        settings = {"num_neighbors": 0, "num_inducing": 10, "latent_dim": 2, "epochs": 1, "num_samples": 2}
        self.models = [manygp.TLVMOGP(**settings, progress=False).fit(X, sign * Y) for sign in (1.0, -1.0)]
        suffix = {"save": "", "netcdf": ".nc"}.get(kind, f".{kind}")
        self.kind, self.path = kind, folder / f"thing{suffix}"
        self.write(0)
        first = self.read()
        self.write(1)
        self.versions = [first, self.read()]

    def write(self, version: int) -> None:
        """Write one of the versions."""
        if self.kind == "save":
            self.models[version].save(self.path)
        else:
            self.models[version].predict_to(self.path)

    def read(self) -> list[np.ndarray]:
        """All numbers that are there."""
        if self.kind == "save":
            return [tensor.numpy() for tensor in tensors(manygp.load(self.path)).values()]
        if self.kind == "parquet":
            return [pd.read_parquet(self.path).to_numpy()]
        options = {"engine": "zarr", "consolidated": False} if self.kind == "zarr" else {}
        with xarray.open_dataset(self.path, **options) as found:
            # In an order of ours: a folder has its files in any.
            return [found[name].to_numpy() for name in sorted(map(str, found.variables))]

    def is_whole(self) -> bool:
        """Whether one of the versions is there."""
        found = self.read()
        return any(len(found) == len(version) and all(map(np.array_equal, found, version)) for version in self.versions)

    def litter(self) -> list[str]:
        """What else is there once somebody has written, after a moment."""
        time.sleep(files._FRESH)
        self.write(0)
        inside = [path.name for path in self.path.glob("*.tmp")] if self.kind == "save" else []
        return inside + [path.name for path in self.path.parent.iterdir() if path != self.path]


def kill_writes(kind: str, kills: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kill so many processes that write a thing, and look at what is there each time."""
    with tempfile.TemporaryDirectory() as folder:
        thing, whole = Writes(kind, Path(folder)), 0
        began = time.perf_counter()
        thing.write(0)
        seconds = time.perf_counter() - began
        for _ in range(kills):
            _killed_after(rng.uniform(0.0, 4.0 * seconds), lambda: [thing.write(i % 2) for i in itertools.count()])
            whole += thing.is_whole()
        return {"kind": kind, "kills": kills, "old_or_new": whole, "litter": thing.litter()}


def kill_records(kills: int, rng: np.random.Generator) -> dict[str, Any]:
    """Kill so many runs of a table; records are whole or not there, and in the end those of a run left alone."""
    register_dataset(Dataset("killed-waves", "Waves", _waves))
    register_model("killed-constant", _Constant, "A constant")
    runs = [Run("killed-waves", "killed-constant", "fast", seed, {}) for seed in range(40)]
    wrong = finished = 0
    with tempfile.TemporaryDirectory() as place:
        alone, folder = Path(place) / "alone", Path(place) / "killed"
        metrics = [record["metrics"] for record in carry_out_all(runs, alone, progress=False)]
        for _ in range(kills):
            _killed_after(rng.uniform(0.0, 0.2), lambda: carry_out_all(runs, folder, progress=False))
            found = {record["seed"]: record["metrics"] for record in read_records(folder)} if folder.exists() else {}
            wrong += any(metrics[seed] != held for seed, held in found.items())
            finished += len(found) == len(runs)
            if len(found) == len(runs):
                shutil.rmtree(folder)
        wrong += [record["metrics"] for record in carry_out_all(runs, folder, progress=False)] != metrics
        names = [{path.relative_to(at) for path in at.rglob("*")} for at in (alone, folder)]
        litter = sorted(map(str, names[1] - names[0]))
    return {"kind": "records", "kills": kills, "finished": finished, "old_or_new": kills - wrong, "litter": litter}


def _waves(seed: int) -> Problem:
    X = np.linspace(0.0, 1.0, 12)[:, None]
    Y = np.sin(6.0 * X + np.arange(5))
    held = np.random.default_rng(seed).random(Y.shape) < 0.3
    return Problem(Grid(X, Y, mask=~held), Grid(X, Y, mask=held))


class _Constant:
    """A model that predicts a number."""

    def __init__(self, random_state: int = 0):
        self.random_state = random_state

    def fit(self, X: Any, Y: Any) -> "_Constant":
        """Learn nothing."""
        return self

    def evaluate(self, X: Any, Y: Any) -> dict[str, float]:
        """Tell the error."""
        return {"mse": float(np.nanmean((Y - 0.01 * self.random_state) ** 2))}


def _killed_after(seconds: float, work: Callable[[], Any]) -> None:
    """Do something in a process of its own, which does not live long."""
    with warnings.catch_warnings():
        # Threads of libraries are not in the child, and nothing there asks for them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def overhead(kind: str) -> dict[str, float]:
    """Seconds that copies for the way back and one write take, beside those of a fit of ordinary looks."""
    spent, write, state = [0.0, 0.0], Checkpoint._write, loop._Run._state

    def timed(index: int, function: Any) -> Any:
        def call(self: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(self)
            finally:
                spent[index] += time.perf_counter() - began

        return call

    Checkpoint._write, loop._Run._state = timed(0, write), timed(1, state)
    global _LOOK_STEPS
    _LOOK_STEPS, before = 50, _LOOK_STEPS
    try:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            fit(kind, checkpoint=Path(folder) / "checkpoint")
            total = time.perf_counter() - began
    finally:
        Checkpoint._write, loop._Run._state, _LOOK_STEPS = write, state, before
    shares = {"seconds": total, "write_seconds": spent[0], "copy_share": spent[1] / total}
    return {name: round(value, 4) for name, value in shares.items()}


def main() -> None:
    """Run the benchmark and print its JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join([*_MODELS, *_WRITES]))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, checkpoint, out = arguments.child
        print("ready", flush=True)
        fit(kind, checkpoint=checkpoint, checkpoint_every=0).save(out)
        return
    rng = np.random.default_rng(arguments.seed)
    for kind in arguments.kinds.split(","):
        work = run if kind in _MODELS else kill_writes
        found = kill_records(arguments.kills, rng) if kind == "records" else work(kind, arguments.kills, rng)
        print(json.dumps({"benchmark": "kills"} | found), flush=True)


if __name__ == "__main__":
    main()
