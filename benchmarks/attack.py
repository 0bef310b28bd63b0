"""An attack on the library: strange calls, command lines and tables, changed folders, kills in the middle of a save.

`python -m benchmarks.attack [--quick] [--seed 0]` tries a bounded number of each, the same ones for the same seed, and
prints a line for each kind: how many were tried and how many held. What does not hold is told in a line of its own. To
hold means: an answer that is finite, or an error of ours in one sentence; in seconds, with the memory of a small model;
and the model that was there, or the new one, never neither.
"""

import argparse
import copy
import hashlib
import itertools
import json
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as as_bytes

import manygp
from benchmarks.strange_data import command_lines, strange_tables
from manygp.estimators import ESTIMATORS, Estimator, folders, persistence

KINDS = ("calls", "lines", "tables", "folders", "kills", "readers", "writers")
# Seconds of CPU and of waiting that one attempt may take, and what an attacker may put where something else should be.
_PATIENCE, _WAITING = 20.0, 300.0
_STRANGE: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 7, 10**8, 10**9, 10**18, 2**63, -0.5, 0.5, 1e-300, 1e300, 1e308),
    *("", "auto", "rbf", "x" * 300, "a\0b", [], [1, 2], [[1.0]], {}, {"float": "nan"}, {"float": "inf"}),
    *({"tensor": "model.gp.Z"}, {"tuple": [1, 2]}, {"module": "Linear"}, {"tuple": 3}),
)


@dataclass
class Tried:
    """How many attempts there were, and what happened in those that did not hold."""

    name: str
    count: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Attempts that held."""
        return self.count - len(self.failures)

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Try something, which may answer or refuse."""
        self.count += 1
        before = [signal.signal(kind, _too_long) for kind in (signal.SIGPROF, signal.SIGALRM)]
        signal.setitimer(signal.ITIMER_PROF, _PATIENCE)
        signal.setitimer(signal.ITIMER_REAL, _WAITING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action()
        except manygp.ManyGPError as error:
            if "\n" in str(error) or len(str(error)) > 1000:
                self.failures.append(f"{what}: not one sentence, {str(error)[:80]!r}")
        except Exception as error:  # whatever else comes out is what is looked for
            self.failures.append(f"{what}: {type(error).__name__}, {str(error)[:80]!r}")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGPROF, before[0])
            signal.signal(signal.SIGALRM, before[1])

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.count} tried, {self.held} held", *(f"  {one}" for one in self.failures)])


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {_PATIENCE:.0f} s of work, or {_WAITING:.0f} s in all")


