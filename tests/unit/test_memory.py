"""What does not fit into memory is refused before it is asked for."""

import re

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


@pytest.mark.filterwarnings("ignore:.*make room:UserWarning")
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


@pytest.mark.filterwarnings("ignore:.*make room:UserWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_beyond_memory_is_refused_before_it_is_taken(name, monkeypatch):
    monkeypatch.setattr("manygp.memory.total_memory", lambda device=None: TIGHT.get(name, 1e6))
    with pytest.raises(
        manygp.SettingError, match=r"(takes|has a part of) .*B, and there are .*B of memory in all: (choose|fit)"
    ):
        large(name, 200)


def test_draws_beyond_memory_are_refused_with_a_number():
    X, Y = attack.table()
    dist = attack.small("ind-gp").fit(X, Y).predict_dist(X)
    for n in (10**9, 10**18):
        with pytest.raises(manygp.SettingError, match=rf"sample\({n}\) needs about .*B of memory"):
            dist.sample(n)
    assert dist.sample(1000).shape == (1000, *Y.shape)


def test_results_together_beyond_an_allotment_are_refused():
    told = []
    with Allotment(1e6, in_all=2e6, much=1e6, tell=lambda: told.append(1)) as allotment:
        first = torch.zeros(100_000)
        second = first.view(10, -1)[:5].t()
        assert allotment.peak == 4e5
        first = first + 1.0
        # The first is still there, as a view.
        assert allotment.peak == 8e5
        assert not told
        rest = [torch.zeros(100_000) for _ in range(3)]
        assert told == [1]
        with pytest.raises(TooLarge) as caught:
            rest.append(first * 2.0)
        assert caught.value.are_many
        del second
        rest.append(first * 2.0)
    assert allotment.peak == 2e6
    assert told == [1]


def large(name, rows, **settings):
    """A fit of which a step takes far more than what is learnt."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 6.0, rows)[:, None]
    Y = np.sin(X + np.linspace(0.0, 2.0, 6)) + 0.1 * rng.standard_normal((rows, 6))
    whole = {key: None for key in ("batch_inputs", "batch_outputs") if key in ESTIMATORS[name]().get_params()}
    attack.small(name, **whole | settings).fit(X, Y)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_foreseen_is_what_is_taken(name, monkeypatch):
    """Every model counts what its first step takes, as torch's profiler does."""
    found = []

    class Counted(Allotment):
        def __enter__(self):
            self.profiler = torch.profiler.profile(profile_memory=True)
            self.profiler.__enter__()
            return super().__enter__()

        def __exit__(self, *error):
            left = super().__exit__(*error)
            self.profiler.__exit__(*error)
            events = self.profiler.profiler.kineto_results.events()
            taken = [event.nbytes() for event in events if event.name() == "[memory]"]
            found.append((self.peak, float(max(np.cumsum(taken), default=0.0))))
            return left

    monkeypatch.setattr("manygp.memory.Allotment", Counted)
    large(name, 100)
    foreseen, taken = max(found)
    assert taken > 1e5
    assert 0.8 * taken < foreseen < 1.25 * taken


# Settings that a remark may name, as they are in a large fit and in a small one.
SIZES_OF_STEPS = {
    "batch_inputs": (None, 20),
    "batch_outputs": (None, 2),
    "num_inducing": (30, 4),
    "num_inducing_inputs": (12, 4),
    "num_inducing_latents": (4, 2),
    "num_neighbors": (12, 4),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_more_than_is_free_is_warned_of_with_settings_that_help(name, monkeypatch):
    known, peaks = ESTIMATORS[name]().get_params(), []

    class Noted(Allotment):
        def __exit__(self, *error):
            peaks.append(self.peak)
            return super().__exit__(*error)

    monkeypatch.setattr("manygp.memory.Allotment", Noted)
    large_sizes, small_sizes = ({key: pair[i] for key, pair in SIZES_OF_STEPS.items() if key in known} for i in (0, 1))
    with monkeypatch.context() as patch:
        patch.setattr("manygp.memory.free_memory", lambda device=None: 1.0)
        with pytest.warns(UserWarning, match="make room") as told:
            large(name, 100, **large_sizes)
    *_, last = (str(one.message) for one in told if "make room" in str(one.message))
    assert re.fullmatch(
        r".* takes more than .* of memory, and there are .* free: (choose|fit) .*, or make room\.", last
    )
    named = set(re.findall(r"[a-z]+_[a-z_]+", last))
    assert named <= set(known)
    assert named or "fewer inputs" in last
    taken = peaks[-1]
    large(name, 100 if named else 50, **large_sizes | {key: small_sizes[key] for key in named})
    assert peaks[-1] < 0.6 * taken
