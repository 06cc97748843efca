"""Counts calls of the product."""

from typing import Any
from unittest.mock import patch


def counted(owner: Any, name: str) -> Any:
    """Return a context in which the calls of a method or function are recorded as a mock does."""
    return patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))
