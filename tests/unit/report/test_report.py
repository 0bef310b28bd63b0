"""The report: one file about a model, with the numbers that the model gives, readable in a browser."""

import base64
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import manygp
from manygp import IndGP, SettingError
from manygp.cli.commands import app
from manygp.data import as_table
from manygp.report import write_report
from manygp.report.facts import gap_picture, reliability

DAYS = pd.date_range("2024-01-01", periods=20, name="day")
NAMES = [f"sensor {i} <b>" for i in range(9)]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def frame():
    values = np.sin(np.arange(20.0)[:, None] / 3 + np.arange(9.0)) + 0.1 * np.random.default_rng(0).normal(size=(20, 9))
    values[4:9, 2] = np.nan
    return pd.DataFrame(values, DAYS, NAMES)


@pytest.fixture(scope="module")
def model(frame):
    settings = {"latent_dim": 2, "num_inducing": 8, "epochs": 3, "progress": False, "device": "cpu"}
    return manygp.TLVMOGP(**settings).fit(frame)


@pytest.fixture(scope="module")
def page(model, frame, tmp_path_factory):
    return write_report(model, tmp_path_factory.mktemp("report") / "report.html", table=as_table(frame), source="a <b>")


def facts_of(page):
    return json.loads(re.search(r'id="facts">(.*?)</script>', page.read_text(encoding="utf-8")).group(1))


def test_the_page_holds_what_the_model_says(page, model, frame):
    facts = facts_of(page)
    entries = {entry["name"]: entry for entry in facts["series"]["entries"]}
    assert set(entries) == set(NAMES)
    dist = model.predict_dist()
    assert np.allclose(entries[NAMES[3]]["m"], dist.mean[:, 3], rtol=1e-3, atol=1e-4)
    assert np.allclose(entries[NAMES[3]]["u"], dist.interval(0.9)[1][:, 3], rtol=1e-3, atol=1e-4)
    assert [dot[1] for dot in entries[NAMES[2]]["dots"]] == pytest.approx(frame[NAMES[2]].dropna().tolist(), rel=1e-4)
    assert facts["series"]["kind"] == "date"
    assert facts["series"]["x"][0] == DAYS[0].timestamp() * 1000
    assert facts["calibration"]["coverage90"] == pytest.approx(model.evaluate(frame)["coverage90"], abs=1e-3)
    assert len(facts["latents"]["points"]) == 9


