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

_CODE = TypeAdapter(dict[str, str])


def write_code(place: Location, code: Mapping[str, str]) -> None:
    """Store the hashes of the code and of the models with which an output is begun."""
    place.write(dump_checksummed({"code": dict(code)}))


def parse_code(content: bytes) -> dict[str, str]:
    """Return stored hashes. Raises ValueError if they are damaged."""
    verify_checksum(content)
    try:
        return _CODE.validate_python(load_json(content)["code"], strict=True)
    except (KeyError, TypeError) as error:
        raise ValueError("it holds no hashes") from error


def changed_code(place: Location, code: Mapping[str, str]) -> str:
    """Return a message if the stored hashes differ from `code`; empty if they do not. Raises
    BadOutput if they are damaged."""
    try:
        stored = parse_code(place.read())
    except FileNotFoundError:  # the run died before it stored them
        return ""
    except ValueError:
        raise BadOutput(
            f"'{place.uri}' is damaged, so it is unknown whether the code has changed. Remove the "
            f"file to continue with the current code, or {START_OVER}"
        ) from None
    names = [name for name in stored | dict(code) if stored.get(name) != code.get(name)]
    if not names:
        return ""
    before, now = (hashes.get(names[0], "none")[:8] for hashes in (stored, code))
    more = f", and so did {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]} changed since the output was begun (from {before} to {now}){more}"
