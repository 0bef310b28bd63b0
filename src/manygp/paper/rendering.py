"""Tables as text, in Markdown and LaTeX: what records say of each row, beside the published values."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manygp.errors import SettingError
from manygp.paper.campaign import absent_files, every_run, state_of
from manygp.paper.datasets import DATASETS
from manygp.paper.published import MINUTES, MSE, NLL, TIME, Value
from manygp.paper.records import Record, Run
from manygp.paper.settings import PRESETS
from manygp.paper.tables import PaperTable, Row

_HEADINGS = {MSE: "MSE", NLL: "NLL", TIME: "s/epoch"}
NOTHING, _NOT_RUN, _FAILED, STALE = "–", "not run", "failed", "†"
_LATEX = {
    "±": r"$\pm$",
    "–": "--",
    "†": r"$^\dagger$",
    "×": r"$\times$",
    "%": r"\%",
    "&": r"\&",
    "_": r"\_",
    "#": r"\#",
}


@dataclass(frozen=True)
class Summary:
    """A metric over the seeds of a run: mean and standard deviation of so many values, NaN if there is none.

    `error` is what the failed runs said, if some failed and none succeeded; stale is what has a record that was made
    with other sources of the model.
    """

    mean: float
    spread: float
    count: int
    error: str | None
    has_run: bool
    is_stale: bool

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return self.count > 0


def matching(records: Sequence[Record], row: Row, preset: str) -> list[Record]:
    """The records of a row, one for each seed."""
    run = row.run(preset, 0)
    return [record for record in records if run.matches(record)]


def summarise(records: Sequence[Record], metric: str) -> Summary:
    """A metric over records of the same run with different seeds."""
    finished = [record for record in records if "error" not in record]
    values = [value for record in finished if (value := _value(record, metric)) is not None]
    mean = float(np.mean(values)) if values else float("nan")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    errors = [record["error"] for record in records if "error" in record]
    is_stale = any(state_of(Run.of(record), record) == "stale" for record in records)
    return Summary(mean, spread, len(values), errors[0] if errors and not finished else None, bool(records), is_stale)


def _value(record: Record, metric: str) -> float | None:
    if metric in (TIME, MINUTES):
        # On a busy machine the clock tells of the others; the work of one thread is what it is.
        seconds = float(record["cpu_seconds"] if record["cpu_seconds"] is not None else record["train_seconds"])
        if metric == MINUTES:
            return seconds / 60.0
        # A model that is solved rather than trained has no epochs to divide by.
        return seconds / record["epochs"] if record["epochs"] else None
    value = record["metrics"][metric]
    # JSON has no infinity; a record writes it as text.
    return None if value is None else float(value)


@dataclass(frozen=True)
class Sheet:
    """A table of text under its title, with notes below; two asterisks on both sides make text bold."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def make_sheet(table: PaperTable, records: Sequence[Record]) -> Sheet:
    """A table of the paper with our values beside the published ones.

    Preset "fast" is always shown; "paper" where something was run with it. Rows of which nothing is known, published or
    ours, are named below instead, with the reason.
    """
    presets = [p for p in PRESETS if p == "fast" or any(matching(records, row, p) for row in table.rows)]
    ours = ["ours"] if len(presets) == 1 else [f"ours, {preset}" for preset in presets]
    header = ["", *(f"{_HEADINGS.get(m, m)} {who}" for m in table.metrics for who in ("published", *ours))]
    found = {
        (row.label, preset, metric): summarise(matching(records, row, preset), metric)
        for row in table.rows
        for preset in presets
        for metric in table.metrics
    }
    best = {
        (dataset, preset, metric): _best(
            [found[row.label, preset, metric] for row in table.rows if row.dataset == dataset]
        )
        for dataset in {row.dataset for row in table.rows}
        for preset in presets
        for metric in table.metrics
        if metric != TIME
    }
    has_run = {row.label: found[row.label, "fast", table.metrics[0]].has_run for row in table.rows}
    rows = []
    for row in table.rows:
        if not row.published and not has_run[row.label]:
            continue
        cells = [row.label]
        for metric in table.metrics:
            cells.append(_published(row.published.get(metric), table.digits(metric)))
            for preset in presets:
                summary = found[row.label, preset, metric]
                text = own_value(summary, table.digits(metric)) if summary.has_run or preset == "fast" else NOTHING
                cells.append(f"**{text}**" if summary is best.get((row.dataset, preset, metric)) else text)
        rows.append(tuple(cells))
    errors = dict.fromkeys(f"Failed: {key[0]}: {value.error}" for key, value in found.items() if value.error)
    notes = (*errors, *_not_run([row for row in table.rows if not has_run[row.label]]), *_beside(table, records))
    return Sheet(table.name, table.title, tuple(header), tuple(rows), notes)


