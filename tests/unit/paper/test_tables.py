"""Tables and the results page: published values, ours beside them, and what is said of them."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from manygp.errors import SettingError
from manygp.estimators import ESTIMATORS
from manygp.paper import (
    DATASETS,
    TABLES,
    PaperTable,
    Row,
    find_tables,
    findings,
    runs_of,
    settings_for,
    write_page,
    write_tables,
)
from manygp.paper.published import MSE, NLL, TIME
from manygp.paper.records import KEYS, METRICS, plain, write_record
from manygp.paper.rendering import make_sheet, to_html, to_markdown

# Cells with a published value, as counted in the paper.
PUBLISHED_CELLS = {
    "eeg": 14,
    "eeg-sn": 6,
    "sarcos": 15,
    "sarcos-sn": 6,
    "era5-random": 21,
    "era5-random-sn": 6,
    "era5-block": 21,
    "era5-block-sn": 6,
    "copernicus": 12,
    "copernicus-sn": 8,
    "transcriptomics": 12,
    "ablation-sn-nll": 10,
    "ablation-sn-mse": 10,
    "ablation-nn-nll": 10,
    "ablation-nn-mse": 10,
    "tighter-bound-nll": 6,
    "tighter-bound-mse": 6,
    "sarcos-latent-dim": 10,
    "sarcos-num-inducing": 10,
}


def record(row: Row, seed: int, preset: str = "fast", **values: Any) -> dict[str, Any]:
    """A record as a run of this row would leave it."""
    run = row.run(preset, seed)
    machine = {"cpu": "a chip", "cores": 2, "threads": 1, "device": "cpu", "date": "2026-01-02 03:04"}
    metrics = dict.fromkeys(METRICS) | {name: value for name, value in values.items() if name in METRICS}
    told = {"dataset": run.dataset, "model": run.model, "preset": preset, "seed": seed, "settings": plain(run.settings)}
    told |= {"metrics": metrics, "train_seconds": 10.0, "epochs": 4, "versions": {"manygp": "0"}, "machine": machine}
    error = {"error": values["error"]} if "error" in values else {}
    return dict.fromkeys(KEYS) | told | error


@pytest.fixture
def table() -> PaperTable:
    rows = (
        Row("T-LVMOGP", "eeg", "tlvmogp", {}, {MSE: (0.2, 0.05), NLL: (-1.0, 0.1), TIME: (3.0, 0.0)}),
        Row("SV-LMC", "eeg", "sv-lmc", {}, {MSE: (0.3, 0.01)}),
        Row("SGPRN", "eeg", "sgprn", {}, {MSE: (0.5, 0.01)}),
        Row("OILMM", "eeg", "oilmm", {}, {MSE: (0.6, 0.01)}),
        Row("low-rank factorisation", "eeg", "factorisation"),
    )
    return PaperTable("some", "Some", (MSE, NLL, TIME), rows)


@pytest.fixture
def records(table: PaperTable) -> list[dict[str, Any]]:
    ours, linear, broken, _, plain = table.rows
    return [
        record(ours, 0, test_mse=0.1, test_nll=-0.7),
        record(ours, 1, test_mse=0.3, test_nll=-0.7),
        record(linear, 0, test_mse=0.4, test_nll=-0.8),
        record(broken, 0, error="ValueError: too | large"),
        record(plain, 0, test_mse=0.15),
    ]


def test_every_published_cell_is_there() -> None:
    counts = {
        name: sum(len(row.published) for row in table.rows) for name, table in TABLES.items() if name in PUBLISHED_CELLS
    }
    assert counts == PUBLISHED_CELLS
    for name in PUBLISHED_CELLS:
        for row in TABLES[name].rows:
            assert set(row.published) <= set(TABLES[name].metrics)


def test_the_plain_rival_stands_in_every_table_it_can_fill() -> None:
    for name in PUBLISHED_CELLS:
        datasets = {row.dataset for row in TABLES[name].rows} - {"copernicus", "ersst"}
        rivals = {row.dataset for row in TABLES[name].rows if row.model == "factorisation"}
        assert rivals == datasets


def test_labels_of_a_table_differ() -> None:
    for table in TABLES.values():
        labels = [row.label for row in table.rows]
        assert len(labels) == len(set(labels))


def test_settings_are_the_published_ones() -> None:
    assert settings_for("eeg", "gs-lvmogp", "fast")["num_inducing_inputs"] == 50
    assert settings_for("sarcos-clean", "tlvmogp", "paper")["spectral_bound"] == 1.0
    assert settings_for("era5-block", "sv-lmc", "fast") == {"num_latents": 100, "num_inducing": 10}
    assert settings_for("prostate", "tlvmogp", "paper")["epochs"] == 300
    assert settings_for("waves", "unknown", "paper") == {}
    (row,) = (row for row in TABLES["eeg-sn"].rows if row.label == "0.005")
    (main,) = (row for row in TABLES["eeg"].rows if row.label == "T-LVMOGP")
    # The bound of that row is the published one, so with the published procedure it is the same run.
    assert row.run("paper", 0).key == main.run("paper", 0).key


def test_ours_stands_beside_the_published_value(table: PaperTable, records: list[dict[str, Any]]) -> None:
    sheet = make_sheet(table, records)
    assert sheet.header == ("", *(f"{m} {who}" for m in ("MSE", "NLL", "s/epoch") for who in ("published", "ours")))
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["T-LVMOGP"][:4] == ("0.200 ± 0.050", "0.200 ± 0.141 (2)", "-1.000 ± 0.100", "-0.700 ± 0.000 (2)")
    assert rows["T-LVMOGP"][4:] == ("3.000 ± 0.000", "2.500 ± 0.000 (2)")
    assert rows["SV-LMC"][:4] == ("0.300 ± 0.010", "0.400 (1)", "–", "**-0.800 (1)**")
    assert rows["SGPRN"][1] == "failed"
    assert rows["OILMM"][1] == "not run"
    assert rows["low-rank factorisation"][:4] == ("–", "**0.150 (1)**", "–", "–")
    assert sheet.notes == ("Failed: SGPRN: ValueError: too | large",)


def test_the_paper_preset_has_columns_where_it_was_run(table: PaperTable, records: list[dict[str, Any]]) -> None:
    more = [*records, record(table.rows[0], 0, "paper", test_mse=0.19, test_nll=-1.0)]
    sheet = make_sheet(table, more)
    assert sheet.header[1:4] == ("MSE published", "MSE ours, fast", "MSE ours, paper")
    assert sheet.rows[0][3] == "0.190 (1)"
    assert sheet.rows[1][3] == "not run"


def test_markdown_and_html_hold_the_same_cells(table: PaperTable, records: list[dict[str, Any]]) -> None:
    sheet = make_sheet(table, records)
    lines = to_markdown(sheet).splitlines()
    assert lines[0] == "## Some"
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {len(sheet.header) + 1}
    page = to_html([sheet], "A & B")
    assert "<title>A &amp; B</title>" in page
    assert "<td><b>0.150 (1)</b></td>" in page
    assert len(re.findall("<td>", page)) == len(sheet.rows) * len(sheet.header)


def test_findings_are_plain(table: PaperTable, records: list[dict[str, Any]]) -> None:
    assert findings(table, records) == [
        "EEG: T-LVMOGP's MSE of 0.200 is at least as good as the published 0.200.",
        "EEG: **lower MSE than T-LVMOGP** (0.200): low-rank factorisation (0.150).",
        "EEG: T-LVMOGP's NLL of -0.700 is **worse than** the published -1.000.",
        "EEG: **lower NLL than T-LVMOGP** (-0.700): SV-LMC (-0.800).",
    ]
    closer = [record(table.rows[0], 0, test_mse=0.25, test_nll=-0.9)]
    assert [text.split(" is ")[1].split(" the ")[0] for text in findings(table, closer)] == [
        "within two published standard deviations of"
    ] * 2


def test_files_are_written_from_a_folder_of_records(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    row = next(row for row in TABLES["eeg"].rows if row.model == "tlvmogp")
    write_record(row.run("fast", 0).path(folder), record(row, 0, test_mse=0.1, test_nll=0.2))
    (folder / "notes").mkdir()
    (folder / "notes" / "eeg.md").write_text("Somebody's remark.\n")
    markdown, page = write_tables(folder, find_tables("eeg,eeg-sn"))
    assert "| T-LVMOGP | 0.115 ± 0.025 | 0.100 (1) |" in markdown.read_text()
    assert page.read_text().count("<table>") == 2
    write_page(folder, tmp_path / "results.md")
    text = (tmp_path / "results.md").read_text()
    assert text.count("\n## ") == len(TABLES)
    assert "Somebody's remark." in text
    assert "1 run, 2026-01-02 to 2026-01-02, on a chip, 2 cores, 1 thread a run, cpu (1)" in text


def test_tables_are_found_by_name() -> None:
    assert [table.name for table in find_tables("eeg, sarcos")] == ["eeg", "sarcos"]
    assert len(find_tables("all")) == len(TABLES)
    with pytest.raises(SettingError, match="choose from: all, eeg"):
        find_tables("egg")
    assert len(runs_of(find_tables("ablation-nn-nll,ablation-nn-mse"), "fast", [0])) == 16


def test_every_setting_is_one_of_its_model() -> None:
    for table in TABLES.values():
        for row in (row for row in table.rows if row.dataset in DATASETS and row.model in ESTIMATORS):
            known = inspect.signature(ESTIMATORS[row.model]).parameters
            for preset in ("fast", "paper"):
                unknown = set(row.run(preset, 0).settings) - set(known)
                assert not unknown, f"{table.name}, {row.label}, {preset}: {row.model} has no {unknown}"
