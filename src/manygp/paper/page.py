"""The results page: tables, what they show, and where and when they were made."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from manygp.paper.datasets import DATASETS
from manygp.paper.published import MSE, NLL
from manygp.paper.records import Record, read_records
from manygp.paper.rendering import make_sheet, to_html, to_markdown
from manygp.paper.settings import PRESETS
from manygp.paper.summaries import Summary, matching, summarise
from manygp.paper.tables import TABLES, PaperTable, Row

__all__ = ["findings", "write_page", "write_tables"]

_FLAGSHIP = "tlvmogp"
_WORDS = {MSE: "MSE", NLL: "NLL"}
_INTRODUCTION = """\
# Results

Every table of the paper, from records of runs in [`docs/results`](results). Each cell of ours is the mean ± standard
deviation over seeds with their number in parentheses, beside the published value (mean ± standard deviation of ten
trials). Bold is the best of ours on a data set. Lower is better everywhere. "not run" means just that.

Preset "fast" takes the published sizes (latent dimensions, inducing points, blocks, batches) and leaves the rest to the
library; preset "paper" follows the published procedure. The low-rank factorisation is a masked matrix completion with
no model behind it: no error bars, no new inputs, and a hard rival in MSE. SARCOS as published pools two files that
share 4,446 rows; the rows "without copied rows" use the first file alone. `ersst` and `visium-dlpfc` stand in for data
that cannot be downloaded without an account or that were not at hand; their numbers are not comparable with published
ones.

Make the page again with

    manygp paper run --table all --seeds 0-2 --out docs/results
    manygp paper page --out docs/results
"""


def write_tables(folder: Path, tables: Sequence[PaperTable]) -> list[Path]:
    """Write tables from the records of a folder into it, as Markdown and HTML."""
    records = list(read_records(folder))
    sheets = [make_sheet(table, records) for table in tables]
    markdown, page = folder / "tables.md", folder / "tables.html"
    markdown.write_text("\n".join(to_markdown(sheet) for sheet in sheets))
    page.write_text(to_html(sheets, "Tables of the paper"))
    return [markdown, page]


def write_page(folder: Path, path: Path) -> None:
    """Write the results page from the records of a folder.

    Parameters
    ----------
    folder
        Where the records are, and remarks written by hand in `notes/<table>.md`.
    path
        The page.
    """
    records = list(read_records(folder))
    parts = [_INTRODUCTION, _circumstances(records)]
    for table in TABLES.values():
        parts.append(to_markdown(make_sheet(table, records)))
        if said := [text for preset in PRESETS for text in findings(table, records, preset)]:
            parts.append("\n".join(f"- {sentence}" for sentence in said) + "\n")
        remarks = folder / "notes" / f"{table.name}.md"
        if remarks.is_file():
            parts.append(remarks.read_text().rstrip() + "\n")
        figures = sorted((folder / "figures").glob(f"{table.name}-*.png"))
        parts += [f"![{_caption(figure)}]({folder.name}/figures/{figure.name})\n" for figure in figures]
    path.write_text("\n".join(parts))


def findings(table: PaperTable, records: Sequence[Record], preset: str = "fast") -> list[str]:
    """Sentences on whether T-LVMOGP reaches the published values, and on rivals that beat it."""
    said = []
    which = "" if preset == "fast" else f" (preset {preset})"
    for dataset in dict.fromkeys(row.dataset for row in table.rows):
        rows = [row for row in table.rows if row.dataset == dataset]
        mains = [row for row in rows if row.model == _FLAGSHIP and not row.changes]
        for metric in (name for name in table.metrics if name in _WORDS):
            for main in mains:
                ours = summarise(matching(records, main, preset), metric)
                if ours.is_known:
                    said += _compared(table, main, metric, ours, which)
                    said += _beaten(
                        table, dataset, [row for row in rows if row is not main], metric, ours, records, preset
                    )
    return said


def _compared(table: PaperTable, row: Row, metric: str, ours: Summary, which: str) -> list[str]:
    """How a summary stands to the published value."""
    if metric not in row.published:
        return []
    mean, spread = row.published[metric]
    # What the paper printed is rounded; so is what is compared with it.
    digits = table.digits(metric)
    value = round(ours.mean, digits)
    if value <= mean:
        verdict = "at least as good as"
    elif value <= mean + 2 * spread:
        verdict = "within two published standard deviations of"
    else:
        verdict = "**worse than**"
    text = f"{ours.mean:.{digits}f} is {verdict} the published {mean:.{digits}f}"
    return [f"{_title(row.dataset)}{which}: T-LVMOGP's {_WORDS[metric]} of {text}."]


def _beaten(
    table: PaperTable,
    dataset: str,
    others: Sequence[Row],
    metric: str,
    ours: Summary,
    records: Sequence[Record],
    preset: str,
) -> list[str]:
    """Which rivals have lower values."""
    better = []
    for row in others:
        theirs = summarise(matching(records, row, preset), metric)
        if row.model != _FLAGSHIP and theirs.is_known and theirs.mean < ours.mean:
            better.append(f"{row.label} ({theirs.mean:.{table.digits(metric)}f})")
    if not better:
        return []
    word, own = _WORDS[metric], f"{ours.mean:.{table.digits(metric)}f}"
    which = "" if preset == "fast" else f" (preset {preset})"
    return [f"{_title(dataset)}{which}: **lower {word} than T-LVMOGP** ({own}): {', '.join(better)}."]


def _circumstances(records: Sequence[Record]) -> str:
    """Machines, dates, versions and commits."""
    if not records:
        return "There are no records yet.\n"
    machines = Counter(
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' if m['threads'] != 1 else ''} a run, {m['device']}"
        for m in (record["machine"] for record in records)
    )
    dates = sorted(record["machine"]["date"][:10] for record in records)
    commits = Counter(str(record["commit"]) for record in records)
    versions = records[-1]["versions"]
    failed = sum("error" in record for record in records)
    count = f"{len(records)} run{'s' if len(records) > 1 else ''}" + (f", of which {failed} failed" if failed else "")
    lines = [
        f"{count}, {dates[0]} to {dates[-1]}, on "
        + "; ".join(f"{name} ({count})" for name, count in machines.items())
        + ". Times were taken on a machine that did other work too: they tell orders of magnitude.",
        "",
        f"Versions: {', '.join(f'{name} {version}' for name, version in versions.items())}. "
        f"Commits: {', '.join(f'{name} ({count})' for name, count in commits.items())}.",
    ]
    return "\n".join(lines) + "\n"


def _title(dataset: str) -> str:
    return DATASETS[dataset].title if dataset in DATASETS else dataset


def _caption(figure: Path) -> str:
    return figure.stem.replace("-", " ")
