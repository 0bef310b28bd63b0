"""Tables as text: ours beside the published values, in Markdown and HTML."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from manygp.paper.published import MSE, NLL, TIME, Value
from manygp.paper.records import Record
from manygp.paper.settings import PRESETS
from manygp.paper.summaries import Summary, matching, summarise
from manygp.paper.tables import PaperTable

__all__ = ["Sheet", "make_sheet", "to_html", "to_markdown"]

_HEADINGS = {MSE: "MSE", NLL: "NLL", TIME: "s/epoch"}
_NOTHING, _NOT_RUN, _FAILED = "–", "not run", "failed"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #444; }
"""


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

    Preset "fast" is always shown; "paper" where something was run with it.
    """
    presets = [p for p in PRESETS if p == "fast" or any(matching(records, row, p) for row in table.rows)]
    header = ["", *(f"{_HEADINGS.get(m, m)} {who}" for m in table.metrics for who in ("published", *_ours(presets)))]
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
    rows = []
    for row in table.rows:
        cells = [row.label]
        for metric in table.metrics:
            cells.append(_published(row.published.get(metric), table.digits(metric)))
            for preset in presets:
                summary = found[row.label, preset, metric]
                text = _own(summary, table.digits(metric))
                cells.append(f"**{text}**" if summary is best.get((row.dataset, preset, metric)) else text)
        rows.append(tuple(cells))
    errors = dict.fromkeys(f"{key[0]}: {value.error}" for key, value in found.items() if value.error)
    return Sheet(table.name, table.title, tuple(header), tuple(rows), tuple(f"Failed: {text}" for text in errors))


def to_markdown(sheet: Sheet, level: int = 2) -> str:
    """A sheet in Markdown, under a heading of some level."""
    lines = [f"{'#' * level} {sheet.title}", ""]
    lines.append("| " + " | ".join(cell or " " for cell in sheet.header) + " |")
    lines.append("|" + "---|" + "---:|" * (len(sheet.header) - 1))
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sheet.rows]
    if sheet.notes:
        lines += ["", *(f"- {note}" for note in sheet.notes)]
    return "\n".join(lines) + "\n"


def to_html(sheets: Sequence[Sheet], title: str) -> str:
    """Sheets as one page that needs nothing else."""
    parts = [_html_of(sheet) for sheet in sheets]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "</body>\n</html>\n"
    )


def _html_of(sheet: Sheet) -> str:
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in sheet.header)
    body = "\n".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in sheet.rows)
    notes = "".join(f"<li>{_inline(note)}</li>" for note in sheet.notes)
    return (
        f'<h2 id="{html.escape(sheet.name)}">{_inline(sheet.title)}</h2>\n<table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>\n" + (f"<ul>{notes}</ul>\n" if notes else "")
    )


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))


def _ours(presets: Sequence[str]) -> list[str]:
    return ["ours"] if len(presets) == 1 else [f"ours, {preset}" for preset in presets]


def _best(summaries: Sequence[Summary]) -> Summary | None:
    known = [summary for summary in summaries if summary.is_known]
    return min(known, key=lambda summary: summary.mean) if len(known) > 1 else None


def _published(value: Value | None, decimals: int) -> str:
    return _NOTHING if value is None else f"{value[0]:.{decimals}f} ± {value[1]:.{decimals}f}"


def _own(summary: Summary, decimals: int) -> str:
    """Mean ± standard deviation and in parentheses the number of seeds; one seed has no spread."""
    if not summary.has_run:
        return _NOT_RUN
    if summary.error is not None:
        return _FAILED
    if not summary.is_known:
        return _NOTHING
    spread = f" ± {summary.spread:.{decimals}f}" if summary.count > 1 else ""
    return f"{summary.mean:.{decimals}f}{spread} ({summary.count})"
