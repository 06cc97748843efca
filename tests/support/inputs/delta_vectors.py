"""Deletes rows of a Delta table with deletion vectors, as the protocol describes them. The library
deltalake reads them, but does not write them."""

from __future__ import annotations

import base64
import json
import struct
import time
import uuid
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

MAGIC = 1681511377
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
FEATURE = "deletionVectors"


def z85(content: bytes) -> str:
    """Return bytes in the encoding of inline vectors and file names, padded to four bytes."""
    padded = content + b"\0" * (-len(content) % 4)
    return base64.b85encode(padded).translate(bytes.maketrans(_B85, _Z85)).decode()


def entries(log: Path) -> list[dict[str, Any]]:
    """Return the actions of a commit."""
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def next_log(table: Path) -> Path:
    """Return the file of the next commit."""
    return table / "_delta_log" / f"{len([*(table / '_delta_log').glob('*.json')]):020}.json"


def commit(table: Path, *actions: dict[str, Any]) -> None:
    """Add a commit with these actions to the log of a table."""
    info = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "TEST"}}
    next_log(table).write_text("".join(f"{json.dumps(each)}\n" for each in (info, *actions)))


def enable_vectors(table: Path, *features: str) -> None:
    """Commit a protocol with deletion vectors, or with other features of readers."""
    names = [FEATURE, *features]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    commit(table, {"protocol": {**protocol, "readerFeatures": names, "writerFeatures": names}})


def live_adds(table: Path) -> dict[str, dict[str, Any]]:
    """Return the add actions that count, by path."""
    live: dict[str, dict[str, Any]] = {}
    for log in sorted((table / "_delta_log").glob("*.json")):
        actions = entries(log)
        for action in actions:
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
        live |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
    return live


def delete_positions(
    table: Path, path: str, positions: Sequence[int], *, inline: bool = False
) -> None:
    """Commit a deletion vector with all deleted positions of a data file of a table."""
    content = struct.pack("<I", MAGIC) + BitMap64(positions).serialize()
    vector = {"sizeInBytes": len(content), "cardinality": len(positions)}
    if inline:
        vector |= {"storageType": "i", "pathOrInlineDv": z85(content)}
    else:
        name = uuid.uuid4()
        stored = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        (table / f"deletion_vector_{name}.bin").write_bytes(b"\1" + stored)
        vector |= {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1}
    add = live_adds(table)[path]
    remove = {"path": path, "deletionTimestamp": int(time.time() * 1000), "dataChange": True,
              "extendedFileMetadata": True, "size": add["size"],
              "partitionValues": add["partitionValues"]}  # fmt: skip
    if add.get("deletionVector"):
        remove["deletionVector"] = add["deletionVector"]
    commit(table, {"remove": remove}, {"add": {**add, "deletionVector": vector}})
