"""What a record depends on beside data and settings: a digest of the sources that its model is made of.

A record is stale if its digest is not that of today's sources. Unlike a commit it needs no git, counts changes that
were not committed, and leaves alone what changes elsewhere: comments, docstrings, and modules that the model's own does
not import.
"""

import ast
import hashlib
import importlib.util
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest_of(factory: Any) -> str | None:
    """Digest of the module that defines a model, and of all that it imports from its own package and this one.

    None if there is no file to read, as for what was typed into a notebook; a record without one is never stale.
    """
    module = inspect.getmodule(factory)
    if module is None or getattr(module, "__file__", None) is None:
        return None
    return _digest(module.__name__)


@cache
def _digest(module: str) -> str:
    packages = {__name__.partition(".")[0], module.partition(".")[0]}
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = None if name in found or name.partition(".")[0] not in packages else _path(name)
        if path is not None:
            found[name] = path
            waiting.extend(_imported(name, path))
    parts = (f"{name}\n{_code(path)}" for name, path in sorted(found.items()))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _imported(module: str, path: Path) -> Iterator[str]:
    """The modules behind what a module imports when it is loaded; what functions import is for leaves such as plots."""
    for node in _parsed(path).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if path.name == "__init__.py" else module.rpartition(".")[0]
            source = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (_home(source, alias.name) for alias in node.names)


def _home(module: str, name: str) -> str:
    """The module that defines what another imports from it: itself, one below it, or where its package has it from."""
    if _path(f"{module}.{name}") is not None:
        return f"{module}.{name}"
    path = _path(module)
    if path is not None and path.name == "__init__.py":
        for node in _parsed(path).body:
            if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
                return _home(importlib.util.resolve_name("." * node.level + (node.module or ""), module), name)
    return module


@cache
def _path(module: str) -> Path | None:
    """The file of a module, found without loading it."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    if spec.submodule_search_locations is None:
        return None if rest else Path(spec.origin)
    place = Path(spec.origin).parent.joinpath(*rest)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _code(path: Path) -> str:
    """A module's text without comments, docstrings and layout."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _DEFINITIONS) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
