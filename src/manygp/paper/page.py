"""The results page: tables, what they show, and where and when they were made."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from manygp.paper.campaign import FLAGSHIP, state_of
from manygp.paper.datasets import DATASETS
from manygp.paper.overview import overview
from manygp.paper.published import MSE, NLL
from manygp.paper.records import Record, Run, read_records
from manygp.paper.rendering import STALE, make_sheet, to_markdown
from manygp.paper.settings import PRESETS
from manygp.paper.summaries import Summary, matching, summarise
from manygp.paper.tables import TABLES, PaperTable, Row

__all__ = ["findings", "write_page"]

_WORDS = {MSE: "MSE", NLL: "NLL"}
_INTRODUCTION = """\
# Results

Every table of the paper, from records of runs in [`docs/results`](results). Each cell of ours is the mean ± standard
deviation over seeds with their number in parentheses, beside the published value (mean ± standard deviation of ten
trials). Bold is the best of ours on a data set. Lower is better everywhere.
"""
_EXPLANATION = """\
Preset "fast" takes the published sizes (latent dimensions, inducing points, blocks, batches) and leaves the rest to the
library; preset "paper" follows the published procedure. "T-LVMOGP" is the paper's model, inducing points alone; "with
neighbours" conditions every cell on observed cells around it too; "automatic" is what `TLVMOGP()` does by itself. Plain
methods are those of `manygp.baselines`, with each output's errors on cells held out as their error bars. SARCOS as
published pools two files that share 4,446 rows; the rows "without copied rows" use the first file alone. `ersst` and
`visium-dlpfc` stand in for data that were not at hand; their numbers are not comparable with published ones.

Make the page again with

    manygp paper run --jobs 2 --hours 12 --out docs/results
    manygp paper figures --out docs/results
    manygp paper page --out docs/results
"""


def write_page(folder: Path, path: Path) -> None:
    """Write the results page from the records of a folder.

    Parameters
    ----------
    folder
        Where the records are, and what was written by hand: remarks in `notes/<table>.md`, and in `notes/behind.json`
        why a data set was lost.
    path
        The page.
    """
    records = list(read_records(folder))
    at_a_glance = overview(records, folder / "notes" / "behind.json")
    parts = [_INTRODUCTION, at_a_glance, _EXPLANATION, _circumstances(records)]
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
    """Sentences on whether T-LVMOGP with the published sizes reaches the published values."""
    which = "" if preset == "fast" else f" (preset {preset})"
    return [
        sentence
        for row in table.rows
        if row.model == FLAGSHIP and not row.changes
        for metric in table.metrics
        if metric in _WORDS and metric in row.published
        if (ours := summarise(matching(records, row, preset), metric)).is_known
        for sentence in [_compared(table, row, metric, ours, which)]
    ]


def _compared(table: PaperTable, row: Row, metric: str, ours: Summary, which: str) -> str:
    """How a summary stands to the published value."""
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
    return f"{DATASETS[row.dataset].title}{which}: T-LVMOGP's {_WORDS[metric]} of {text}."


def _circumstances(records: Sequence[Record]) -> str:
    """Machines, dates, versions, commits, and how many records are of the sources at hand."""
    if not records:
        return "There are no records yet.\n"
    machines = Counter(
        f"{m['cpu']}, {m['cores']} cores, {m['threads']} thread{'s' if m['threads'] != 1 else ''} a run, {m['device']}"
        for m in (record["machine"] for record in records)
    )
    dates = sorted(record["machine"]["date"][:10] for record in records)
    failed = sum("error" in record for record in records)
    count = f"{len(records)} run{'s' if len(records) > 1 else ''}" + (f", of which {failed} failed" if failed else "")
    old = [record for record in records if state_of(Run.of(record), record) == "stale"]
    fresh = f"All are of the sources of the models in this commit: {_commits(records)}."
    if old:
        fresh = (
            f"{len(records) - len(old)} are of the sources of their models in this commit"
            f"{': ' + _commits([r for r in records if r not in old]) if len(old) < len(records) else ''}. "
            f"{len(old)}, marked {STALE}, were made with others: {_commits(old)}."
        )
    lines = [
        f"{count}, {dates[0]} to {dates[-1]}, on {'; '.join(f'{name} ({n})' for name, n in machines.items())}. Times "
        "are CPU time of one thread, but in records made before 2026-11-18 19:00 those of a clock on a busy machine.",
        "",
        f"{fresh} Versions: {', '.join(f'{name} {version}' for name, version in records[-1]['versions'].items())}.",
    ]
    return "\n".join(lines) + "\n"


def _commits(records: Sequence[Record]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in Counter(str(record["commit"]) for record in records).items())


def _caption(figure: Path) -> str:
    return figure.stem.replace("-", " ")