def to_markdown(sheet: Sheet, level: int = 2) -> str:
    """A sheet in Markdown, under a heading of some level."""
    lines = [f"{'#' * level} {sheet.title}", ""]
    lines.append("| " + " | ".join(cell or " " for cell in sheet.header) + " |")
    lines.append("|" + "---|" + "---:|" * (len(sheet.header) - 1))
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sheet.rows]
    if sheet.notes:
        lines += ["", *(f"- {note}" for note in sheet.notes)]
    return "\n".join(lines) + "\n"


def to_latex(sheet: Sheet) -> str:
    """A sheet as a LaTeX table; needs the package booktabs."""
    head, *body = (" & ".join(map(_latex, cells)) + r" \\" for cells in (sheet.header, *sheet.rows))
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(sheet.title)}}}", rf"\label{{tab:{sheet.name}}}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * (len(sheet.header) - 1)}}}", r"\toprule", head, r"\midrule", *body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


FORMATS = {"markdown": to_markdown, "latex": to_latex}


def render(tables: Sequence[PaperTable], records: Sequence[Record], format_: str) -> str:
    """Tables as one text in a format."""
    if format_ not in FORMATS:
        raise SettingError(f"--format was given {format_!r}; choose one of: {', '.join(FORMATS)}.")
    return "\n".join(FORMATS[format_](make_sheet(table, records)) for table in tables)


def own_value(summary: Summary, decimals: int) -> str:
    """Mean ± standard deviation and in parentheses the number of seeds; one seed has no spread."""
    if not summary.has_run:
        return _NOT_RUN
    if summary.error is not None:
        return _FAILED
    if not summary.is_known:
        return NOTHING
    spread = f" ± {summary.spread:.{decimals}f}" if summary.count > 1 else ""
    return f"{summary.mean:.{decimals}f}{spread} ({summary.count}){STALE if summary.is_stale else ''}"


def _latex(text: str) -> str:
    special = "".join(_LATEX.get(letter, letter) for letter in text)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", special)


def _best(summaries: Sequence[Summary]) -> Summary | None:
    known = [summary for summary in summaries if summary.is_known]
    return min(known, key=lambda summary: summary.mean) if len(known) > 1 else None


def _published(value: Value | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value[0]:.{decimals}f} ± {value[1]:.{decimals}f}"


def _not_run(rows: Sequence[Row]) -> list[str]:
    """Why rows have no number, a line for each data set."""
    planned, said = {run.key for run in every_run()}, []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = [row for row in rows if row.dataset == dataset]
        absent = absent_files(dataset) if dataset in DATASETS else []
        if absent:
            said.append(f"Not run: {DATASETS[dataset].title}, for {', '.join(absent)} could not be fetched here.")
        elif any(row.run("fast", 0).key in planned for row in own):
            said.append(f"Not run, for the campaign has not come to them: {', '.join(row.label for row in own)}.")
    return said


def _beside(table: PaperTable, records: Sequence[Record]) -> list[str]:
    """The rows to hold a table against, a line for each data set."""
    said = []
    for dataset in dict.fromkeys(row.dataset for row in table.beside):
        known = []
        for row in (row for row in table.beside if row.dataset == dataset):
            told = {metric: summarise(matching(records, row, "fast"), metric) for metric in table.metrics}
            values = [
                f"{value.mean:.{table.digits(metric)}f}{STALE if value.is_stale else ''}"
                for metric, value in told.items()
                if value.is_known
            ]
            known += [f"{row.label} {' / '.join(values)}"] if values else []
        if known:
            said.append(f"{DATASETS[dataset].title} otherwise (MSE / NLL): {'; '.join(known)}.")
    return said
