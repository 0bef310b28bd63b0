"""Fits to tables that are larger than memory: what they take, and how long a step is beside that of a table in memory.

`python -m benchmarks.out_of_core` writes a table of counts, 100,000 inputs x 20,000 outputs of which 5% are not zero,
as a sparse matrix by rows to an HDF5 file, and one of measurements of the same size to a memory map of float64 (16 GB).
It takes a sample of batches of three epochs from each, in processes of their own. One JSON line for each: peak memory
of the process, without pages of files in `peak_own_gb`, milliseconds of a step, and the same for a table in memory, of
some of the rows: a step does not depend on how many there are. `--inputs` and `--outputs` make smaller tables, `--keep`
names a folder where the files stay.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import manygp
from manygp.data import Batch, Grid, GridPlan, Plan, as_stored

_SHARE, _CLUSTERS, _NAMES = 0.05, 8, ("data", "indices")
_SETTINGS = {"latent_dim": 3, "num_inducing": 200, "num_neighbors": 0, "epochs": 3, "device": "cpu", "progress": False}
# Tiles that an epoch looks at, and batches of each; a whole epoch takes all of either.
_TILES, _BATCHES = 5, 10
# Rows of a table that is held in memory for comparison, and rows that are written at once.
_ROWS_IN_MEMORY, _CHUNK = 8_000, 1_000


def inputs(num_inputs: int) -> np.ndarray:
    """Places in the plane."""
    return np.random.default_rng(0).uniform(size=(num_inputs, 2))


def write_counts(path: Path, num_inputs: int, num_outputs: int) -> None:
    """Counts whose rates differ by output and by where an input is, as AnnData keeps sparse matrices."""
    rng, X = np.random.default_rng(1), inputs(num_inputs)
    share = rng.dirichlet(np.full(num_outputs, 1.0), _CLUSTERS).cumsum(1)
    cluster = (X[:, 0] * _CLUSTERS).astype(int)
    # A few are drawn twice, and counted so.
    width = round(1.06 * _SHARE * num_outputs)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        data, indices = (group.create_dataset(name, (0,), "i4", chunks=(2**16,), maxshape=(None,)) for name in _NAMES)
        per_row = np.zeros(num_inputs, dtype=np.int64)
        for start in range(0, num_inputs, _CHUNK):
            near = cluster[start : start + _CHUNK]
            drawn = np.stack([np.searchsorted(share[k], rng.random(width)) for k in near]).clip(max=num_outputs - 1)
            cells, counts = np.unique(np.arange(len(near))[:, None] * num_outputs + drawn, return_counts=True)
            per_row[start : start + len(near)] = np.bincount(cells // num_outputs, minlength=len(near))
            for dataset, part in ((data, counts), (indices, cells % num_outputs)):
                dataset.resize((len(dataset) + len(part),))
                dataset[-len(part) :] = part
        group["indptr"] = np.concatenate([[0], per_row.cumsum()])
        group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", (num_inputs, num_outputs)


def write_measurements(path: Path, num_inputs: int, num_outputs: int) -> None:
    """Smooth functions of the inputs with noise."""
    rng, X = np.random.default_rng(2), inputs(num_inputs)
    loadings = rng.standard_normal((3, num_outputs))
    array = np.lib.format.open_memmap(path, "w+", np.float64, (num_inputs, num_outputs))
    for start in range(0, num_inputs, _CHUNK):
        x = X[start : start + _CHUNK]
        curves = np.stack([np.sin(3.0 * x[:, 0]), np.cos(4.0 * x[:, 1]), x[:, 0] * x[:, 1]], axis=1)
        noise = rng.standard_normal((len(x), num_outputs), dtype=np.float32)
        array[start : start + _CHUNK] = curves @ loadings + 0.1 * noise
    array.flush()


class Sample(Plan):
    """Some batches of a plan, of several tiles."""

    def __init__(self, plan: GridPlan, num_tiles: int, num_batches: int):
        self.plan, self.table, self._size = plan, plan.table, (num_tiles, num_batches)
        self.seconds: list[float] = []

    def __len__(self) -> int:
        """Return the number of batches that are taken."""
        return self._size[0] * self._size[1]

    def epoch(self, rng: np.random.Generator) -> Iterator[Batch]:
        """Yield random batches of tile after tile, with the time at which each is wanted."""
        plan, (num_tiles, num_batches) = self.plan, self._size
        parts = itertools.chain.from_iterable(
            ((rows, outputs) for rows in plan._rows.parts(rng) for outputs in plan._outputs.parts(rng))
            for _ in itertools.count()
        )
        for rows, outputs, part in plan.table.tiles(itertools.islice(parts, num_tiles)):
            for _ in range(num_batches):
                at = np.sort(rng.choice(len(rows), min(len(rows), plan._most[0]), replace=False))
                of = np.sort(rng.choice(len(outputs), min(len(outputs), plan._most[1]), replace=False))
                self.seconds.append(time.perf_counter())
                yield plan._batch(part.block(at, of), rows[at], outputs[of])


class Sampled(manygp.TLVMOGP):
    """A T-LVMOGP that is trained on a sample of batches."""

    def _plan(self, table: Any, scaling: Any) -> Plan:
        plan = super()._plan(table, scaling)
        assert isinstance(plan, GridPlan)
        self.sample_ = Sample(plan, _TILES, _BATCHES)
        return self.sample_


class Peak(threading.Thread):
    """Watches the memory of this process that is not pages of files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0

    def run(self) -> None:
        """Look often."""
        while True:
            self.most = max(self.most, _status("RssAnon"))
            time.sleep(0.05)