def table(rows: int = 12, outputs: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """A small table with a gap."""
    x = np.linspace(0.0, 1.0, rows)[:, None]
    Y = np.sin(5.0 * x + np.arange(outputs)) + 0.01 * np.cos(40.0 * x)
    Y[1, 0] = np.nan
    return x, Y


def small(name: str, **settings: Any) -> Estimator:
    """An estimator that fits the small table in a moment."""
    kind = ESTIMATORS[name]
    known = kind().get_params()
    quick = {"epochs": 1, "num_inducing": 5, "latent_dim": 1, "num_latents": 1, "num_samples": 3, "progress": False}
    return kind(**{key: value for key, value in quick.items() if key in known} | {"device": "cpu"} | settings)


# -- calls -------------------------------------------------------------------------------------------------------------


def calls(count: int, seed: int = 0) -> Tried:
    """Settings that nobody would choose, and numbers of draws that no memory holds."""
    rng, tried, (X, Y) = np.random.default_rng(seed), Tried("strange calls"), table()
    strange = [value for value in _STRANGE if not isinstance(value, dict)]
    strange += [math.nan, math.inf, np.int64(3), np.array([1.0, 2.0]), object(), 1j, b"a"]
    places = [(name, key) for name in ESTIMATORS for key in sorted(ESTIMATORS[name]().get_params())]
    for index in rng.permutation(len(places) * len(strange))[:count]:
        (name, key), value = places[index // len(strange)], strange[index % len(strange)]
        if key == "epochs" and type(value) is int:
            # As many as asked for, however long it takes.
            value = min(value, 3)

        def fit(name: str = name, key: str = key, value: Any = value) -> None:
            mean, std = small(name, **{key: value}).fit(X, Y).predict(X, return_std=True)
            _check_finite(mean, std)

        tried.attempt(f"{name}, {key}={str(value)[:30]!r}", fit)
    fitted = small("ind-gp").fit(X, Y)
    for n in (0, -1, 1000, 10**9, 10**18, 1.5, None, "3"):
        tried.attempt(f"sample({n!r})", lambda n=n: _check_finite(fitted.predict_dist(X).sample(n)))
    for path in (None, 3, b"m", "", "a\0b", "x" * 9999, "/proc/nothing/here", "/dev/null"):
        tried.attempt(f"save({str(path)[:20]!r})", lambda path=path: fitted.save(path))
        tried.attempt(f"load({str(path)[:20]!r})", lambda path=path: _check_finite(manygp.load(path).predict(X)))
    return tried


def _check_finite(*arrays: Any) -> None:
    for array in arrays:
        if not np.isfinite(array).all():
            raise ArithmeticError("an answer that is not finite")


def lines(count: int, seed: int = 0) -> Tried:
    """Commands on files of all kinds."""
    tried = Tried("command lines")
    command_lines(count, seed, tried.attempt)
    return tried


def tables(count: int, seed: int = 0) -> Tried:
    """Tables that nobody would make."""
    tried = Tried("strange tables")
    strange_tables(count, seed, small, tried.attempt)
    return tried


# -- folders that somebody has changed ---------------------------------------------------------------------------------


def mutations(count: int, seed: int = 0) -> Tried:
    """Bits flipped by chance, and values changed by somebody who sets the digests right again."""
    rng, tried, (X, Y) = np.random.default_rng(seed), Tried("changed folders"), table()
    changes = (_flip_bits, _change_manifest, _change_tensors)
    with tempfile.TemporaryDirectory() as place:
        models = []
        for name in ESTIMATORS:
            folder = Path(place) / name
            small(name).fit(X, Y).save(folder)
            models.append((folder, {path.name: path.read_bytes() for path in folder.iterdir()}))
        for i in range(count):
            folder, files = models[i % len(models)]
            for path in folder.iterdir():
                path.unlink()
            for name, content in files.items():
                (folder / name).write_bytes(content)
            what = changes[int(rng.integers(len(changes)))](folder, rng)
            tried.attempt(f"{folder.name}, {what}", lambda folder=folder: _check_finite(manygp.load(folder).predict(X)))
    return tried


def _flip_bits(folder: Path, rng: np.random.Generator) -> str:
    path = sorted(folder.iterdir())[int(rng.integers(2))]
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    return f"bits of {path.name}"


def _change_manifest(folder: Path, rng: np.random.Generator) -> str:
    manifest = json.loads((folder / "manygp.json").read_text())
    places = [place for place in _places(manifest) if place[0] not in ("sha256", "tensors")]
    place = places[int(rng.integers(len(places)))]
    value = copy.deepcopy(_STRANGE[int(rng.integers(len(_STRANGE)))])
    parent = manifest
    for key in place[:-1]:
        parent = parent[key]
    if rng.random() < 0.1:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    _sign(folder, manifest)
    return f"{'.'.join(map(str, place))}={str(value)[:30]!r}"


def _places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Ways to all values of nested objects and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in items for place in ((*above, key), *_places(part, (*above, key)))]


def _change_tensors(folder: Path, rng: np.random.Generator) -> str:
    manifest, tensors = folders.read_folder(folder)
    name = sorted(tensors)[int(rng.integers(len(tensors)))]
    kind = ("number", "shape", "dtype", "gone")[int(rng.integers(4))]
    value = tensors[name]
    if kind == "number" and value.numel():
        strange = (math.nan, math.inf, -math.inf, 1e308, -1e308, 0.0, -1.0)[int(rng.integers(7))]
        chosen = int(rng.integers(value.numel()))
        value.view(-1)[chosen] = strange if value.is_floating_point() else int(rng.integers(-(2**40), 2**40))
    elif kind == "shape":
        tensors[name] = torch.zeros(*value.shape, 2, dtype=value.dtype)
    elif kind == "dtype":
        tensors[name] = value.to(torch.float16 if rng.random() < 0.5 else torch.int64)
    else:
        del tensors[name]
    content = as_bytes(tensors)
    digest = hashlib.sha256(content).hexdigest()
    (folder / manifest["tensors"]["file"]).unlink()
    file = f"tensors-{digest[:16]}.safetensors"
    (folder / file).write_bytes(content)
    _sign(folder, manifest | {"tensors": {"file": file, "bytes": len(content), "sha256": digest}})
    return f"{kind} of {name}"


def _sign(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "manygp.json").write_text(json.dumps(manifest | {"sha256": folders._digest(manifest)}))


# -- kills, readers and writers ----------------------------------------------------------------------------------------


def kills(count: int, seed: int = 0) -> Tried:
    """`kill -9` at a random moment of a save: the old model or the new one is there, and the next save tidies up."""
    rng, tried, models = np.random.default_rng(seed), Tried("kills during a save"), _two_models()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        folders.write_folder(folder, *models[0])
        for _ in range(count):
            child = _forked(lambda: _write_for_ever(folder, models))
            time.sleep(float(rng.uniform(0.005, 0.05)))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            tried.attempt("load after a kill", lambda: _check_one_of(folder, models))
            folders.write_folder(folder, *models[0])
            tried.attempt("tidy after a kill", lambda: _check_tidy(folder))
    return tried


def readers(count: int) -> Tried:
    """Somebody loads a model that somebody else is writing."""
    tried, models = Tried("loads beside a save"), _two_models()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        folders.write_folder(folder, *models[0])
        child = _forked(lambda: _write_for_ever(folder, models))
        for _ in range(count):
            tried.attempt("load", lambda: _check_one_of(folder, models))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return tried


def writers(count: int) -> Tried:
    """Two write to one folder."""
    tried, models = Tried("saves beside a save"), _two_models()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        child = _forked(lambda: _write_for_ever(folder, models))
        for model in itertools.islice(itertools.cycle(models), count):
            tried.attempt("save", lambda model=model: folders.write_folder(folder, *model))
            tried.attempt("load", lambda: _check_one_of(folder, models))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        folders.write_folder(folder, *models[0])
        tried.attempt("tidy", lambda: _check_tidy(folder))
    return tried


def _two_models() -> list[tuple[dict[str, Any], bytes]]:
    X, Y = table()
    described = [persistence._describe(small("ind-gp").fit(X, sign * Y)) for sign in (1.0, -1.0)]
    return [(manifest, as_bytes(tensors)) for manifest, tensors in described]


def _write_for_ever(folder: Path, models: list[tuple[dict[str, Any], bytes]]) -> None:
    for model in itertools.cycle(models):
        folders.write_folder(folder, *model)


def _forked(work: Callable[[], None]) -> int:
    """Do something in a process of its own; returns its id."""
    with warnings.catch_warnings():
        # Newer Pythons warn of threads, of which the child uses none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return child


def _check_one_of(folder: Path, models: list[tuple[dict[str, Any], bytes]]) -> None:
    manifest, tensors = folders.read_folder(folder)
    kept = {key: value for key, value in manifest.items() if key not in ("tensors", "sha256")}
    if not any(kept == json.loads(json.dumps(known)) and as_bytes(tensors) == content for known, content in models):
        raise AssertionError("neither the old model nor the new one")


def _check_tidy(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    if len(names) != 2:
        raise AssertionError(f"left behind: {names}")


def main(arguments: list[str] | None = None) -> int:
    """Attack; returns the number of attempts that did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="kinds of attempts")
    options = parser.parse_args(arguments)
    share, bad = 10 if options.quick else 1, 0
    for kind, attack in zip(KINDS, _attacks(share, options.seed), strict=True):
        if kind not in options.only:
            continue
        tried = attack()
        print(tried, flush=True)
        bad += len(tried.failures)
    return bad


def _attacks(share: int, seed: int) -> list[Callable[[], Tried]]:
    """What is attempted, in the order of `KINDS`, each to a share."""
    return [
        lambda: calls(500 // share, seed),
        lambda: lines(300 // share, seed),
        lambda: tables(500 // share, seed),
        lambda: mutations(3000 // share, seed),
        lambda: kills(30 // min(share, 3), seed),
        lambda: readers(1000 // share),
        lambda: writers(500 // share),
    ]


if __name__ == "__main__":
    sys.exit(min(main(), 1))
