"""Replaces an object of a store on the condition that nobody has changed it meanwhile.

pyarrow cannot send such conditions. obstore sends `If-None-Match` for an object that does not
exist, and the ETag or the generation of one that does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from batchinference.pipeline.errors import shown
from batchinference.pipeline.storage.object_stores import store_for_conditions

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import AzureStore, GCSStore, S3Store

    from batchinference.spec.storage import Storage

Change = Callable[[bytes | None], bytes]
"""Returns the new content of a file from its present content, which is None if it does not exist.
Raises an exception if the file must not be changed."""
ROUNDS = 4
"""How often a refused put is repeated if the object has not changed for `Change`."""
_DENIED = re.compile(r"status code: (401|403|501)\b")
_NOT_IMPLEMENTED = re.compile(r"status code: 501\b")


class _NotOffered(Exception):
    """The store does not offer conditional puts, or not with the credentials that obstore finds."""


def update_object(scheme: str, path: str, storage: Storage, change: Change) -> bool:
    """Replace the content of an object by `change` of it, and return True. Return False if the
    store does not offer that, or not with the credentials that obstore finds. Raises OSError if the
    store does not respond.

    A put whose response was lost is refused when it is repeated. `change` then gets the new
    content, and should return it unchanged."""
    bucket, _, key = path.partition("/")
    try:
        store = _opened(scheme, bucket, storage)
        return any(_is_updated(store, key, change) for _ in range(ROUNDS))
    except _NotOffered:
        return False


def _opened(scheme: str, bucket: str, storage: Storage) -> S3Store | GCSStore | AzureStore:
    from obstore.exceptions import BaseError

    try:
        store = store_for_conditions(scheme, bucket, storage)
    except BaseError:
        store = None  # pyarrow may be able to read the credentials, or reports the error
    if store is None:
        raise _NotOffered
    return store


def _is_updated(store: S3Store | GCSStore | AzureStore, key: str, change: Change) -> bool:
    """Change the content of an object. Return False if another process has changed it meanwhile."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    with _storage_errors(_DENIED):  # pyarrow may find other credentials
        try:
            before, version = _read(store, key)
        except ValueError:
            raise _NotOffered from None  # an empty part of the key, or one like `..`
    if (after := change(before)) == before:
        return True
    with _storage_errors(_NOT_IMPLEMENTED):
        try:
            store.put(key, after, mode=version, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
    return True


@contextmanager
def _storage_errors(not_offered: re.Pattern[str]) -> Iterator[None]:
    """Convert errors of obstore, and that there is no bucket, into an OSError with a short message,
    or into _NotOffered if they match."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise OSError("The specified bucket does not exist") from None
    except BaseError as error:
        message = str(error).partition("\n")[0]
        raise _NotOffered if not_offered.search(message) else OSError(shown(message)) from None


def _read(
    store: S3Store | GCSStore | AzureStore, key: str
) -> tuple[bytes | None, UpdateVersion | Literal["create"]]:
    """Return the content of an object, and the condition that it has not changed."""
    try:
        found = store.get(key)
    except FileNotFoundError:
        return None, "create"
    names: tuple[Literal["e_tag"], Literal["version"]] = ("e_tag", "version")
    version: UpdateVersion = {}
    for name in names:
        if (value := found.meta[name]) is not None:
            version[name] = value
    return bytes(found.bytes()), version