def test_the_page_needs_nothing_else_and_escapes_names(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "<b>" not in text
    assert "sensor 0 &lt;b&gt;" in text


def test_without_observations_there_is_less_to_tell(model, tmp_path):
    text = write_report(model, tmp_path / "bare.md", source="none were given").read_text(encoding="utf-8")
    assert "## Training" in text
    assert "## Calibration" not in text
    assert "as many epochs had run as were asked for" in text
    with pytest.raises(SettingError, match="format='pdf' is unknown"):
        write_report(model, tmp_path / "report.pdf")


def test_data_of_other_outputs_are_refused(model, frame, tmp_path):
    with pytest.raises(manygp.DataError, match="hold no output of the model"):
        write_report(model, tmp_path / "report.md", table=as_table(frame.add_prefix("other ")))


def test_inputs_of_several_columns_and_lists_of_cells(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(12, 2)), rng.normal(size=(12, 3))
    for fitted in (IndGP(progress=False).fit(X, Y), IndGP(progress=False).fit_cells(X, list("abc") * 4, Y[:, 0])):
        facts = facts_of(write_report(fitted, tmp_path / "report.html"))
        assert facts["series"]["label"] == "row"
        assert facts["latents"] is None


def test_maps_and_series_of_a_field_have_its_unit(tmp_path):
    xarray = pytest.importorskip("xarray")
    values = np.sin(np.arange(12.0)[:, None, None] / 3 + np.arange(6.0).reshape(2, 3))
    places = {"time": pd.date_range("2020-01-01", periods=12, freq="MS"), "lat": [50.0, 49.0], "lon": [1.0, 2.0, 3.0]}
    field = xarray.DataArray(values, places, ("time", "lat", "lon"), attrs={"units": "degC"})
    settings = {"latent_dim": 2, "num_inducing": 8, "epochs": 2, "progress": False}
    path = write_report(manygp.TLVMOGP(**settings).fit(field), tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    assert "Predicted mean, degC" in text
    assert "Values are in degC" in text
    assert facts_of(path)["maps"]["labels"] == ["lat", "lon"]


def test_gaps_are_drawn_where_they_are():
    Y = np.ones((6, 4))
    Y[1:3, 2] = np.nan
    picture = gap_picture(as_table(np.arange(6.0)[::-1, None], Y))
    shades = np.frombuffer(base64.b64decode(picture["shades"]), np.uint8).reshape(picture["height"], picture["width"])
    # Outputs go down and inputs across, in the order of their values.
    assert np.argwhere(shades == 0).tolist() == [[2, 3], [2, 4]]
    wide = gap_picture(as_table(np.arange(1000.0)[:, None], np.ones((1000, 3))))
    assert wide["width"] == 320


def test_calibration_of_uniform_numbers_is_right():
    pit = (np.arange(1000) + 0.5) / 1000
    found = reliability(pit, {"all": np.ones(1000, dtype=bool)})
    assert np.allclose(found["curves"]["all"], found["levels"], atol=0.002)
    assert np.allclose(found["pit"], 0.05)
    # Intervals that are twice too wide hold everything at half the level.
    wide = reliability(0.25 + pit / 2, {"all": np.ones(1000, dtype=bool)})
    assert wide["curves"]["all"][wide["levels"].index(0.5)] == 1.0


def test_commands_write_reports(frame, tmp_path):
    frame.to_csv(tmp_path / "data.csv")
    data, out = str(tmp_path / "data.csv"), str(tmp_path / "found")
    fast = ["--set", "epochs=2", "--set", "latent_dim=1", "--set", "num_inducing=6", "-q"]
    page = str(tmp_path / "report.html")
    for arguments in (
        ["fit", data, "--out", str(tmp_path / "model"), "--report", page, *fast],
        ["report", str(tmp_path / "model"), "--data", data, "--out", str(tmp_path / "report.md")],
        ["compare", data, "--out", out, "--models", "interpolation,low-rank", "-q"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert facts_of(tmp_path / "report.html")["calibration"]["cells"] == 175
    assert "## Worst outputs" in (tmp_path / "report.md").read_text(encoding="utf-8")
    found = facts_of(tmp_path / "found" / "report.html")
    assert [row["method"] for row in found["comparison"]["rows"] if row["chosen"]]
    assert pd.read_csv(tmp_path / "found" / "scores.csv")["rmse"].notna().all()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here; scripts/install_browser.sh installs it")
def test_the_page_works_in_a_browser(page):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for width in (1200, 390):
            view, said = browser.new_page(viewport={"width": width, "height": 844}), []
            view.on("console", lambda message, said=said: said.append(message.text))
            view.on("pageerror", lambda error, said=said: said.append(str(error)))
            view.on("request", lambda request, said=said: request.url.startswith("file:") or said.append(request.url))
            view.goto(page.as_uri())
            # Nothing is wider than the screen.
            assert view.evaluate("document.documentElement.scrollWidth") == width
            assert view.locator("#panels > div").count() == 6
            texts = view.locator("#panels svg").first.locator("text").all_text_contents()
            assert {"2024-01-04", "2024-01-11", "2024-01-18"} <= set(texts)
            view.click("#next")
            assert view.locator("#panels > div").count() == 3
            assert view.locator("#page").inner_text() == "2 / 2"
            view.fill("#search", "SENSOR 4")
            assert view.locator("#panels h3").all_inner_texts() == [NAMES[4]]
            view.locator("#panels svg").hover()
            assert "mean" in view.locator("#tip").inner_text()
            view.locator("#latent-chart circle").first.hover(force=True)
            assert view.locator("#tip").inner_text() in NAMES
            view.locator("[data-output]").first.click()
            assert view.locator("#panels > div").count() == 1
            assert said == []
        browser.close()
