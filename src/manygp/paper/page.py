"""The results page: every data set in one table, tables, what they show, and where and when they were made."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from manygp.baselines import BASELINES
from manygp.paper.campaign import FLAGSHIP, state_of
from manygp.paper.datasets import DATASETS
from manygp.paper.models import title_of
from manygp.paper.published import COVERAGE, MINUTES, MSE, NLL
from manygp.paper.records import Record, Run, read_records
from manygp.paper.rendering import (
    NOTHING,
    STALE,
    Sheet,
    Summary,
    make_sheet,
    matching,
    own_value,
    summarise,
    to_markdown,
)
from manygp.paper.settings import PRESETS
from manygp.paper.tables import AUTOMATIC, PUBLISHED_SIZES, TABLES, PaperTable, Row

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
        parts += [f"![{figure.stem.replace('-', ' ')}]({folder.name}/figures/{figure.name})\n" for figure in figures]
    path.write_text("\n".join(parts))


def findings(table: PaperTable, records: Sequence[Record], preset: str = "fast") -> list[str]:
    """Sentences on whether T-LVMOGP with the published sizes reaches the published values."""
    which = "" if preset == "fast" else f" (preset {preset})"
    return [
        sentence
        for row in table.rows
        if row.model == FLAGSHIP and not row.changes
        for metric in table.metrics
        if metric in (MSE, NLL) and metric in row.published
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


# Tables of models, by the data sets in them.
_TABLES = {
    "eeg": ("eeg",),
    "sarcos": ("sarcos", "sarcos-clean", "sarcos-published"),
    "era5-random": ("era5-random",),
    "era5-block": ("era5-block",),
    "copernicus": ("copernicus", "ersst"),
    "transcriptomics": ("prostate", "visium-dlpfc"),
}
_WORDS = {MSE: "MSE", NLL: "NLL", COVERAGE: "90% coverage", MINUTES: "minutes"}
_DIGITS = {COVERAGE: 3, MINUTES: 1}
_COLUMNS = ("published best", "published T-LVMOGP", "published sizes", "automatic", "best rival", "best plain")
_HELD = (0.88, 0.92)
_BEHIND = "**behind**"


@dataclass(frozen=True)
class _Standing:
    """A data set: the rows of its table, and what the records say of them."""

    table: PaperTable
    dataset: str
    records: Sequence[Record]

    @cached_property
    def rows(self) -> list[Row]:
        return [row for row in self.table.rows if row.dataset == self.dataset]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What there is to tell: nothing but scores was published."""
        has_run = any(matching(self.records, row, "fast") for row in self.rows)
        return (MSE, NLL, COVERAGE, MINUTES) if has_run else (MSE, NLL)

    def summary(self, row: Row, metric: str) -> Summary:
        return summarise(matching(self.records, row, "fast"), metric)

    def of(self, label: str, metric: str) -> Summary:
        """T-LVMOGP with the published sizes, or as it is by default."""
        automatic = {"latent_dim": "auto", "num_neighbors": "auto"}.items()
        own = (row for row in self.rows if row.model == FLAGSHIP)
        is_meant = (
            (lambda row: not row.changes) if label == PUBLISHED_SIZES else lambda row: automatic <= row.changes.items()
        )
        return self.summary(next(filter(is_meant, own)), metric)

    def best(self, plain: bool, metric: str) -> tuple[str, Summary] | None:
        """The other with the least of a metric, by name; coverage and minutes are those of the best NLL."""
        rows = [row for row in self.rows if row.model != FLAGSHIP and (row.model in BASELINES) == plain]
        order = (metric,) if metric in (MSE, NLL) else (NLL, MSE)
        for key in order:
            known = [row for row in rows if self.summary(row, key).is_known]
            if known:
                best = min(known, key=lambda row: self.summary(row, key).mean)
                return title_of(best.model), self.summary(best, metric)
        return None

    def is_behind(self, metric: str) -> bool | None:
        """Whether another is ahead by more than a standard deviation, the larger of both; None without a record."""
        ours = self.of(AUTOMATIC, metric)
        rivals = [found for plain in (False, True) if (found := self.best(plain, metric)) is not None]
        known = [summary for _, summary in rivals if summary.is_known]
        if not ours.is_known or not known:
            return None
        first = min(known, key=lambda summary: summary.mean)
        return ours.mean > first.mean + max(ours.spread, first.spread)

    def published(self, metric: str) -> tuple[str, str]:
        """The best published value with its model, and that of T-LVMOGP."""
        cells = {row.model: row.published[metric] for row in self.rows if metric in row.published}
        if not cells:
            return NOTHING, NOTHING
        best = min(cells, key=lambda model: cells[model][0])
        texts = {model: f"{mean:.{self.digits(metric)}f}" for model, (mean, _) in cells.items()}
        return f"{texts[best]} {title_of(best)}", texts[FLAGSHIP]

    def digits(self, metric: str) -> int:
        return _DIGITS.get(metric) or self.table.digits(metric)


