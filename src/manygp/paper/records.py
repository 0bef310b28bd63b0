"""Records of runs: one JSON file each, written whole or not at all."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manygp.errors import DataError

METRICS = ("test_mse", "test_nll", "train_mse", "train_nll", "crps", "coverage50", "coverage90")
KEYS = (
    "dataset",
    "model",
    "preset",
    "seed",
    "settings",
    "metrics",
    "train_seconds",
    "cpu_seconds",
    "score_seconds",
    "epochs",
    "num_parameters",
    "peak_memory_mb",
    "versions",
    "commit",
    "sources",
    "machine",
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What is run: a model with settings on a data set with a seed.

    Two runs are the same if all of this is, whatever table asks for them.
    """

    dataset: str
    model: str
    preset: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name of the record's file without its ending."""
        text = json.dumps(plain(self.settings), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return f"{self.dataset}_{self.model}_{self.preset}_{digest}_{self.seed}"

    def path(self, folder: Path) -> Path:
        """Where its record is or will be."""
        return folder / f"{self.key}.json"

    @classmethod
    def of(cls, record: Record) -> "Run":
        """The run that a record is of."""
        return cls(*(record[name] for name in ("dataset", "model", "preset", "seed", "settings")))

    def matches(self, record: Record) -> bool:
        """Whether a record is of this run, the seed left aside."""
        own = {"dataset": self.dataset, "model": self.model, "preset": self.preset, "settings": plain(self.settings)}
        return all(record[name] == value for name, value in own.items())


def plain(value: Any) -> Any:
    """A value as JSON knows it: infinity becomes text, numpy numbers become numbers."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def write_record(path: Path, record: Record) -> None:
    """Write a record so that a reader, or a run that was killed, finds all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name for each run: what a killed process left behind is written over.
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("w") as stream:
        json.dump(plain(record), stream, indent=1)
        stream.write("\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Hold a record while its run is under way, and tell whether no other process does.

    The system lets go of what a killed process held. Without file locks everybody holds everything.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except OSError:
            yield False
            return
        try:
            # A file that its last holder has removed is nobody's claim.
            yield lock.exists() and os.path.samestat(os.fstat(stream.fileno()), lock.stat())
        finally:
            lock.unlink(missing_ok=True)


def read_record(path: Path) -> Record:
    """Read a record."""
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is no JSON record of a run; remove it and run again.") from error
    missing = [key for key in KEYS if key not in record]
    if missing:
        raise DataError(f"{path} lacks {missing[0]!r}, which every record has; remove it and run again.")
    return record


def read_records(folder: Path) -> Iterator[Record]:
    """All records of a folder, in the order of their names."""
    for path in sorted(folder.glob("*.json")):
        yield read_record(path)
