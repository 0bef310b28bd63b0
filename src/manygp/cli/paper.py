"""`manygp paper` and `manygp data`: the paper's evaluation from the command line."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from manygp.cli import BAD_INPUT, FAILED
from manygp.cli.terminal import check_place, one_sentence_errors, print_results, remark

if TYPE_CHECKING:
    from manygp.paper.files import DataFile

_OPTIONS = {"no_args_is_help": True, "rich_markup_mode": "rich"}
paper_app = typer.Typer(help="Every table and figure of the paper.", **_OPTIONS)  # type: ignore[arg-type]
data_app = typer.Typer(help="Data sets: what there is, fetching and checking.", **_OPTIONS)  # type: ignore[arg-type]

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder of the records.")]
Preset = Annotated[str, typer.Option("--preset", help="fast or paper.")]
Retry = Annotated[bool, typer.Option("--retry", help="Repeat runs that failed.")]
Own = Annotated[
    Path | None,
    typer.Option("--with", help="A Python file that registers data sets, models and tables.", show_default=False),
]
Names = Annotated[list[str] | None, typer.Argument(help="Names of data sets (default: all).", show_default=False)]

_RESULTS = Path("manygp-paper")


@paper_app.command("run")
@one_sentence_errors
def run_tables(
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="Tables, separated by commas, or all.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset", "-d", help="A data set; of a table, only those named, with commas.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Only these models, separated by commas.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting that differs from the preset's.", show_default=False
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, such as 0-2 or 0,3,7.")] = "0",
    preset: Preset = "fast",
    out: Out = _RESULTS,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", help="Runs at a time (default: one).", show_default=False)
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option("--hours", help="Begin nothing that would not end within so many hours.", show_default=False),
    ] = None,
    retry: Retry = False,
    predictions: Annotated[bool, typer.Option(help="Save predictions for figures.")] = True,
    extra: Own = None,
) -> None:
    """Run what has no record yet or one of other sources: everything, the most important first, if nothing is named.

    Else the models of tables, or one model on one data set. What is killed goes on where it was when it is started
    again. The exit code is 1 if a run failed, now or before.
    """
    _load(extra)
    from manygp.cli.reading import listed
    from manygp.cli.settings import parse_settings
    from manygp.errors import SettingError
    from manygp.paper import Run, carry_out_all, every_run, find_tables, parse_seeds, runs_of, settings_for
    from manygp.paper.models import class_of

    chosen = parse_seeds(seeds)
    only, datasets = listed(model), listed(dataset)
    if table is not None:
        if settings:
            raise SettingError(
                "--table comes with settings of its own; leave out --set, or give --dataset and --model."
            )
        runs = [
            run
            for run in runs_of(find_tables(table), preset, chosen)
            if (only is None or run.model in only) and (datasets is None or run.dataset in datasets)
        ]
        if not runs:
            raise SettingError(f"No row of table {table!r} has that model and data set; see manygp paper list.")
    elif dataset is not None and only is not None:
        runs = []
        for name in only:
            changes = parse_settings(class_of(name), settings or [])
            own = settings_for(dataset, name, preset) | changes
            runs += [Run(dataset, name, preset, seed, own) for seed in chosen]
    elif dataset is None and only is None and not settings:
        runs = every_run()
    else:
        raise SettingError("Nothing was chosen to run; give --table, or --dataset and --model, or none of them.")
    check_place(out / "records")
    records = carry_out_all(runs, out, num_jobs=jobs, hours=hours, retry=retry, keep_predictions=predictions)
    failed = sum("error" in record for record in records)
    remark(f"{len(records)} records in {out}" + (f", {failed} of failed runs." if failed else "."))
    if failed:
        raise typer.Exit(FAILED)


@paper_app.command("status")
@one_sentence_errors
def show_status(out: Out = _RESULTS, retry: Retry = False) -> None:
    """Show what `manygp paper run` would run: records by state, and hours of one thread by earlier records."""
    from manygp.paper import every_run, status

    shown = Table("data set (preset)", "done", "stale", "missing", "failed", "hours", show_footer=True)
    told = status(every_run(), out, retry)
    for group in told:
        hours = f"{group.hours:.1f}" if not group.absent else f"needs {', '.join(group.absent)}"
        shown.add_row(group.name, *(str(group.counts[name]) for name in ("done", "stale", "missing", "failed")), hours)
    shown.columns[0].footer, shown.columns[-1].footer = "all", f"{sum(group.hours for group in told):.1f}"
    Console().print(shown)


@paper_app.command("table")
@one_sentence_errors
def render_tables(
    table: Annotated[str, typer.Option("--table", "-t", help="Tables, separated by commas, or all.")] = "all",
    out: Out = _RESULTS,
    format_: Annotated[str, typer.Option("--format", help="markdown or latex.")] = "markdown",
    extra: Own = None,
) -> None:
    """Print tables from records: ours next to the published values."""
    from manygp.paper import find_tables, read_records, render

    _load(extra)
    print_results(render(find_tables(table), list(read_records(_existing(out))), format_))


@paper_app.command("figures")
@one_sentence_errors
def draw(out: Out = _RESULTS, preset: Preset = "fast") -> None:
    """Draw the figures whose runs have saved predictions, into a subfolder of the records."""
    from manygp.paper.figures import draw_figures

    paths, missing = draw_figures(_existing(out), preset)
    for path in paths:
        remark(f"Wrote {path}.")
    for reason in missing:
        remark(f"Not drawn: {reason}.")


@paper_app.command("page")
@one_sentence_errors
def write_results(
    out: Out = Path("docs/results"),
    to: Annotated[Path, typer.Option("--to", help="The page to write.")] = Path("docs/results.md"),
) -> None:
    """Write the results page of the documentation from the records in a folder."""
    from manygp.paper import write_page

    write_page(_existing(out), to)
    remark(f"Wrote {to}.")


@paper_app.command("list")
@one_sentence_errors
def list_tables() -> None:
    """List tables, with the number of runs behind one seed of each."""
    from manygp.paper import TABLES, runs_of

    shown = Table("table", "title", "runs a seed")
    for name, table in TABLES.items():
        shown.add_row(name, table.title, str(len(runs_of([table], "fast", [0]))))
    Console().print(shown)


@data_app.command("list")
@one_sentence_errors
def list_data() -> None:
    """List the data sets, their files, and where these are."""
    from manygp.paper import DATASETS
    from manygp.paper.files import place

    shown = Table("data set", "file", "where", "what", show_lines=True)
    for dataset in DATASETS.values():
        files = "\n".join(file.name for file in dataset.files) or "none: generated"
        where = "\n".join(str(place(file) or "absent") for file in dataset.files) or "–"
        shown.add_row(dataset.name, files, where, dataset.note)
    Console().print(shown)


@data_app.command("fetch")
@one_sentence_errors
def fetch(names: Names = None) -> None:
    """Download the files of data sets that are not here yet into the cache."""
    from manygp.paper.files import download, known_checksum, place, record_checksum

    columns = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
    for file in _files(names):
        if (here := place(file)) is not None:
            remark(f"{file.name} is here: {here}.")
            continue
        if file.url is None and names is None:
            remark(f"{file.name} cannot be downloaded without an account; source: {file.source}.")
            continue
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            path = download(file, partial(_report, bar, bar.add_task(file.name, total=None)))
        first = known_checksum(file) is None
        remark(f"Fetched {path}.")
        if first:
            remark(
                f"No checksum of {file.name} is known; that of this copy holds from now on: {record_checksum(file)}."
            )


@data_app.command("verify")
@one_sentence_errors
def verify(names: Names = None) -> None:
    """Compare the files that are here with their checksums; exit code 2 if one is damaged."""
    from manygp.paper.files import state

    damaged = False
    for file in _files(names):
        found = state(file)
        damaged |= found == "damaged"
        print_results(f"{file.name}: {found}")
    if damaged:
        raise typer.Exit(BAD_INPUT)


def _load(extra: Path | None) -> None:
    """Run a file that registers more; what it defines travels to other processes by value."""
    if extra is not None:
        import runpy

        from manygp.errors import SettingError

        if not extra.is_file():
            raise SettingError(
                f"--with {extra} is no file; give a Python file that registers data sets, models or tables."
            )
        runpy.run_path(str(extra), run_name=extra.stem)


def _existing(folder: Path) -> Path:
    from manygp.errors import SettingError

    if not folder.is_dir():
        raise SettingError(f"--out {folder} is no folder of records; make some with `manygp paper run`.")
    return folder


def _report(bar: Progress, task: TaskID, arrived: int, total: int | None) -> None:
    bar.update(task, completed=arrived, total=total)


def _files(names: list[str] | None) -> "list[DataFile]":
    """The files of some data sets, each once."""
    from manygp.paper import DATASETS, find_dataset

    datasets = list(DATASETS.values()) if not names else [find_dataset(name) for name in names]
    return list({file.name: file for dataset in datasets for file in dataset.files}.values())
