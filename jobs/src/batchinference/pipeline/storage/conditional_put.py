"""Replaces an object of a store on the condition that nobody has changed it meanwhile.

pyarrow cannot send such conditions. obstore sends `If-None-Match` for an object that does not
exist, and the ETag or the generation of one that does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
_NOT_IMPLEMENTED = "status code: 501"
_UNAVAILABLE = re.compile(r"status code: (429|500|502|503|504)")


def update_object(scheme: str, path: str, storage: Storage, change: Change) -> bool:
    """Replace the content of an object by `change` of it, and return True. Return False if the
    store does not offer that, or not with the credentials that obstore finds.

    A put whose response was lost is refused when it is repeated. `change` then gets the new
    content, and should return it unchanged."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    bucket, _, key = path.partition("/")
    for _ in range(ROUNDS):
        try:
            store = store_for_conditions(scheme, bucket, storage)
            if store is None:
                return False
            before, version = _read(store, key)
        except BaseError as error:
            if _UNAVAILABLE.search(str(error)):
                raise _storage_error(error) from None
            return False  # pyarrow may find other credentials, or reports the error
        after = change(before)
        if after == before:
            return True
        try:
            store.put(key, after, mode=version, use_multipart=False)
            return True
        except (AlreadyExistsError, PreconditionError):
            continue
        except BaseError as error:
            if _NOT_IMPLEMENTED in str(error):
                return False
            raise _storage_error(error) from None
    return False


def _storage_error(error: Exception) -> OSError:
    return OSError(shown(str(error).partition("\n")[0]))


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
