"""What holds for every test: the shapes that the mathematical rooms annotate are checked at every call."""

import os
from pathlib import Path

# Before anything loads numpy, and for processes that tests start: problems are tiny, and workers share the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import torch
from jaxtyping import config, install_import_hook

from . import shapes

# How long an example takes tells of what else the machine does, and not of what is tested.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# A module is checked only if it is first imported under the hook, and this file comes before every test module.
ROOMS = (
    "keyed",
    "linalg",
    "quadrature",
    "kernels",
    "embeddings",
    "likelihoods",
    "variational",
    "functions",
    "models",
    "prediction",
)
install_import_hook([f"manygp.{room}" for room in ROOMS], f"{shapes.__name__}.check")

from manygp import memory  # noqa: E402 - it imports no room that is checked

# What an operation asks for follows from shapes alone, which are the same in fit after fit of these tests: found once.
_found: dict[object, int] = {}
_result_bytes = memory._result_bytes


def _remembered_bytes(func, args, kwargs):
    key = func, memory._shapes(args), memory._shapes(tuple(kwargs.items()))
    if key not in _found:
        _found[key] = _result_bytes(func, args, kwargs)
    return _found[key]


memory._result_bytes = _remembered_bytes

# Those who come through public doors meet functions whose shapes all other tests have checked.
LEAVES = ("cli", "demo", "paper", "report")
DOORS = ("stories", "test_docs.py", "test_examples.py", *(f"unit/{room}" for room in LEAVES))

# Test problems are tiny: handing them out to threads takes longer than solving them.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _shapes_are_checked(request):
    place = request.path.relative_to(Path(__file__).parent).as_posix()
    config.update("jaxtyping_disable", place.startswith(DOORS))


@pytest.fixture(autouse=True)
def _seeded():
    """Modules that tests bring along draw their start from torch's global generator."""
    torch.manual_seed(20240229)


@pytest.fixture
def rng():
    """Seeded randomness; numpy's draws are float64 without being asked."""
    return np.random.default_rng(20240229)
