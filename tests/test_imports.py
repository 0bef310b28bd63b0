"""What an import costs: the library loads nothing before it is needed, and the command line answers at once."""

import importlib
import json
import subprocess
import sys

import pytest

import manygp

LEAVES = ("manygp.cli", "manygp.demo", "manygp.paper", "manygp.plots")
FOREIGN = ("anndata", "h5py", "matplotlib", "netCDF4", "typer", "xarray")
HEAVY = ("gpytorch", "joblib", "numpy", "pandas", "rich", "scipy", "sklearn", "torch")
HELP = """
import json, sys, time
from manygp.cli import main
try:
    main()
except SystemExit:
    print(json.dumps([list(sys.modules), time.process_time()]))
"""
FIT = """
import sys
sys.modules.update(dict.fromkeys(["anndata", "h5py", "matplotlib", "pyarrow", "rich", "typer", "xarray"]))
sys.stderr.isatty = lambda: True
import numpy as np, manygp
X = np.linspace(0, 1, 12)[:, None]
model = manygp.TLVMOGP(latent_dim=1, num_inducing=6, epochs=1).fit(X, np.sin(X + np.arange(3.0)))
print(model.predict(X).shape)
try:
    model.set_params(progress=True).fit(X, X)
except manygp.ManyGPError as error:
    print(error)
"""


def python(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True).stdout


def loaded(code: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after some code."""
    return set(json.loads(python(f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))")))


def test_the_package_alone_loads_nothing():
    assert not loaded("import manygp; manygp.__version__; dir(manygp)") & {*LEAVES, *FOREIGN, *HEAVY}


def test_data_do_not_load_torch():
    assert not loaded("import manygp.data") & {*LEAVES, *FOREIGN, "torch", "manygp.estimators"}


def test_a_model_loads_no_plots_commands_or_containers():
    assert not loaded("from manygp import TLVMOGP") & {*LEAVES, *FOREIGN}


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["paper", "run", "--help"], ["--version"]])
def test_help_loads_no_library_and_takes_less_than_half_a_second(arguments):
    # Again if it was slow: on a busy machine caches are cold.
    for _ in range(3):
        modules, seconds = json.loads(python(HELP, *arguments).splitlines()[-1])
        assert not set(modules) & ({*HEAVY, "manygp.errors", "manygp.data"} - {"rich"})
        if seconds < 0.5:
            return
    pytest.fail(f"help takes {seconds:.2f} s")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from manygp.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    (sentence,) = result.stderr.splitlines()
    assert f"needs {missing}" in sentence
    assert "pip install 'manygp[cli]'" in sentence


def test_a_model_fits_without_any_extra():
    shape, sentence = python(FIT).splitlines()
    assert shape == "(12, 3)"
    assert sentence == "progress=True needs rich, which is not installed; install it with: pip install 'manygp[cli]'."


@pytest.mark.parametrize("name", manygp.__all__)
def test_every_public_name_is_there(name):
    assert name in dir(manygp)
    assert getattr(manygp, name) is not None


@pytest.mark.parametrize("room", ["data", "estimators", "kernels", "likelihoods", "training"])
def test_rooms_are_attributes(room):
    assert python(f"import manygp; print(manygp.{room}.__name__)").strip() == f"manygp.{room}"
    assert getattr(manygp, room) is importlib.import_module(f"manygp.{room}")


@pytest.mark.parametrize("name", ["TLVMOPG", "_private", "nothing"])
def test_other_names_are_not(name):
    with pytest.raises(AttributeError, match=name):
        getattr(manygp, name)
