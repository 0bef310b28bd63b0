"""Packages that only some users need: one sentence where one is missing."""

import importlib
from typing import Any

from manygp.errors import ManyGPError

__all__ = ["need"]


def need(module: str, extra: str, user: str) -> Any:
    """Return an optional package, which an extra of ManyGP brings; an error says what the `user` of it is."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ManyGPError(
            f"{user} needs {module}, which is not installed; install it with: pip install 'manygp[{extra}]'."
        ) from error
