"""What holds for every test: the shapes that the mathematical rooms annotate are checked at every call."""

import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

from . import shapes

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


# Test problems are tiny: handing them out to threads takes longer than solving them.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    """Modules that tests bring along draw their start from torch's global generator."""
    torch.manual_seed(20240229)


@pytest.fixture
def rng():
    """Seeded randomness; numpy's draws are float64 without being asked."""
    return np.random.default_rng(20240229)
