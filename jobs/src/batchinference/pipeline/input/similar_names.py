"""Finds files whose names differ only in their Unicode form: the warning SimilarNames."""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import normalize


def similar_names(paths: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Return the paths that equal another one of them, or one of `known`, except for their Unicode
    form: `é` is one character, or two on a disk of a Mac."""
    unique = [path for path in dict.fromkeys(paths) if not path.isascii()]
    forms: dict[str, set[str]] = {}
    for path in (*unique, *(path for path in known if not path.isascii())):
        forms.setdefault(normalize("NFC", path), set()).add(path)
    return [path for path in unique if len(forms[normalize("NFC", path)]) > 1]
