"""Packages that only some users need: one sentence where one is missing."""

import importlib
from typing import Any

from manygp.errors import ManyGPError

__all__ = ["need"]


def need(module: str, extra: str, user: str) -> Any:
    """Return an optional package.

    Parameters
    ----------
    module
        What to import.
    extra
        The extra of ManyGP that brings it.
    user
        What needs it, as the subject of a sentence.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ManyGPError(
            f"{user} needs {module}, which is not installed; install it with: pip install 'manygp[{extra}]'."
        ) from error
