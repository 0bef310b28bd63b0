"""What is published: a wheel with what users need and nothing else, which works in an environment of its own."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import manygp

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TRY = """
import importlib.metadata, pathlib, numpy as np, manygp
assert "site-packages" in manygp.__file__, manygp.__file__
assert importlib.metadata.version("manygp") == manygp.__version__
assert (pathlib.Path(manygp.__file__).parent / "py.typed").exists()
X = np.linspace(0, 1, 12)[:, None]
Y = np.sin(6 * X + np.arange(3.0))
Y[3:6, 0] = np.nan
model = manygp.TLVMOGP(latent_dim=1, num_inducing=6, epochs=1, progress=False).fit(X, Y)
model.save("model")
assert np.array_equal(manygp.load("model").predict(X), model.predict(X))
from manygp.report import write_report
write_report(model, "report.html")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Wheel and sdist that MANYGP_DIST names, or built here without a network."""
    folder = ROOT / os.environ["MANYGP_DIST"] if "MANYGP_DIST" in os.environ else tmp_path_factory.mktemp("dist")
    if "MANYGP_DIST" not in os.environ:
        pytest.importorskip("build", reason="the extra dev is not installed")
        pytest.importorskip("hatchling", reason="hatchling is not installed")
        subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT], check=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(dist):
    with zipfile.ZipFile(dist[0]) as wheel:
        names = wheel.namelist()
    inside = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "manygp").rglob("*") if path.is_file()}
    inside = {name for name in inside if "__pycache__" not in name}
    about = f"manygp-{manygp.__version__}.dist-info"
    assert {name for name in names if not name.startswith(about)} == inside
    assert {f"{about}/METADATA", f"{about}/entry_points.txt", f"{about}/licenses/LICENSE"} <= set(names)
    assert "manygp/py.typed" in names
    assert dist[0].stat().st_size < 1_500_000


@pytest.mark.slow
def test_the_sdist_can_be_tested_and_holds_no_records_of_runs(dist):
    with tarfile.open(dist[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/manygp/__init__.py"):
        assert name in names
    assert {"tests/test_dist.py", "docs/index.md", "examples/gaps.py", "Makefile"} <= names
    assert not [
        name for name in names if name.startswith(("docs/results/", "docs/gallery/", "build", ".github", "dist"))
    ]
    assert dist[1].stat().st_size < 4_000_000


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(dist, tmp_path):
    # Dependencies are those of this environment: what is tried is the package, not the network.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(dist[0]) as wheel:
        wheel.extractall(packages)
    # Behind the wheel's own folder, so that the wheel wins over an editable installation.
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    python, clean = tmp_path / "venv" / "bin" / "python", {**os.environ, "PYTHONPATH": ""}
    subprocess.run([python, "-W", "ignore", "-c", TRY], check=True, cwd=tmp_path, env=clean)
    command = "import sys; from manygp.cli import main; sys.argv = ['manygp', '--version']; main()"
    told = subprocess.run([python, "-c", command], check=True, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert manygp.__version__ in told.stdout


def test_the_recipe_asks_for_what_the_project_asks_for():
    recipe = (ROOT / "packaging" / "conda-forge" / "recipe.yaml").read_text(encoding="utf-8")
    for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]):
        wanted = Requirement(text)
        name = {"torch": "pytorch"}.get(wanted.name, wanted.name)
        assert f"- {name} {wanted.specifier}\n" in recipe, text
    assert f'python_min: "{PROJECT["requires-python"].removeprefix(">=")}"' in recipe


@pytest.mark.parametrize("page", ["CITATION.cff", "packaging/conda-forge/recipe.yaml"])
def test_the_version_is_one(page):
    (told,) = re.findall(r'^ *version: "?([\d.]+)"?$', (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert manygp.__version__.partition(".dev")[0] == told
