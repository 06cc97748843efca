"""The hashes of the code and of the models with which an output was begun, in `code.json`."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter

from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.json import (
    START_OVER,
    dump_checksummed,
    load_json,
    verify_checksum,
)
from batchinference.pipeline.storage.location import Location

SCHEME = 2
"""The version of the hashing scheme. Earlier releases stored no version. They hashed other samples
of model files, and did not hash constructorRefs and constructorArgs. If the versions differ, only
hashes that both compute in the same way are compared."""
OTHER_FILES, NOT_COMPARED = "other files", "not compared"
"""The end of the key and the value of an entry without a hash: some files of a constructor argument
could not be read, or there were too many."""
_FILE = ": file "
"""Part of the key of each model file."""
_ARGUMENT = ".constructorArgs."
"""Part of the key of each constructor argument."""
_CODE = TypeAdapter(dict[str, str])


def write_code(place: Location, code: Mapping[str, str]) -> None:
    """Store the hashes of the code and of the models with which an output is begun."""
    place.write(dump_checksummed({"scheme": SCHEME, "code": dict(code)}))


def parse_code(content: bytes) -> dict[str, str]:
    """Return stored hashes. Raises ValueError if they are damaged."""
    verify_checksum(content)
    try:
        return _CODE.validate_python(load_json(content)["code"], strict=True)
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no hashes") from error


def changed_code(place: Location, code: Mapping[str, str]) -> str:
    """Return a message if the stored hashes differ from `code`; empty if they do not, or if an
    earlier version has stored none. Raises BadOutput if they are damaged."""
    try:
        content = place.read()
        stored = parse_code(content)
    except FileNotFoundError:
        return ""
    except ValueError:
        raise BadOutput(
            f"'{place.uri}' is damaged, so it is unknown whether the code has changed. Remove the "
            f"file to continue with the current code, or {START_OVER}"
        ) from None
    if load_json(content).get("scheme") != SCHEME:
        stored = {name: value for name, value in stored.items() if _FILE not in name}
        code = {name: value for name, value in code.items() if name in stored}
    names = [name for name in stored | dict(code) if _is_changed(name, stored, code)]
    if not names:
        return ""
    before, now = (hashes.get(names[0], "none")[:8] for hashes in (stored, code))
    more = f", and so did {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]} changed since the output was begun (from {before} to {now}){more}"


def _is_changed(name: str, stored: Mapping[str, str], code: Mapping[str, str]) -> bool:
    """Return whether a hash differs. Of constructor arguments, only files that were hashed when the
    output was begun are compared, because a step may download or add other files."""
    before, now = stored.get(name), code.get(name)
    if before == now or NOT_COMPARED in (before, now):
        return False
    where, of_file, _ = name.partition(_FILE)
    if not (of_file and _ARGUMENT in where):
        return True
    is_unknown = now is None and f"{where}: {OTHER_FILES}" in code
    return before is not None and not is_unknown
