"""Model folders on disk: two files that are replaced as one, and checked before anything in them is believed.

`manygp.json` names the file of tensors and holds digests of both. A save writes new tensors under a name of their own
and then renames a new `manygp.json` over the old one: that rename is the only moment at which the model changes.
Checkpoints are folders like these whose manifest has another name.
"""

import hashlib
import json
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from manygp.data.files import sync
from manygp.errors import ModelFileError

FORMAT = 3
_MANIFEST, CHECKPOINT = "manygp.json", "checkpoint.json"
_KINDS = {_MANIFEST: "model", CHECKPOINT: "checkpoint"}
_TENSORS = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
_TEMPORARY = re.compile(r"\.manygp-[0-9a-f]{32}\.tmp")
# Files that systems put into folders by themselves.
_OF_THE_SYSTEM = re.compile(r"\.nfs.*|\.DS_Store")
# Names of a million outputs take some tens of millions of characters.
_MOST_TEXT = 2**28
# How long a save waits for another one, in seconds, and how old a file is that no save is still writing.
_PATIENCE, _STALE = 30.0, 3600.0


def model_path(path: Any) -> Path:
    """The folder that a user means, with symbolic links followed."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ModelFileError(f"{path!r} is no path: give the name of a folder as text.")
    try:
        if not os.fspath(path):
            raise ValueError("it is empty")
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
    except (OSError, ValueError) as error:
        shown = repr(os.fspath(path))
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        raise ModelFileError(f"{shown} cannot be the name of a folder ({reason(error)}): give another one.") from error
    return Path(path)


# -- writing -----------------------------------------------------------------------------------------------------------


def check_target(path: Path, overwrite: bool = False, name: str = _MANIFEST) -> None:
    """Refuse a folder in which something else would have to make way for a model, or stands beside it.

    With `overwrite`, a folder may hold files of others, which stay as they are. `name` is that of the manifest.
    """
    folder = Path(os.path.realpath(path))
    try:
        names = {entry.name for entry in os.scandir(folder)}
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        if not os.path.lexists(folder):
            return
        raise ModelFileError(f"{path} exists and is not a ManyGP model, nor a folder: choose another name.") from error
    except OSError as error:
        raise ModelFileError(f"{path} cannot be looked into ({reason(error)}).") from error
    if overwrite:
        return
    current = _named_tensors(folder, name)
    if name in names and current is None:
        raise ModelFileError(
            f"{path} holds a {name} that this version cannot read: choose another folder, or pass overwrite=True "
            "to replace it."
        )
    others = sorted(other for other in names if not _is_ours(other, name, current))
    if others:
        some = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
        kind = _KINDS[name]
        what = f"exists and is not a ManyGP {kind}" if current is None else f"holds other files beside its {kind}"
        raise ModelFileError(
            f"{path} {what} ({some}): choose another folder, or pass overwrite=True to write among them."
        )


def write_folder(
    path: Path, manifest: dict[str, Any], tensors: bytes, overwrite: bool = False, name: str = _MANIFEST
) -> None:
    """Write a model to a folder; a reader at any moment, or after a crash, finds the old one or the new one."""
    check_target(path, overwrite, name)
    folder, digest = Path(os.path.realpath(path)), hashlib.sha256(tensors).hexdigest()
    file = f"tensors-{digest[:16]}.safetensors"
    manifest = manifest | {"tensors": {"file": file, "bytes": len(tensors), "sha256": digest}}
    is_new = not folder.exists()
    try:
        text = _as_text(manifest | {"sha256": _digest(manifest)})
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder) as is_alone:
            _switch(folder, (name, text), (file, tensors), 0.0 if is_alone else _STALE)
        sync(folder.parent)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"The {_KINDS[name]} could not be written to {path} ({reason(error)}); nothing there was changed."
        ) from error
    finally:
        if is_new:
            # Goes only if it is empty.
            with suppress(OSError):
                folder.rmdir()


def remove_folder(path: Path, name: str) -> None:
    """Remove the files of a folder with such a manifest, and the folder if nothing else is in it."""
    folder = Path(os.path.realpath(path))
    current = _named_tensors(folder, name)
    if current is None:
        return
    with suppress(OSError):
        # Without a manifest the rest is litter.
        (folder / name).unlink()
        (folder / current).unlink()
        folder.rmdir()


def _switch(folder: Path, manifest: tuple[str, bytes], tensors: tuple[str, bytes], age: float) -> None:
    """Write new files, let the manifest name them, and remove those of earlier saves that have at least this age."""
    (name, text), (file, content) = manifest, tensors
    old, was_there = _named_tensors(folder, name), (folder / file).exists()
    try:
        _put(folder / file, content)
        # A manifest may be a link into a store of files.
        _put(Path(os.path.realpath(folder / name)), text)
    except BaseException:
        if not was_there and _named_tensors(folder, name) != file:
            (folder / file).unlink(missing_ok=True)
        raise
    with suppress(OSError):
        current, now = _named_tensors(folder, name), time.time()
        for entry in list(os.scandir(folder)):
            is_litter = entry.name == old or _TEMPORARY.fullmatch(entry.name) or _TENSORS.fullmatch(entry.name)
            if is_litter and entry.name != current and now - entry.stat(follow_symlinks=False).st_mtime >= age:
                os.unlink(entry.path)


def _put(target: Path, content: bytes) -> None:
    """Let a file have this content, which is on the disk before the file has it."""
    temporary = target.parent / f".manygp-{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync(target.parent)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """One save in a folder at a time; tells whether that can be guaranteed. A lock ends with its process."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    handle, deadline, is_alone = os.open(folder, os.O_RDONLY), time.monotonic() + _PATIENCE, False
    try:
        while not is_alone and time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_alone = True
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield is_alone
    finally:
        os.close(handle)


