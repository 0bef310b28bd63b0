"""Tables and the results page: published values, ours beside them, and what is said of them."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from manygp.baselines import BASELINES
from manygp.errors import SettingError
from manygp.estimators import ESTIMATORS
from manygp.paper import (
    DATASETS,
    TABLES,
    PaperTable,
    Row,
    find_tables,
    findings,
    render,
    runs_of,
    settings_for,
    write_page,
)
from manygp.paper.models import sources_of
from manygp.paper.page import overview
from manygp.paper.published import MSE, NLL, TIME
from manygp.paper.records import KEYS, METRICS, plain, write_record
from manygp.paper.rendering import make_sheet, to_latex, to_markdown

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
    "ablation-sn": 20,
    "ablation-nn": 20,
    "tighter-bound": 12,
    "sarcos-latent-dim": 10,
    "sarcos-num-inducing": 10,
}


def record(row: Row, seed: int, preset: str = "fast", **values: Any) -> dict[str, Any]:
    """A record as a run of this row would leave it."""
    run = row.run(preset, seed)
    machine = {"cpu": "a chip", "cores": 2, "threads": 1, "device": "cpu", "date": "2026-01-02 03:04"}
    metrics = dict.fromkeys(METRICS) | {name: value for name, value in values.items() if name in METRICS}
    told = {"dataset": run.dataset, "model": run.model, "preset": preset, "seed": seed, "settings": plain(run.settings)}
    told |= {
        "metrics": metrics,
        "train_seconds": 20.0,
        "cpu_seconds": 10.0,
        "epochs": 4,
        "sources": sources_of(row.model),
    }
    told |= {"versions": {"manygp": "0"}, "machine": machine}
    error = {"error": values["error"]} if "error" in values else {}
    return dict.fromkeys(KEYS) | told | error


@pytest.fixture
def table() -> PaperTable:
    rows = (
        Row("T-LVMOGP", "eeg", "tlvmogp", {}, {MSE: (0.2, 0.05), NLL: (-1.0, 0.1), TIME: (3.0, 0.0)}),
        Row("SV-LMC", "eeg", "sv-lmc", {}, {MSE: (0.3, 0.01)}),
        Row("SGPRN", "eeg", "sgprn", {}, {MSE: (0.5, 0.01)}),
        Row("OILMM", "eeg", "oilmm", {}, {MSE: (0.6, 0.01)}),
        Row("low rank", "eeg", "low-rank"),
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


def test_plain_methods_and_all_of_ours_stand_in_every_table() -> None:
    for name in PUBLISHED_CELLS:
        table = TABLES[name]
        rows = (*table.rows, *table.beside)
        for dataset in {row.dataset for row in rows}:
            own = [row for row in rows if row.dataset == dataset]
            plain = {row.model for row in own} & set(BASELINES)
            assert plain >= ({"interpolation"} if dataset in ("copernicus", "ersst") else set(BASELINES) - {"boosting"})
            assert "boosting" in plain or not dataset.startswith("sarcos")
            ours = [row.run("fast", 0).settings for row in own if row.model == "tlvmogp"]
            assert any(run["num_neighbors"] == 0 and run["latent_dim"] != "auto" for run in ours)
            assert any(run["num_neighbors"] == run["latent_dim"] == "auto" for run in ours)
            if dataset not in ("prostate", "visium-dlpfc"):
                assert any(run["num_neighbors"] == "auto" != run["latent_dim"] for run in ours)
                assert any(run["num_neighbors"] == 0 and run["latent_dim"] == "auto" for run in ours)


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
    assert rows["low rank"][:4] == ("–", "**0.150 (1)**", "–", "–")
    assert sheet.notes[0] == "Failed: SGPRN: ValueError: too | large"
    (reason,) = sheet.notes[1:]
    assert reason == "Not run, for the campaign has not come to them: OILMM."


def test_a_record_of_other_sources_is_marked(table: PaperTable, records: list[dict[str, Any]]) -> None:
    records[2]["sources"] = "0" * 12
    cells = {row[0]: row for row in make_sheet(table, records).rows}
    assert cells["SV-LMC"][2] == "0.400 (1)†"
    assert "†" not in "".join(cells["T-LVMOGP"])


def test_one_table_tells_where_we_stand(tmp_path: Path) -> None:
    rows = {row.label: row for row in TABLES["eeg"].rows}
    told = [
        record(rows["T-LVMOGP, automatic"], 0, test_mse=0.3, test_nll=0.1, coverage90=0.91),
        record(rows["T-LVMOGP, automatic"], 1, test_mse=0.1, test_nll=0.1, coverage90=0.91),
        record(rows["OILMM"], 0, test_mse=0.15, test_nll=-0.2),
        record(rows["low rank"], 0, test_mse=0.4),
    ]
    reasons = tmp_path / "behind.json"
    reasons.write_text('{"eeg": {"test_nll": "It is early."}}')
    text = overview(told, reasons)
    mse, nll = (next(line for line in text.splitlines() if f"| {name} |" in line) for name in ("MSE", "NLL"))
    # Within a standard deviation of the seeds is no loss.
    assert "| 0.200 ± 0.141 (2) | 0.150 (1) OILMM | 0.400 (1) low rank |  |" in mse
    assert mse.startswith("| EEG | MSE | 0.115 T-LVMOGP | 0.115 | not run |")
    assert nll.endswith("| **behind** |")
    assert "- EEG, NLL: behind OILMM (0.100 against -0.200). It is early." in text
    assert "in MSE on 1 of 1 data sets and in NLL on 0 of 1 data sets" in text
    assert "on 1 of 1." in text


def test_the_paper_preset_has_columns_where_it_was_run(table: PaperTable, records: list[dict[str, Any]]) -> None:
    more = [*records, record(table.rows[0], 0, "paper", test_mse=0.19, test_nll=-1.0)]
    sheet = make_sheet(table, more)
    assert sheet.header[1:4] == ("MSE published", "MSE ours, fast", "MSE ours, paper")
    assert sheet.rows[0][3] == "0.190 (1)"
    # What was not planned is not missing.
    assert sheet.rows[1][3] == "–"


def test_markdown_and_latex_hold_the_same_cells(table: PaperTable, records: list[dict[str, Any]]) -> None:
    sheet = make_sheet(table, records)
    lines = to_markdown(sheet).splitlines()
    assert lines[0] == "## Some"
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert widths == {len(sheet.header) + 1}
    latex = to_latex(sheet)
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(body) == 1 + len(sheet.rows)
    assert {line.count("&") for line in body} == {len(sheet.header) - 1}
    assert r"T-LVMOGP & 0.200 $\pm$ 0.050 & 0.200 $\pm$ 0.141 (2)" in latex
    assert r"\textbf{0.150 (1)}" in latex
    assert "±" not in latex
    with pytest.raises(SettingError, match="markdown, latex"):
        render([table], records, "word")


def test_findings_are_plain(table: PaperTable, records: list[dict[str, Any]]) -> None:
    assert findings(table, records) == [
        "EEG: T-LVMOGP's MSE of 0.200 is at least as good as the published 0.200.",
        "EEG: T-LVMOGP's NLL of -0.700 is **worse than** the published -1.000.",
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
    write_page(folder, tmp_path / "results.md")
    text = (tmp_path / "results.md").read_text()
    assert text.count("\n## ") == 1 + len(TABLES)
    assert "| T-LVMOGP | 0.115 ± 0.025 | 0.100 (1) |" in text
    assert "All are of the sources of the models in this commit" in text
    assert "Somebody's remark." in text
    assert "1 run, 2026-01-02 to 2026-01-02, on a chip, 2 cores, 1 thread a run, cpu (1)" in text


def test_tables_are_found_by_name() -> None:
    assert [table.name for table in find_tables("eeg, sarcos")] == ["eeg", "sarcos"]
    assert len(find_tables("all")) == len(TABLES)
    with pytest.raises(SettingError, match="choose from: all, eeg"):
        find_tables("egg")
    both = find_tables("ablation-nn,ablation-sn")
    # What stands beside is the same in both, and what is not changed is too.
    assert len(runs_of(both, "fast", [0])) == len(runs_of(both[:1], "fast", [0])) + 6


def test_every_setting_is_one_of_its_model() -> None:
    for table in TABLES.values():
        for row in (row for row in table.rows if row.dataset in DATASETS and row.model in ESTIMATORS):
            known = inspect.signature(ESTIMATORS[row.model]).parameters
            for preset in ("fast", "paper"):
                unknown = set(row.run(preset, 0).settings) - set(known)
                assert not unknown, f"{table.name}, {row.label}, {preset}: {row.model} has no {unknown}"
