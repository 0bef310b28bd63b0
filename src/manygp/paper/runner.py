"""The runner: what has no record yet, or a stale one, is run wherever joblib sends it, and recorded at once."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from manygp.errors import DataError, SettingError
from manygp.paper.campaign import DUE, RETRIED, Estimates, state_of
from manygp.paper.datasets import Dataset, find_dataset
from manygp.paper.files import find
from manygp.paper.models import Factory, find_model, sources_of
from manygp.paper.records import Record, Run, read_record, read_records
from manygp.paper.scoring import carry_out


def parse_seeds(text: str) -> list[int]:
    """Seeds from a text such as "0-2" or "0,3,7"."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            seeds.extend(range(int(first), int(last) + 1) if dash else [int(first)])
    except ValueError:
        seeds = []
    if not seeds:
        raise SettingError(f"--seeds was given {text!r}; write it as 0-2 or 0,3,7.")
    return list(dict.fromkeys(seeds))


def carry_out_all(
    runs: Sequence[Run],
    folder: Path,
    *,
    num_jobs: int | None = None,
    hours: float | None = None,
    retry: bool = False,
    keep_predictions: bool = True,
    progress: bool = True,
) -> list[Record]:
    """Carry out runs that have no record yet or a stale one, in order, and return the records that there are then.

    Every record is written as soon as its run ends, so a killed process loses nothing but the runs it was at, and two
    processes in one folder share the work. Runs go through joblib: choose another backend with
    `joblib.parallel_config` to spread them over machines that share the folder.

    Parameters
    ----------
    runs
        What to run, most important first.
    folder
        Where the records are and go.
    num_jobs
        Runs at a time, as joblib counts them; None takes what `joblib.parallel_config` says, or one.
    hours
        Time to spend: a run begins only if others like it would have ended in what is left of it.
    retry
        Whether to repeat runs whose record says that they failed.
    keep_predictions
        Whether to save predictions in a subfolder, for figures.
    progress
        Whether to show how far it has come.
    """
    if num_jobs == 0:
        raise SettingError("--jobs was given 0, which runs nothing: use 1 or more, or -1 for all cores.")
    # Names are resolved here: a worker on another machine does not know what was registered in this process.
    datasets = {run.dataset: find_dataset(run.dataset) for run in runs}
    lacking = _fetched(datasets.values())
    runs = [run for run in runs if run.dataset not in lacking]
    if lacking and not runs:
        raise next(iter(lacking.values()))
    factories = {run.model: _factory(run.model) for run in runs}
    sources = {run.model: sources_of(run.model) if factories[run.model] else None for run in runs}
    folder.mkdir(parents=True, exist_ok=True)
    due = [run for run in runs if state_of(run, _record(run, folder)) in (RETRIED if retry else DUE)]
    budget = _Budget(folder, hours)
    with _Display(len(runs), len(runs) - len(due), progress) as display:
        display.remarks(f"Left out {name}: {error}" for name, error in lacking.items())
        tasks = (
            joblib.delayed(carry_out)(
                run, datasets[run.dataset], factories[run.model], folder, keep_predictions, sources[run.model]
            )
            for run in display.announced(filter(budget.allows, due))
        )
        # A run is chosen when its turn comes and not before, so that the budget knows what is left.
        parallel = joblib.Parallel(n_jobs=num_jobs, return_as=_return_as(), pre_dispatch="n_jobs", batch_size=1)
        for record in parallel(tasks):
            display.finished(record)
    return [record for run in runs if (record := _record(run, folder)) is not None]


def _fetched(datasets: Iterable[Dataset]) -> dict[str, DataError]:
    """Fetch what is not here yet, and tell of the data sets whose files cannot be had."""
    lacking = {}
    for dataset in datasets:
        try:
            for file in dataset.files:
                find(file)
        except DataError as error:
            lacking[dataset.name] = error
    return lacking


class _Budget:
    """Says of each run whether there is time for it; without hours there always is."""

    def __init__(self, folder: Path, hours: float | None):
        self._end = None if hours is None else time.monotonic() + 3600 * hours
        self._estimates = Estimates([] if hours is None else list(read_records(folder)))

    def allows(self, run: Run) -> bool:
        return self._end is None or time.monotonic() + self._estimates.seconds(run) <= self._end


def _record(run: Run, folder: Path) -> Record | None:
    path = run.path(folder)
    return read_record(path) if path.is_file() else None


def _return_as() -> str:
    """Records as they come where the backend can do that, all at the end where it cannot."""
    backend, _ = joblib.parallel.get_active_backend()
    return "generator_unordered" if getattr(backend, "supports_return_generator", False) else "list"


def _factory(name: str) -> Factory | None:
    try:
        return find_model(name)
    except SettingError:
        # The run itself will fail with this error, and the record will say so.
        return None


class _Display:
    """One progress display: a bar on a terminal, a line for each run elsewhere."""

    def __init__(self, total: int, done: int, shown: bool):
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._lines = shown and not self._console.is_terminal
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
        self._bar = Progress(
            *columns, TimeElapsedColumn(), console=self._console, disable=not shown or self._lines, transient=True
        )
        self._task = self._bar.add_task("runs", total=total, completed=done)
        if shown and done:
            self._console.print(f"{done} of {total} runs have a record already.")

    def __enter__(self) -> "_Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def remarks(self, texts: Iterable[str]) -> None:
        """What is to be known before the first run."""
        for text in texts:
            if self._lines or not self._bar.disable:
                self._console.print(text, markup=False)

    def announced(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The runs, each named on the display when its turn comes."""
        for run in runs:
            self._bar.update(self._task, description=f"{run.dataset}, {run.model}, seed {run.seed}")
            yield run

    def finished(self, record: Record | None) -> None:
        """Count a run, and say how it went."""
        self._bar.advance(self._task)
        if record is None:
            # Another process is at it, and tells of it.
            return
        text = f"{record['dataset']}, {record['model']}, {record['preset']}, seed {record['seed']}: {_summary(record)}"
        if self._lines or not self._bar.disable:
            self._console.print(text, markup=False)


def _summary(record: Record) -> str:
    if "error" in record:
        return f"failed, {record['error']}"
    mse, nll = (record["metrics"][f"test_{name}"] for name in ("mse", "nll"))
    scores = f"MSE {mse:.4f}" + ("" if nll is None else f", NLL {nll:.3f}")
    return f"{scores} in {record['train_seconds']:.1f} s"
