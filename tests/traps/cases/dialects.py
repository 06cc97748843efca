"""CSV as programs write it: separators, quotes, comments, encodings and damage."""

from __future__ import annotations

import datetime as dt
import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from traps.case import Cases, Refused, Right, Row
from traps.inputs import parquet
from traps.yaml_cases import read_kinds

CASES = Cases("dialects")
ADD = read_kinds(CASES, Path(__file__).with_suffix(".yaml"))
"""The functions that add further cases to the kinds of the file."""

dialects = ADD["R18"]
dialects(
    "a delimiter behind each last field",
    Right([{"id": 1, "text": "a"}]),
    Right(holds=lambda rows: len(rows) == 1 and (rows[0]["id"], rows[0]["text"]) == (1, "a")),
    Refused("name|column"),
    files={"a.csv": "id,text,\n1,a,\n"},
)

quotes = ADD["R23"]
quotes(
    "in a file of 1,000 lines",
    Right([{"id": n, "text": "x"} for n in range(1000) if n != 10], failed=1, says="quote"),
    files={
        "a.csv": "id,text\n" + "".join(f"{n},{chr(34) if n == 10 else ''}x\n" for n in range(1000))
    },
)

plain = ADD["R42"]
plain(
    "two members in one gzip file",
    Right([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]),
    files={"a.csv.gz": gzip.compress(b"id,text\n1,a\n") + gzip.compress(b"2,b\n")},
    peers={"daft": {"pattern": "*"}, "pandas": {"pattern": "*"}},
)

plain(
    "a gzip file whose end is missing",
    Right(holds=lambda rows: 0 <= len(rows) < 10_000, failed=1, says="end|truncated|damaged|gzip"),
    Refused("end|truncated|damaged|gzip"),
    files={"a.csv.gz": lambda: gzip.compress(b"v\n" + bytes(range(48, 58)) * 9000)[:-20]},
    peers={"daft": {"pattern": "*"}, "pandas": {"pattern": "*"}},
)


MAP = pa.map_(pa.string(), pa.int64())
PAIRS = {"m": pa.array([[("k", 1), ("k", 2)]], MAP), "t": pa.array([1], pa.time64("ns"))}
plain(
    "a map that has a key twice",
    Right([{"m": [("k", 1), ("k", 2)]}]),
    read={"format": "parquet"},
    view=lambda row: {"m": [tuple(pair) for pair in row["m"]]},
    files={"a.parquet": parquet(PAIRS)},
    peers={"daft": {"pattern": ""}},
)


EXOTIC: dict[str, tuple[pa.DataType, Any]] = {
    "u": (pa.uint64(), 2**64 - 1),
    "d": (pa.decimal256(50, 2), Decimal("1234567890123456789012345678901234567890.12")),
    "c": (pa.dictionary(pa.int32(), pa.string()), "x"),
    "m": (MAP, [("k", 1)]),
    "h": (pa.float16(), np.float16(0.5)),
    "s": (pa.duration("us"), dt.timedelta(seconds=1)),
    "b": (pa.binary(), b"\x00\xff"),
}
"""Types that few readers know, and a value of each."""


def _exotic(row: Row) -> Row:
    pairs = row["m"].items() if isinstance(row["m"], dict) else row["m"]
    listed = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in pairs]
    return {name: {**row, "m": listed}[name] for name in EXOTIC}


plain(
    "uint64, decimal256, dictionary, map, float16 and duration in Parquet",
    Right([{name: value for name, (_, value) in EXOTIC.items()}]),
    read={"format": "parquet"},
    view=_exotic,
    files={
        "a.parquet": parquet(
            {name: pa.array([value], kind) for name, (kind, value) in EXOTIC.items()}
        )
    },
    peers={"daft": {}},
)
