"""Fits that are killed again and again, and go on from their checkpoints: the end is the same to the bit.

`python -m benchmarks.kills` kills fits of four kinds (Gaussian noise, counts, OILMM, neighbours) with SIGKILL at random
moments, 50 for each kind, resumes them each time, and compares every model that comes out with that of a fit which was
left alone. One JSON line for each kind: kills, finished fits, how many of those are equal, and for one fit with
checkpoints at the default interval its seconds, those of a write, and the share of the copies for the way back.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import manygp
from manygp.estimators.checkpoint import Checkpoint
from manygp.training import loop

_MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "gaussian": (manygp.TLVMOGP, {"num_neighbors": 0, "num_inducing": 40, "latent_dim": 3, "epochs": 40}),
    "counts": (manygp.TLVMOGP, {"likelihood": "poisson", "num_inducing": 30, "latent_dim": 2, "epochs": 30}),
    "oilmm": (manygp.OILMM, {"num_latents": 4, "num_inducing": 20, "epochs": 40}),
    "neighbours": (manygp.TLVMOGP, {"num_neighbors": 12, "num_inducing": 30, "latent_dim": 3, "epochs": 40}),
}
# Checkpoints are written as often as there is something new, and there is after a few steps.
_LOOK_STEPS = 5


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
                    process.wait(rng.uniform(0.0, 0.5 * alone))
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
    parser.add_argument("--kinds", default=",".join(_MODELS))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, checkpoint, out = arguments.child
        print("ready", flush=True)
        fit(kind, checkpoint=checkpoint, checkpoint_every=0).save(out)
        return
    rng = np.random.default_rng(arguments.seed)
    for kind in arguments.kinds.split(","):
        print(json.dumps({"benchmark": "kills"} | run(kind, arguments.kills, rng)), flush=True)


if __name__ == "__main__":
    main()
