"""Replaces an object in a store only if nobody has changed it since it was read (compare-and-swap).

pyarrow cannot send such conditional puts, but obstore can, with `If-None-Match` for an object that
does not exist, else the ETag or the generation that was read."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, cast

from batchinference.pipeline.errors import redact
from batchinference.pipeline.storage.object_stores import obstore_bucket

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import AzureStore, GCSStore, S3Store

    from batchinference.spec.storage import Storage

Change = Callable[[bytes | None], bytes]
"""Returns the new content of a file, given its current content (None if it does not exist). Raises
an exception if the file must not be changed."""
ROUNDS = 4
"""Maximum number of refused puts. After each one, `change` gets the new content, and may raise."""
_DENIED = re.compile(r"status code: (401|403|501)\b")
_NOT_IMPLEMENTED = re.compile(r"status code: 501\b")


class _NotOffered(Exception):
    """The store does not offer conditional puts, or obstore cannot access it."""


def update_object(scheme: str, path: str, storage: Storage, change: Change) -> bool:
    """Replace the content of an object by the result of `change`, and return True. Return False if
    the store does not offer conditional puts, or if obstore cannot access it. Raises OSError if the
    store does not respond, and after ROUNDS refused puts.

    If the response to a put is lost, the put is repeated, and the repetition is refused. Then
    `change` gets the content that it has returned before, and should return the same content."""
    from obstore.exceptions import BaseError

    bucket, _, key = path.partition("/")
    try:
        store = obstore_bucket(scheme, bucket, storage)
    except BaseError:
        return False  # pyarrow may be able to read the credentials, or reports the error
    try:
        if store is None:
            return False
        if any(_try_update(store, key, change) for _ in range(ROUNDS)):
            return True
    except _NotOffered:
        return False
    raise BlockingIOError(
        errno.EAGAIN,
        f"write.path: the store refuses conditional puts of '{path}', although reads return what "
        f"they compare with ({ROUNDS} times). Use a store with strong consistency",
    )


def _try_update(store: S3Store | GCSStore | AzureStore, key: str, change: Change) -> bool:
    """Replace the content of an object by `change` of the content, and return True. Return False
    if another process has changed the object since it was read."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    with _storage_errors(_DENIED):  # pyarrow may find other credentials
        try:
            before, version = _read(store, key)
        except ValueError:
            raise _NotOffered from None  # the key has an empty part, or a part such as `..`
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
    """Convert errors of obstore to OSError, or to _NotOffered if they match `not_offered`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise OSError("The specified bucket does not exist") from None
    except BaseError as error:
        message = str(error).partition("\n")[0]
        raise _NotOffered if not_offered.search(message) else OSError(redact(message)) from None


def _read(
    store: S3Store | GCSStore | AzureStore, key: str
) -> tuple[bytes | None, UpdateVersion | Literal["create"]]:
    """Return the content of an object, and the condition of a put that replaces this version."""
    try:
        result = store.get(key)
    except FileNotFoundError:
        return None, "create"
    known = {"e_tag": result.meta["e_tag"], "version": result.meta["version"]}
    version = {name: value for name, value in known.items() if value is not None}
    return bytes(result.bytes()), cast("UpdateVersion", version)
