"""The pages agree with the package: links lead somewhere, public names are listed and exist, snippets run."""

import builtins
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import manygp
import manygp.data
import manygp.demo
import manygp.training
from manygp.baselines import Interpolation
from manygp.cli.commands import app
from manygp.estimators import ESTIMATORS
from manygp.windows import WindowImputer

from .ranks import run_ranks

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LISTED = (
    "",
    ".baselines",
    ".data",
    ".distributed",
    ".likelihoods",
    ".paper",
    ".report",
    ".plots",
    ".demo",
    ".kernels",
    ".embeddings",
    ".training",
    ".spatial",
    ".windows",
)


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


def listed_names():
    """Names in backticks, with or without arguments, by the module under which the list of public names has them."""
    listed = {}
    for section in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        rows = re.findall(r"^\| `(manygp\.\w+)` \|(.*)$", text, re.MULTILINE)
        for module, names in rows if title == "Parts" else [(title.strip("`"), text)]:
            listed[module] = re.findall(r"`([A-Za-z_]\w*)(?:\([^`]*\))?`", names)
    return listed


# What else the page names beside the contents of a module: methods and attributes, errors of others, extras to install.
BESIDE = {
    "manygp": [
        *ESTIMATORS.values(),
        manygp.Prediction,
        manygp.Comparison,
        manygp.training.History,
        manygp.data,
        manygp.training,
        builtins,
    ],
    "manygp.baselines": [Interpolation],
    "manygp.paper": [manygp.demo],
    "manygp.windows": [WindowImputer],
}
FOREIGN = {"manygp.plots": {"plots", "Figure"}}


@pytest.mark.parametrize("module", sorted(listed_names()))
def test_listed_names_exist(module):
    if module == "manygp.plots":
        pytest.importorskip("matplotlib")
    owners = [importlib.import_module(module), *BESIDE.get(module, [])]
    known = {name for owner in owners for name in dir(owner)} | FOREIGN.get(module, set())
    known |= {name for owner in owners if isinstance(owner, type) for name in attributes(owner)}
    assert [name for name in listed_names()[module] if name not in known] == []


def attributes(kind):
    """Names that a class declares for after a fit, or sets when it is made."""
    declared = [name for base in kind.__mro__ for name in inspect.get_annotations(base)]
    return [*declared, *inspect.unwrap(kind.__init__).__code__.co_names]


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


def test_the_snippets_on_sums_run():
    names = {}
    page = (ROOT / "docs" / "sums.md").read_text(encoding="utf-8")
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(snippet.replace("epochs=20", "epochs=2"), names)
    assert names["years"].labels.shape == (6, 2)
    assert names["draws"].shape == (20, 36, 8)
    assert 0.0 <= float(names["hot"]) <= 1.0


def test_the_snippets_on_containers_run():
    pytest.importorskip("xarray")
    names = {}
    for snippet in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "containers.md").read_text(encoding="utf-8"), re.DOTALL
    ):
        exec(snippet.replace("TLVMOGP()", "TLVMOGP(epochs=2)"), names)
    assert list(names["long"].columns) == ["day", "output", "mean", "std", "lower90", "upper90"]
    assert names["filled"]["mean"].dims == ("time", "lat", "lon")
    assert not names["complete"].isnull().any()
    assert names["asked"]["output"].tolist() == list("abcabc")


def test_the_snippets_for_a_start_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "".join(
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("getting_started", "troubleshooting")
    )
    snippets = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "logging" not in text]
    names = {}
    exec("".join(snippets).replace("TLVMOGP()", "TLVMOGP(epochs=2)"), names)
    assert names["mean"].shape == (64, 12)
    assert names["lower"].shape == (64, 2)
    assert [name for name in names["scores"] if f"`{name}`" not in page] == []
    assert names["scores"]["num_cells"] == names["hidden"].to_numpy().sum()
    assert names["same"].predict().equals(names["mean"])
    assert not names["filled"].isna().any(axis=None)


@pytest.mark.parametrize("page", ["scikit_learn", "gpytorch", "pypots"])
def test_the_snippets_for_those_who_come_from_elsewhere_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip({"scikit_learn": "optuna", "gpytorch": "gpytorch", "pypots": "numpy"}[page])
    text = (ROOT / "docs" / "coming_from" / f"{page}.md").read_text(encoding="utf-8")
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), names)
    if page == "scikit_learn":
        assert names["search"].best_params_["num_latents"] in (1, 2)
        assert len(names["study"].trials) == 3
        assert np.array_equal(names["same"].predict(names["X"]), names["mean"])
    elif page == "gpytorch":
        assert names["mean"].shape == (2, 2)
    else:
        gap = np.isnan(names["series"])
        error = names["filled"] - names["complete"]
        assert np.sqrt(np.mean(error[gap] ** 2)) < 0.5 * names["complete"].std()
        assert not error[~gap].any()


