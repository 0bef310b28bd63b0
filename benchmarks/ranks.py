"""Fits by several processes: throughput, traffic, and a million outputs.

`python -m benchmarks.ranks` fits tables of 24 inputs with torchrun and prints one JSON line for each: two processes of
one thread beside one process of two threads, both on batches of the same size, at 10⁴ outputs; traffic of a step at
10⁴ and 10⁵; and with `--million` 10⁶ outputs with a checkpoint, for `--seconds` at most. `--quick` takes a tenth of the
outputs. Cells a second are those of training alone; surveys and corrections are not shared out. Beside them are seconds
of processors in steps of the first process, for machines that have other things to do. `--neighbors` takes batches of
groups of cells with so many neighbours instead, and tells traffic alone.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import manygp
from benchmarks.scale import SETTINGS, make_table
from manygp import distributed
from manygp.data import as_table
from manygp.training import loop

# Cells that a run passes over at least, and outputs in the batch of one process.
_CELLS, _BATCH_OUTPUTS = 1_000_000, 256


def fit(
    num_outputs: int, shards: int, cells: int, checkpoint: str | None, seconds: float | None, neighbors: int = 0
) -> dict[str, Any] | None:
    """Fit one table by the processes that there are, for so many seconds at most; what the first of them can tell."""
    X, Y = make_table(num_outputs)
    table = as_table(X, Y)
    del Y
    epochs = max(1, round(cells / table.num_observed))
    batch = _BATCH_OUTPUTS * shards // int(os.environ.get("WORLD_SIZE", "1"))
    sizes = {"num_neighbors": neighbors, "batch_outputs": batch, "batch_inputs": None, "corrections": ()}
    model, traffic = manygp.TLVMOGP(epochs=epochs, **SETTINGS | sizes), distributed.Traffic()
    started, step, spent = time.perf_counter(), loop.take_step, [0.0]

    def timed(*given: Any) -> Any:
        spent[0] -= time.process_time()
        told = step(*given)
        spent[0] += time.process_time()
        return told

    loop.take_step = timed
    if seconds is not None and distributed.is_first():
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
    distributed.fit(model, table, traffic=traffic, checkpoint=checkpoint, checkpoint_every="10s")
    if not distributed.is_first():
        return None
    whole = epochs * -(-num_outputs // (_BATCH_OUTPUTS * shards))
    steps, stages = traffic.steps or whole, model.history_.stages
    return {
        "num_outputs": num_outputs,
        "ranks": int(os.environ.get("WORLD_SIZE", "1")),
        "threads": torch.get_num_threads(),
        "steps": steps,
        "cells_per_second": round(steps / whole * epochs * table.num_observed / stages["training"]),
        "ms_per_step": round(1e3 * stages["training"] / steps, 2),
        "cpu_ms_per_step": round(1e3 * spent[0] / steps, 2),
        "exchanges_per_step": round(traffic.exchanges / steps, 2),
        "bytes_per_step": round(traffic.num_bytes / steps),
        "row_bytes": traffic.row_bytes,
        "start_seconds": round(stages["survey"] + stages["start"], 1),
        "seconds": round(time.perf_counter() - started, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "stop_reason": model.history_.stop_reason,
    }


def run(
    num_outputs: int,
    ranks: int,
    threads: int,
    cells: int,
    checkpoint: str | None = None,
    seconds: float | None = None,
    neighbors: int = 0,
) -> dict[str, Any]:
    """`fit` by so many processes of so many threads."""
    own = ["-m", "benchmarks.ranks", "--fit", str(num_outputs), "--shards", "2", "--cells", str(cells)]
    own += [] if checkpoint is None else ["--checkpoint", checkpoint]
    own += ["--neighbors", str(neighbors)]
    own += [] if seconds is None else ["--seconds", str(seconds)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    told = subprocess.run(
        [sys.executable, *launcher, *own], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    return json.loads(told.stdout)


def main() -> None:
    """Run the benchmark and print its lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the outputs")
    parser.add_argument("--million", action="store_true", help="10⁶ outputs with a checkpoint alone")
    parser.add_argument("--fit", type=int, help="fit one table with so many outputs in this process")
    parser.add_argument("--neighbors", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--cells", type=int, default=_CELLS)
    parser.add_argument("--checkpoint")
    parser.add_argument("--seconds", type=float, help="of the million outputs, or of one table")
    given = parser.parse_args()
    if given.fit:
        told = fit(given.fit, given.shards, given.cells, given.checkpoint, given.seconds, given.neighbors)
        if told is not None:
            print(json.dumps(told))
        return
    factor = 10 if given.quick else 1
    if given.million:
        with tempfile.TemporaryDirectory() as folder:
            told = run(1_000_000 // factor, 2, 1, 1, str(Path(folder) / "run"), given.seconds)
            told["checkpoint_gb"] = round(sum(p.stat().st_size for p in Path(folder).rglob("*.*")) / 1e9, 2)
        print(json.dumps({"benchmark": "ranks, a million outputs"} | told))
        return
    if given.neighbors:
        for outputs in (1_000, 10_000, 100_000):
            told = run(outputs // factor, 2, 1, 1, None, given.seconds, given.neighbors)
            kept = ("num_outputs", "ranks", "exchanges_per_step", "bytes_per_step", "row_bytes", "stop_reason")
            print(json.dumps({"benchmark": "ranks, neighbours"} | {name: told[name] for name in kept}), flush=True)
        return
    for name, outputs, ranks, threads in (
        ("throughput", 10_000, 1, 2),
        ("throughput", 10_000, 2, 1),
        ("throughput", 10_000, 1, 2),
        ("traffic", 100_000, 2, 1),
    ):
        told = run(outputs // factor, ranks, threads, _CELLS // factor)
        print(json.dumps({"benchmark": f"ranks, {name}"} | told), flush=True)


if __name__ == "__main__":
    main()
