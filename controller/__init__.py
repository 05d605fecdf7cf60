from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """Of the installed package."""
    try:
        return _installed("reembed")
    except PackageNotFoundError:
        return "0 (not installed)"