def overview(records: Sequence[Record], reasons: Path) -> str:
    """One table over all data sets, a count, and where we are behind, with the reasons that a JSON file has for it."""
    known = json.loads(reasons.read_text()) if reasons.is_file() else {}
    standings = [_Standing(TABLES[table], name, records) for table, names in _TABLES.items() for name in names]
    standings = [one for one in standings if any(row.published or matching(records, row, "fast") for row in one.rows)]
    rows = tuple(_line(one, metric) for one in standings for metric in one.metrics)
    behind = [(one, metric) for one in standings for metric in (MSE, NLL) if one.is_behind(metric)]
    said = [
        f"- {DATASETS[one.dataset].title}, {_WORDS[metric]}: behind {_ahead(one, metric)}. "
        + known.get(one.dataset, {}).get(metric, "Why was not looked into.")
        for one, metric in behind
    ]
    table = to_markdown(Sheet("overview", "At a glance", ("", "", *_COLUMNS, ""), rows))
    return "\n".join([table, *said, *([""] if said else []), _count(standings), ""])


def _line(one: _Standing, metric: str) -> tuple[str, ...]:
    digits = one.digits(metric)
    cells = [own_value(one.of(label, metric), digits) for label in (PUBLISHED_SIZES, AUTOMATIC)]
    for plain in (False, True):
        found = one.best(plain, metric)
        cells.append(f"{own_value(found[1], digits)} {found[0]}" if found and found[1].is_known else NOTHING)
    title = DATASETS[one.dataset].title if metric == MSE else ""
    is_behind = metric in (MSE, NLL) and one.is_behind(metric)
    return (title, _WORDS[metric], *one.published(metric), *cells, _BEHIND if is_behind else "")


def _ahead(one: _Standing, metric: str) -> str:
    found = [best for plain in (False, True) if (best := one.best(plain, metric)) is not None and best[1].is_known]
    name, summary = min(found, key=lambda best: best[1].mean)
    digits = one.digits(metric)
    return f"{name} ({one.of(AUTOMATIC, metric).mean:.{digits}f} against {summary.mean:.{digits}f})"


def _count(standings: Sequence[_Standing]) -> str:
    """On how many data sets T-LVMOGP is first, and how many of its intervals hold what they say."""
    parts = []
    for metric in (MSE, NLL):
        judged = [one.is_behind(metric) for one in standings]
        parts.append(f"in {_WORDS[metric]} on {judged.count(False)} of {len(judged) - judged.count(None)} data sets")
    coverages = [summary.mean for one in standings if (summary := one.of(AUTOMATIC, COVERAGE)).is_known]
    low, high = _HELD
    held = sum(low <= coverage <= high for coverage in coverages)
    return (
        "T-LVMOGP with sizes of its own choice is first, or within one standard deviation of first, "
        f"{' and '.join(parts)} with records. Its 90% intervals hold {low:.0%} to {high:.0%} of the cells held "
        f"out on {held} of {len(coverages)}."
    )
