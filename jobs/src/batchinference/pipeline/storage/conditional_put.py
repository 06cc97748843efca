"""Replaces an object in a store only if nobody has changed it since it was read (compare-and-swap).

obstore sends such conditional puts; pyarrow cannot. For a new object, the put has the condition
`If-None-Match`. For an existing object, it has the ETag or the generation that was read."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from batchinference.pipeline.errors import redact
from batchinference.pipeline.storage.object_stores import obstore_bucket

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import AzureStore, GCSStore, S3Store

    from batchinference.spec.storage import Storage

_Condition: TypeAlias = "UpdateVersion | Literal['create']"
Change = Callable[[bytes | None], bytes]
"""A function that gets the content of a file (None if it does not exist) and returns the new
content. Raises an exception if the file must not be changed."""
Check = Callable[[], None]
"""A function that raises an exception if a file must not be written."""
Content = bytes | memoryview
CONNECTION_SECONDS, MIN_BYTES_PER_SECOND = 30, 1_000_000
"""The timeout of a request without a body, and the slowest transfer of a body that is accepted."""
MAX_PUT_BYTES = 5000 << 20
"""The largest object that S3 and Azure accept in one put. Only single puts have conditions."""
ROUNDS = 4
"""Maximum number of tries of a put. Before each try, the object is read again."""
_DENIED = re.compile(r"status code: (401|403|501)\b")
_NOT_IMPLEMENTED = re.compile(r"status code: 501\b")


class _NotOffered(Exception):
    """The store does not offer conditional puts, or obstore cannot access it."""


def update_object(scheme: str, path: str, storage: Storage, change: Change) -> bool:
    """Replace the content of an object by the result of `change`, and return True. Return False if
    the store does not offer conditional puts, or if obstore cannot access it. Raises OSError if the
    store does not respond, and after ROUNDS refused puts.

    If the response to a put is lost, the put is repeated and refused. `change` then gets the
    content that it returned before, and should return the same content again."""
    return _put_conditionally(scheme, path, storage, partial(_try_update, change=change))


def put_object(scheme: str, path: str, storage: Storage, content: Content, check: Check) -> bool:
    """Put an object if nobody has changed it since `check`, which may raise an exception. Return
    and raise as `update_object` does. Also return False if the object is too large for one put."""
    if len(content) > MAX_PUT_BYTES:
        return False
    timeout = CONNECTION_SECONDS + len(content) // MIN_BYTES_PER_SECOND
    put = partial(_try_put, content=content, check=check)
    return _put_conditionally(scheme, path, storage, put, timeout)


def _put_conditionally(
    scheme: str,
    path: str,
    storage: Storage,
    try_put: Callable[[S3Store | GCSStore | AzureStore, str], bool],
    timeout: int = CONNECTION_SECONDS,
) -> bool:
    """Call `try_put` until it returns True. Return and raise like `update_object`."""
    from obstore.exceptions import BaseError

    bucket, _, key = path.partition("/")
    try:
        store = obstore_bucket(scheme, bucket, storage, timeout=timeout)
    except BaseError:
        return False  # pyarrow may be able to read the credentials, or reports the error
    try:
        if store is None:
            return False
        if any(try_put(store, key) for _ in range(ROUNDS)):
            return True
    except _NotOffered:
        return False
    raise BlockingIOError(
        errno.EAGAIN,
        f"write.path: the store has refused {ROUNDS} puts of '{path}', as if the object had "
        "changed after each read. Use a store with strong consistency",
    )


def _try_update(store: S3Store | GCSStore | AzureStore, key: str, change: Change) -> bool:
    """Replace the content of an object by `change` of the content, and return True. Return False
    if another process has changed the object since it was read."""
    before, condition = _read(store, key)
    if (after := change(before)) == before:
        return True
    return _put(store, key, after, condition)


def _try_put(
    store: S3Store | GCSStore | AzureStore, key: str, content: Content, check: Check
) -> bool:
    """Put an object after `check`, and return True. Return False if another process has changed
    the object meanwhile."""
    _, condition = _read(store, key, head=True)
    check()
    return _put(store, key, content, condition)


def _put(
    store: S3Store | GCSStore | AzureStore, key: str, content: Content, condition: _Condition
) -> bool:
    """Put an object, and return True. Return False if the condition is not met."""
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    with _storage_errors(_NOT_IMPLEMENTED):
        try:
            store.put(key, content, mode=condition, use_multipart=False)
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
    store: S3Store | GCSStore | AzureStore, key: str, *, head: bool = False
) -> tuple[bytes | None, _Condition]:
    """Return the content of an object, and the condition of a put that replaces only this version.
    With `head`, the content is not read."""
    with _storage_errors(_DENIED):  # pyarrow may find other credentials
        try:
            result = store.get(key, options={"head": head})
            content = None if head else bytes(result.bytes())
        except FileNotFoundError:
            return None, "create"
        except ValueError:
            raise _NotOffered from None  # the key has an empty part, or a part such as `..`
    known = {"e_tag": result.meta["e_tag"], "version": result.meta["version"]}
    version = {name: value for name, value in known.items() if value is not None}
    return content, cast("UpdateVersion", version)
