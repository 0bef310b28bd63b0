"""The campaign: which runs fill every table, in what order, what is still to do, and how long that takes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from manygp.baselines import BASELINES
from manygp.errors import SettingError
from manygp.paper.datasets import find_dataset
from manygp.paper.files import place
from manygp.paper.models import sources_of
from manygp.paper.records import Record, Run, read_records
from manygp.paper.tables import PaperTable, find_tables, runs_of

FLAGSHIP = "tlvmogp"
_MODEL_TABLES = "eeg,era5-random,era5-block,sarcos,copernicus,transcriptomics"
# Seeds of every run: all of them in tables of models, two in tables of settings.
_SEEDS = {"eeg": 5, "era5-random": 3, "era5-block": 3}
_FEWEST_SEEDS = 2
# With the published procedure: data sets by model, and seeds.
_PUBLISHED = (("eeg", (FLAGSHIP, "ind-gp", "oilmm", "sv-lmc", "gs-lvmogp"), 3), ("era5-random", (FLAGSHIP,), 2))
# States of runs that are carried out, and those that are if what failed is tried again.
DUE, RETRIED = ("missing", "stale"), ("missing", "stale", "failed")
# What runs have in common that take about as long, from most to least: all but the seed, the model, the data set.
_SHARES: tuple[Callable[[Run], object], ...] = (
    lambda run: run.key.rpartition("_")[0],
    lambda run: (run.dataset, run.model, run.preset),
    lambda run: run.dataset,
)
# Seconds of a run of which nothing is known.
_UNKNOWN = 1_800.0


def every_run() -> list[Run]:
    """Every run of the record, most important first.

    First everything once: plain methods, T-LVMOGP, rivals, the published procedure, tables of settings. Then the other
    seeds in the same order.
    """
    models = find_tables(_MODEL_TABLES)
    every = runs_of(models, "fast", range(max(_SEEDS.values())))
    wanted = [run for run in every if run.seed < _SEEDS.get(run.dataset, _FEWEST_SEEDS)]
    stages = [
        [run for run in wanted if run.model in BASELINES],
        [run for run in wanted if run.model == FLAGSHIP],
        wanted,
        list(_published(models)),
        runs_of(find_tables("all"), "fast", range(_FEWEST_SEEDS)),
    ]
    placed: dict[str, tuple[bool, int, int, Run]] = {}
    for stage, runs in enumerate(stages):
        for run in runs:
            placed.setdefault(run.key, (run.seed > 0, stage, run.seed, run))
    return [entry[-1] for entry in sorted(placed.values(), key=lambda entry: entry[:-1])]


def _published(models: Sequence[PaperTable]) -> Iterator[Run]:
    for dataset, names, seeds in _PUBLISHED:
        for run in runs_of(models, "paper", range(seeds)):
            # The published sizes: others were not published.
            if run.dataset == dataset and run.model in names and "auto" not in run.settings.values():
                yield run


def state_of(run: Run, record: Record | None) -> str:
    """Whether a run is "done", "stale" (its model's sources have changed since), "failed" or "missing"."""
    if record is None:
        return "missing"
    known = _sources(run.model)
    if known is not None and record["sources"] != known:
        return "stale"
    return "failed" if "error" in record else "done"


@cache
def _sources(model: str) -> str | None:
    try:
        return sources_of(model)
    except SettingError:
        return None


def absent_files(dataset: str) -> list[str]:
    """Names of the files of a data set that are not here."""
    return [file.name for file in find_dataset(dataset).files if place(file) is None]


class Estimates:
    """How long runs take, from the records of runs like them, stale or not."""

    def __init__(self, records: Sequence[Record]):
        self._known = [(Run.of(record), seconds) for record in records if (seconds := _seconds(record)) is not None]

    def seconds(self, run: Run) -> float:
        """Seconds of a run: those of other seeds, or else of the same model on the data set, or of any model on it."""
        for share in _SHARES:
            found = [seconds for other, seconds in self._known if share(other) == share(run)]
            if found:
                return float(np.median(found))
        return _UNKNOWN


def _seconds(record: Record) -> float | None:
    """What a run took of one thread: CPU seconds, or those of the clock in records that do not know them."""
    if record["cpu_seconds"] is not None:
        return float(record["cpu_seconds"] + record["score_seconds"])
    return None if record["train_seconds"] is None else float(record["train_seconds"])


@dataclass(frozen=True)
class Status:
    """Of a group of runs: how many are in each state, and the hours of those that are open and can be run."""

    name: str
    counts: Mapping[str, int]
    hours: float
    absent: tuple[str, ...] = ()


def status(runs: Sequence[Run], folder: Path, retry: bool = False) -> list[Status]:
    """What is done and what is open of some runs, by data set and preset, in the order of the runs."""
    records = list(read_records(folder)) if folder.is_dir() else []
    found, estimates = {Run.of(record).key: record for record in records}, Estimates(records)
    groups: dict[str, list[Run]] = {}
    for run in runs:
        name = run.dataset + ("" if run.preset == "fast" else f" ({run.preset})")
        groups.setdefault(name, []).append(run)
    told = []
    for name, group in groups.items():
        states = [state_of(run, found.get(run.key)) for run in group]
        absent = tuple(absent_files(group[0].dataset))
        due = RETRIED if retry else DUE
        hours = sum(estimates.seconds(r) for r, state in zip(group, states, strict=True) if state in due) / 3600
        counts = {state: states.count(state) for state in ("done", *RETRIED)}
        told.append(Status(name, counts, 0.0 if absent else hours, absent))
    return told
