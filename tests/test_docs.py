"""The pages agree with the package: links lead somewhere, public names are listed, snippets run."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LISTED = ("", ".data", ".likelihoods", ".paper", ".plots", ".demo", ".kernels", ".embeddings", ".training")


def anchors(page):
    """Headings as the links that lead to them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    for name in re.findall(r"`((?:tests|docs|src|benchmarks|examples)/[\w./-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("room", LISTED)
def test_public_names_are_listed(room):
    if room == ".plots":
        pytest.importorskip("matplotlib")
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    exported = importlib.import_module(f"manygp{room}").__all__
    assert [name for name in exported if not re.search(rf"`{name}[`(]", page)] == []


def test_every_example_is_linked_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in (ROOT / "examples").glob("*.py") if f"(examples/{path.name})" not in readme] == []


def test_the_ten_lines_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(snippet.replace("TLVMOGP()", "TLVMOGP(epochs=2)"), names)
    assert names["mean"].shape == names["std"].shape == (50, 40)
    assert names["lower"].shape == names["upper"].shape == (50, 2)
    assert (tmp_path / "sines").is_dir()