def _is_ours(file: str, name: str, current: str | None) -> bool:
    """Whether a file belongs to a folder whose manifest has this name, or is one that the system has put there."""
    patterns = (_TENSORS, _TEMPORARY, _OF_THE_SYSTEM)
    return file in (name, current) or any(pattern.fullmatch(file) for pattern in patterns)


def _named_tensors(folder: Path, name: str) -> str | None:
    """The file of tensors that the manifest of a folder names; None if there is no manifest of ours."""
    try:
        return _tensors_entry(_parse(_read(folder / name, _MOST_TEXT)))["file"]
    except (OSError, ValueError):
        return None


# -- reading -----------------------------------------------------------------------------------------------------------


def read_folder(path: Path, name: str = _MANIFEST) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The manifest and the tensors of a model, which belong together and are as they were written."""
    if not path.is_dir():
        raise ModelFileError(f"{path} is not a folder: give the folder that save() wrote.")
    seen = None
    while True:
        try:
            text = _read(path / name, _MOST_TEXT)
            manifest = _parse(text)
        except FileNotFoundError as error:
            raise ModelFileError(f"{path} is not a ManyGP {_KINDS[name]}: it has no {name}.") from error
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path / name} cannot be read ({reason(error)}).") from error
        try:
            return manifest, _read_tensors(path, manifest)
        except FileNotFoundError as error:
            # A save may have come between the two reads; then there is another manifest now.
            if text == seen:
                raise ModelFileError(f"{path} is damaged: its file of tensors is missing.") from error
            seen = text
        except (OSError, ValueError, LookupError, SafetensorError) as error:
            raise ModelFileError(f"{path} is damaged and cannot be loaded ({reason(error)}).") from error


def _read_tensors(folder: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    entry = _tensors_entry(manifest)
    if manifest.get("sha256") != _digest(manifest):
        raise ValueError("its manifest is not as it was written")
    content = _read(folder / entry["file"], entry.get("bytes"), exactly=True)
    if "sha256" in entry and hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise ValueError("the tensors are not as they were written")
    return load(content)


def _tensors_entry(manifest: dict[str, Any]) -> dict[str, Any]:
    """What a manifest says of its tensors: file, bytes and digest."""
    entry = manifest.get("tensors")
    if not isinstance(entry, dict) or set(entry) != {"file", "bytes", "sha256"}:
        raise ValueError("it does not say where its tensors are")
    if not isinstance(entry["file"], str) or not _TENSORS.fullmatch(entry["file"]) or type(entry["bytes"]) is not int:
        raise ValueError("it names a file that is not a model's")
    return entry


def _read(path: Path, size: int | None, exactly: bool = False) -> bytes:
    """The content of a regular file of at most, or exactly, so many bytes: no pipe, no device, no surprise."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if size is not None and (status.st_size != size if exactly else status.st_size > size):
            raise ValueError(f"{path.name} has {status.st_size} bytes instead of {'' if exactly else 'up to '}{size}")
        return file.read(status.st_size)


def _parse(text: bytes) -> dict[str, Any]:
    """JSON of one of our formats, with finite numbers only."""
    try:
        manifest = json.loads(text.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(manifest, dict) or "format" not in manifest or "estimator" not in manifest:
        raise ValueError("it does not describe a model")
    version = manifest["format"]
    if type(version) is not int or version != FORMAT:
        is_old = type(version) is int and 0 < version < FORMAT
        raise ValueError(
            f"it was written by ManyGP {str(manifest.get('manygp'))[:20]!r} in format {str(version)[:20]}, and this "
            f"version knows format {FORMAT}: {'fit it again' if is_old else 'upgrade ManyGP to load it'}"
        )
    return manifest


def _finite(text: str) -> float:
    number = float(text)
    if not abs(number) < float("inf"):
        raise ValueError(f"{text} is not a finite number")
    return number


def _digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of all that a manifest says, but for the digest itself; spaces and order do not count."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _as_text(manifest: dict[str, Any]) -> bytes:
    text = (json.dumps(manifest, indent=2, allow_nan=False) + "\n").encode()
    if len(text) > _MOST_TEXT:
        raise ValueError(f"its description has {len(text)} bytes, and {_MOST_TEXT} can be read back")
    return text


def reason(error: BaseException) -> str:
    """An error in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).splitlines() or [type(error).__name__])[0]