def _status(name: str) -> int:
    """What Linux tells of this process, in kB."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def fit(layout: str, place: str, path: Path) -> dict[str, Any]:
    """Fit a sample of batches of a table on disk, or of one in memory."""
    torch.set_num_threads(1)
    watch, counts = Peak(), layout == "counts"
    watch.start()
    held = h5py.File(path, "r")["X"] if counts else np.load(path, mmap_mode="r")
    stored = as_stored(held)
    assert stored is not None
    # A copy: rows of a memory map would be one still.
    values = stored if place == "stored" else stored[:_ROWS_IN_MEMORY].copy()
    started = time.perf_counter()
    table = Grid(inputs(stored.shape[0])[: values.shape[0]], values)
    model = Sampled(**_SETTINGS, likelihood="poisson" if counts else "gaussian").fit(table)
    steps = np.diff(model.sample_.seconds)
    return {
        "shape": values.shape,
        "ms_per_step": round(1e3 * float(np.mean(steps)), 2),
        "median_ms": round(1e3 * float(np.median(steps)), 2),
        "steps": len(steps) + 1,
        "fit_seconds": round(time.perf_counter() - started, 1),
        # Not that of `getrusage`, which a process takes over from the one that started it.
        "peak_gb": round(_status("VmHWM") / 2**20, 2),
        "peak_own_gb": round(watch.most / 2**20, 2),
    }


def run(layout: str, path: Path) -> dict[str, Any]:
    """A table on disk and one in memory, in processes of their own."""
    found = {}
    for place in ("stored", "memory"):
        command = [sys.executable, "-m", "benchmarks.out_of_core", "--fit", layout, place, str(path)]
        found[place] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(json.dumps({"layout": layout, "place": place} | found[place]), file=sys.stderr, flush=True)
    stored, memory = found["stored"], found["memory"]
    return {
        "benchmark": "out_of_core",
        "layout": layout,
        "file_gb": round(path.stat().st_size / 2**30, 2),
        "peak_gb": stored["peak_gb"],
        "step_ratio": round(stored["ms_per_step"] / memory["ms_per_step"], 2),
        "stored": stored,
        "memory": memory,
    }


def main() -> None:
    """Run the benchmark and print its JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--outputs", type=int, default=20_000)
    parser.add_argument("--layouts", default="counts,measurements")
    parser.add_argument("--keep", type=Path, help="folder for the files, which stay there")
    parser.add_argument("--fit", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fit:
        layout, place, path = arguments.fit
        print(json.dumps(fit(layout, place, Path(path))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        for layout in arguments.layouts.split(","):
            write, suffix = (write_counts, "h5") if layout == "counts" else (write_measurements, "npy")
            path = folder / f"{layout}-{arguments.inputs}x{arguments.outputs}.{suffix}"
            if not path.exists():
                write(path, arguments.inputs, arguments.outputs)
            print(json.dumps(run(layout, path)), flush=True)


if __name__ == "__main__":
    main()
