"""The page of constants has every number that steers, with its value and what it steers."""

import re
from pathlib import Path

from benchmarks.constants import PAGE, constants

ROOT = Path(__file__).parents[1]


def test_every_steering_constant_is_on_the_page():
    """`python -m benchmarks.constants` writes the page anew."""
    sections = dict(
        re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    )
    found = list(constants())
    missing = [c.key for c in found if f"| `{c.name}` | `{c.shown}` |" not in sections.get(c.module, "")]
    assert missing == []
    assert [c.key for c in found if not c.meaning] == [], "a comment above a constant says what it steers"
    assert len(found) > 100
