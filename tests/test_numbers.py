"""Numbers that the pages quote of the paper's data sets are in the records, or say when they were measured."""

import re
from pathlib import Path

import pytest

from manygp.paper import TABLES, read_records
from manygp.paper.records import METRICS
from manygp.paper.rendering import summarise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
# Pages that are written from records, lists of other numbers, and what was so when a version came out.
WRITTEN = ("results.md", "constants.md", "changelog.md", "CHANGELOG.md")
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
NAMES = re.compile(r"\b(EEG|SARCOS|ERA5|ERSST|Visium)\b")
SCORE = re.compile(r"(?<![\d.])[-−]?\d+\.\d{2,4}(?![\d.])")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def quoted():
    """Paragraphs and points of lists that speak of a data set and give scores."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if page.name in WRITTEN or "gallery" in page.parts:
            continue
        for paragraph in re.split(r"\n\s*\n|\n(?=- )", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            if NAMES.search(paragraph) and SCORE.search(paragraph) and not DATE.search(paragraph):
                yield page, paragraph


@pytest.fixture(scope="module")
def known():
    """Every number of records, of means over their seeds, and of the paper, as it would be written."""
    groups: dict[str, list] = {}
    values: set[float] = set()
    for record in read_records(RESULTS):
        if "error" not in record:
            groups.setdefault(str({key: record[key] for key in ("dataset", "model", "preset", "settings")}), []).append(
                record
            )
            values |= {float(value) for value in record["metrics"].values() if value is not None}
    for group in groups.values():
        values |= {number for name in METRICS for number in _mean_and_spread(group, name)}
    values |= {
        number for table in TABLES.values() for row in table.rows for cell in row.published.values() for number in cell
    }
    return {f"{value:.{digits}f}" for value in values for digits in (2, 3, 4)}


def _mean_and_spread(group, name):
    told = summarise(group, name)
    return (told.mean, told.spread) if told.is_known else ()


@pytest.mark.skipif(not RESULTS.is_dir(), reason="the records are not here")
def test_scores_are_in_the_records_or_dated(known):
    unknown = [
        f"{page.relative_to(ROOT)}: {score} in {paragraph[:60]!r}"
        for page, paragraph in quoted()
        for score in SCORE.findall(paragraph)
        if score.replace("−", "-") not in known
    ]
    assert not unknown, "Take these from the records, or say when they were measured:\n" + "\n".join(unknown)