def test_the_worked_examples_of_the_architecture_run():
    """A term and a model in under 60 lines each; the model is the last two snippets."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    term, *model = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written = [sum(map(bool, map(str.strip, text.splitlines()))) for text in (term, "\n".join(model))]
    assert max(written) < 60
    names = {}
    for snippet in (term, *model):
        exec(snippet, names)
    assert names["model"].history_.stages
    assert "corrections" in names["shared"].summary()


def test_the_snippets_on_long_runs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "long_runs.md").read_text(encoding="utf-8")
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).replace("epochs=20", "epochs=2"), names)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run-0", "run-1"}


def test_the_script_and_the_command_for_many_machines_run(tmp_path, monkeypatch):
    """The script by ranks that are forked, which is quick; the command by torchrun itself."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "many_machines.md").read_text(encoding="utf-8")
    script = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert run_ranks(2, lambda rank: exec(script.replace("epochs=20", "epochs=2"), {})) == [("done", None)] * 2
    model = manygp.load("model")
    assert model.predict().shape == (24, 40)
    assert len(pd.read_csv("prediction.csv")) == 24 * 40
    for name in ("table.csv", "test.csv"):
        pd.DataFrame(model.predict(), columns=[f"y{i}" for i in range(40)]).rename_axis("x").to_csv(name)
    fit, predict, evaluate = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    # One of the two speaks, and writes.
    told = by_torchrun(fit + " --set epochs=1 --set latent_dim=1 --set num_inducing=6")
    assert told.stderr.count("Saved to model.") == 1
    model = manygp.load("model")
    assert model.output_names_ == tuple(f"y{i}" for i in range(40))
    assert not Path("run").exists()
    assert by_torchrun(predict).stderr.count("Wrote 960 predictions") == 1
    assert Path("field.zarr").is_dir()
    scores = json.loads(by_torchrun(evaluate + " --json").stdout)
    assert scores == pytest.approx(model.evaluate(manygp.data.read_table("test.csv")), rel=1e-9)


@pytest.mark.parametrize("backend", ["joblib", "distributed", "ray"])
def test_the_sweep_runs_wherever_joblib_goes(backend, tmp_path):
    pytest.importorskip(backend)
    page = (ROOT / "docs" / "many_machines.md").read_text(encoding="utf-8")
    script, *others = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    line = next(line for line in script.splitlines(keepends=True) if "loky" in line)
    used = {"joblib": line, "distributed": others[0], "ray": others[-1]}[backend]
    (tmp_path / "sweep.py").write_text(script.replace(line, used).replace("epochs=20", "epochs=2"), encoding="utf-8")
    told = subprocess.run([sys.executable, "sweep.py"], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "latent_dim" in told.stdout


def by_torchrun(command):
    told = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert told.returncode == 0, told.stderr
    return told


def test_the_snippets_on_genes_run():
    pytest.importorskip("anndata")
    page = (ROOT / "docs" / "spatial.md").read_text(encoding="utf-8")
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), names)
    ranked, section = names["ranked"], names["section"]
    # The gene that is the same everywhere comes last, the one that varies most far ahead of it.
    assert ranked.index[-1] == "7"
    rate = names["rate"]
    truth = rate.var(0) / (rate.var(0) + rate.mean(0))
    assert np.abs(ranked["spatial_share"].sort_index() - truth).max() < 0.15
    assert {"manygp_mean", "manygp_std"} <= set(section.layers)


def test_the_snippets_on_large_data_run(tmp_path, monkeypatch):
    zarr, xarray = pytest.importorskip("zarr"), pytest.importorskip("xarray")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "large_data.md").read_text(encoding="utf-8")
    names = {}
    snippets = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(snippets.replace("epochs=20", "epochs=2, num_inducing=20"), names)
    assert zarr.open_array("y.zarr").shape == (120, 15)
    assert xarray.open_zarr("field.zarr", consolidated=False)["mean"].shape == (120, 15)
    assert len(pd.read_parquet("some.parquet")) == 100
    assert names["model"].config_.num_neighbors == 0


def test_a_paper_of_ones_own_is_run_and_printed(tmp_path, monkeypatch):
    """The snippets as one file, and the commands below them, without the model that takes a minute."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    Path("mine.py").write_text("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    run, table = re.findall(r"^    (manygp paper \w+ --with .*)$", page, re.MULTILINE)
    quick = run.replace("0-4", "0").replace(" --jobs 2", "") + " --model means,low-rank"
    told = CliRunner().invoke(app, quick.split()[1:])
    assert told.exit_code == 0, told.output
    # A file registers its names once in a process.
    told = CliRunner().invoke(app, table.replace(" --with mine.py", "").split()[1:])
    assert told.exit_code == 0, told.output
    assert re.search(r"means of columns & -- & 0\.\d{3} \(1\) & -- & -- \\\\", told.output)
    assert re.search(r"low rank & -- & .*0\.0\d\d \(1\)", told.output)


def test_the_snippets_on_feeds_run():
    page = (ROOT / "docs" / "feeds.md").read_text(encoding="utf-8")
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)).replace("epochs=20", "epochs=5"), names)
    assert len(names["model"]._arrivals.since) == np.sum(~np.isnan(names["Y"][50:]))
