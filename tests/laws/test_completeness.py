"""What the package exports is in the registry, so that no law is forgotten for what is new."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
import torch

import manygp
from manygp import embeddings, estimators, kernels, likelihoods, variational

from . import registry

ROOMS = ("linalg", "quadrature", "kernels", "embeddings", "likelihoods", "variational", "models", "training")
TESTS = Path(__file__).parents[1]


def modules():
    names = [name for _, name, _ in pkgutil.walk_packages(manygp.__path__, "manygp.")]
    rooms = tuple(f"manygp.{room}" for room in (*ROOMS, "prediction", "estimators"))
    return [importlib.import_module(name) for name in names if name.startswith(rooms)]


def leaves(interface):
    """Subclasses that the package defines, whatever tests have added."""
    found, waiting = set(), [interface]
    while waiting:
        cls = waiting.pop()
        own = [kind for kind in cls.__subclasses__() if kind.__module__.startswith("manygp.")]
        waiting += own
        if not own and cls is not interface:
            found.add(cls)
    return found


def test_kernels():
    assert set(kernels.KERNELS) == set(registry.FUSED_KERNELS)


def test_embeddings():
    assert set(embeddings.EMBEDDINGS) <= set(registry.EMBEDDINGS)
    built = {type(make(3)) for make in registry.EMBEDDINGS.values()}
    assert set(registry.EMBEDDING_CLASSES) <= built


def test_likelihoods():
    modules()
    built = {type(make(3)) for make in registry.PREDICTION_LIKELIHOODS.values()}
    assert leaves(likelihoods.Likelihood) | set(likelihoods.LIKELIHOODS.values()) == built
    assert set(likelihoods.LIKELIHOODS.values()) <= {type(make(3)) for make in registry.LIKELIHOODS.values()}


def test_variational_parts():
    modules()
    assert variational.LATENT_POSTERIORS == registry.LATENT_POSTERIORS
    assert leaves(variational.Posterior) == {type(make(3)) for make in registry.POSTERIORS.values()}
    assert leaves(variational.Evidence) == set(registry.EVIDENCES)


def test_estimators():
    modules()
    registered = {estimator for estimator, _ in registry.ESTIMATORS.values()}
    assert leaves(estimators.Estimator) == set(estimators.ESTIMATORS.values()) == registered
    presets = {settings.get("preset", "fast") for _, settings in registry.ESTIMATORS.values()}
    assert presets == set(estimators.trained.PRESETS)


def test_hand_written_backwards():
    modules()
    written = {cls.__name__ for cls in leaves(torch.autograd.Function)}
    assert written == set(registry.AUTOGRAD_FUNCTIONS)


@pytest.mark.parametrize("room", ROOMS)
def test_every_export_is_named_in_a_test(room):
    exported = set(importlib.import_module(f"manygp.{room}").__all__)
    text = "\n".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py"))
    assert {name for name in exported if name not in text} == set()


def test_everything_public_exists_and_is_documented():
    for module in modules():
        for name in getattr(module, "__all__", ()):
            assert hasattr(module, name), f"{module.__name__}.{name}"
        own = {name: part for name, part in vars(module).items() if getattr(part, "__module__", "") == module.__name__}
        exported = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
        for name, part in {**own, **exported}.items():
            is_public = callable(part) and not name.startswith("_")
            assert inspect.getdoc(part) or not is_public, f"{module.__name__}.{name}"
