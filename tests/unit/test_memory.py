"""What does not fit into memory is refused before it is asked for."""

import numpy as np
import pytest
import torch
from benchmarks import attack

import manygp
from manygp.estimators import ESTIMATORS
from manygp.memory import Allotment, TooLarge, bytes_in_words, total_memory

SIZES = ("latent_dim", "num_inducing", "num_inducing_latents", "num_inducing_inputs", "num_blocks", "num_components")
SIZES += ("num_latents", "num_kernels", "num_samples")


def test_memory_of_the_machine_is_known():
    assert total_memory() > 1e8


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1e3, "1 kB"), (8e12, "8 TB"), (3.21e9, "3.21 GB"), (1e20, "1e+05 PB")],
)
def test_bytes_as_people_say_it(num_bytes, words):
    assert bytes_in_words(num_bytes) == words


@pytest.mark.parametrize(
    "operation",
    [
        lambda: torch.zeros(10**12),
        lambda: torch.eye(10**6),
        lambda: torch.arange(10**12),
        lambda: torch.zeros(10**4, 1) + torch.zeros(1, 10**4),
        lambda: torch.eye(100).expand(10**6, 100, 100).clone(),
        lambda: torch.zeros(10).repeat(10**9),
        lambda: torch.nn.Linear(10**5, 10**5),
        lambda: torch.tril_indices(10**5, 10**5),
    ],
)
def test_results_beyond_an_allotment_are_refused(operation):
    with Allotment(1e6), pytest.raises(TooLarge):
        operation()


def test_operations_beyond_an_allotment_are_refused():
    with Allotment(1e6, operations=10):
        for _ in range(10):
            torch.zeros(1)
        with pytest.raises(TooLarge):
            torch.zeros(1)


def test_an_allotment_changes_nothing():
    with Allotment(1e6):
        ours = torch.linalg.cholesky(torch.eye(5) + torch.full((5, 5), 0.1)).sum().item()
        assert torch.arange(5)[torch.arange(5) > 2].tolist() == [3, 4]
    assert ours == torch.linalg.cholesky(torch.eye(5) + torch.full((5, 5), 0.1)).sum().item()


@pytest.mark.parametrize("preset", ["fast", "paper"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_sizes_beyond_memory_are_refused_with_a_number(name, preset, monkeypatch):
    monkeypatch.setattr("manygp.memory.total_memory", lambda device=None: 2e9)
    known = ESTIMATORS[name]().get_params()
    for key in SIZES:
        for value in (10**6, 10**9, 10**18, 2**64) if key in known else ():
            with pytest.raises(manygp.SettingError, match=rf"{key}={value}.*(of memory|exceeds|use)") as caught:
                attack.small(name, **{key: value}, preset=preset).fit(*attack.table())
            assert "\n" not in str(caught.value)


# Memory in which a model still fits, but a step on all of the table does not.
TIGHT = {"oilmm": 2e5, "ind-gp": 1e5, "lvmogp": 2e5}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_beyond_memory_is_refused_before_it_is_taken(name, monkeypatch):
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 6.0, 200)[:, None]
    Y = np.sin(X + np.linspace(0.0, 2.0, 6)) + 0.1 * rng.standard_normal((200, 6))
    whole = {key: None for key in ("batch_inputs", "batch_outputs") if key in ESTIMATORS[name]().get_params()}
    monkeypatch.setattr("manygp.memory.total_memory", lambda device=None: TIGHT.get(name, 1e6))
    with pytest.raises(manygp.SettingError, match=r"has a part of .*B, and there are .*B of memory in all: choose"):
        attack.small(name, **whole).fit(X, Y)


def test_draws_beyond_memory_are_refused_with_a_number():
    X, Y = attack.table()
    dist = attack.small("ind-gp").fit(X, Y).predict_dist(X)
    for n in (10**9, 10**18):
        with pytest.raises(manygp.SettingError, match=rf"sample\({n}\) needs about .*B of memory"):
            dist.sample(n)
    assert dist.sample(1000).shape == (1000, *Y.shape)
