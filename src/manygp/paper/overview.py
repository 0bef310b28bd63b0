"""Where T-LVMOGP stands: every data set in one table, and on how many of them it is first."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from manygp.baselines import BASELINES
from manygp.paper.campaign import FLAGSHIP
from manygp.paper.datasets import DATASETS
from manygp.paper.models import title_of
from manygp.paper.published import COVERAGE, MINUTES, MSE, NLL
from manygp.paper.records import Record
from manygp.paper.rendering import NOTHING, Sheet, own_value, to_markdown
from manygp.paper.summaries import Summary, matching, summarise
from manygp.paper.tables import AUTOMATIC, PUBLISHED_SIZES, TABLES, PaperTable, Row

__all__ = ["overview"]

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
_HEADER = (
    "",
    "",
    "published best",
    "published T-LVMOGP",
    "published sizes",
    "automatic",
    "best rival",
    "best plain",
    "",
)
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
        return next(
            self.summary(row, metric)
            for row in self.rows
            if row.model == FLAGSHIP and (row.changes == {} if label == PUBLISHED_SIZES else _is_automatic(row))
        )

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
    table = to_markdown(Sheet("overview", "At a glance", _HEADER, rows))
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


def _is_automatic(row: Row) -> bool:
    return row.changes.get("latent_dim") == "auto" == row.changes.get("num_neighbors")
