"""The files behind the data sets: where they may be, where they come from, and whether they are whole."""

import hashlib
import logging
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from manygp.errors import DataError

logger = logging.getLogger("manygp")

_CHUNK_BYTES = 1 << 18
_TIMEOUT_SECONDS = 30

# Called with the bytes that have arrived and those expected, or None if the source does not say.
Report = Callable[[int, int | None], None]


@dataclass(frozen=True)
class DataFile:
    """A public file."""

    #: What it is called in the folder of the user's data and in the cache.
    name: str
    #: Where to download it, or None if its source asks for an account or a form.
    url: str | None
    #: Where it comes from and under what terms, for people to read.
    source: str
    #: Checksum; None if no copy has been seen: then that of the first copy used is recorded and holds from then on.
    sha256: str | None = None
    #: Whether the source replaces the file by longer ones, so that the checksum tells one version from others but not
    #: right from wrong.
    grows: bool = False


def cache_folder() -> Path:
    """The folder of downloaded files: `manygp` in XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "manygp"


def folders() -> list[Path]:
    """Folders to look in: that named by the environment variable MANYGP_DATA, then the cache."""
    own = os.environ.get("MANYGP_DATA")
    return [*([Path(own)] if own else []), cache_folder()]


def place(file: DataFile) -> Path | None:
    """Where a file is, or None if it is in none of the folders."""
    return next((folder / file.name for folder in folders() if (folder / file.name).is_file()), None)


def find(file: DataFile) -> Path:
    """The path of a file, downloaded to the cache if it is not there yet."""
    path = place(file) or download(file)
    if known_checksum(file) is None:
        digest = record_checksum(file)
        logger.warning("No checksum of %s is known; that of %s holds from now on: %s", file.name, path, digest)
    return path


def known_checksum(file: DataFile) -> str | None:
    """The checksum that a file should have: the known one, or that of the copy that was first used here."""
    note = _note(file)
    return file.sha256 or (note.read_text().split()[0] if note.is_file() else None)


def record_checksum(file: DataFile) -> str:
    """Write down the checksum of the copy that is here, to hold from now on."""
    path = place(file)
    assert path is not None
    digest = checksum(path)
    _note(file).parent.mkdir(parents=True, exist_ok=True)
    _note(file).write_text(f"{digest}  {file.name}\n")
    return digest


def _note(file: DataFile) -> Path:
    return cache_folder() / f"{file.name}.sha256"


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def state(file: DataFile) -> str:
    """Whether a file is "absent", "whole", "unchecked" (no checksum known yet), "another version" or "damaged"."""
    path = place(file)
    if path is None:
        return "absent"
    known = known_checksum(file)
    if known is None:
        return "unchecked"
    if checksum(path) == known:
        return "whole"
    return "another version" if file.grows else "damaged"


def download(file: DataFile, report: Report | None = None) -> Path:
    """Fetch a file into the cache, whole or not at all."""
    if file.url is None:
        raise DataError(f"{file.name} cannot be downloaded without an account; {_advice(file)}")
    target = cache_folder() / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream, urllib.request.urlopen(file.url, timeout=_TIMEOUT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            arrived = 0
            while chunk := answer.read(_CHUNK_BYTES):
                stream.write(chunk)
                arrived += len(chunk)
                if report is not None:
                    report(arrived, int(length) if length else None)
        if file.sha256 is not None and not file.grows and (came := checksum(temporary)) != file.sha256:
            raise DataError(
                f"{file.url} has the checksum {came[:12]}…, expected {file.sha256[:12]}…; the source has changed or "
                f"the download is damaged, so try again or {_advice(file)}"
            )
        temporary.replace(target)
    except (urllib.error.URLError, OSError) as error:
        if isinstance(error, DataError):
            raise
        reason = getattr(error, "reason", None) or error
        raise DataError(f"{file.name} could not be downloaded from {file.url} ({reason}); {_advice(file)}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _advice(file: DataFile) -> str:
    """Which file to put where."""
    own = os.environ.get("MANYGP_DATA")
    where = own if own else f"{cache_folder()} (or a folder that you name in MANYGP_DATA)"
    return f"put it as {file.name} into {where}; source: {file.source}."
