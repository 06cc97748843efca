"""Snapshots: one file lists what counts of an output. A changed or damaged file is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.commit.manifest import DataFile, Manifest, ManifestEntry
from batchinference.pipeline.commit.snapshot import FORMAT, Snapshot
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.row_batch import FULL_SHARE
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.state_json import CHECKSUM_FIELD, dump_checksummed
from batchinference.spec.progress import Counts
from batchinference.spec.warnings import WarningCount, WarningName
from plugins.messages import Messages
from support.documents.minimal import Document
from support.outputs.builders import OURS, THEIRS, entry

DATA = DataFile("part-aaaaaaaaaaaaaaaa-0001-00000000-9c4e21ab-0000.parquet", 17, 99)
FULL = Snapshot(
    OURS,
    "0" * 64,
    [
        ManifestEntry(
            Counts(read=3, written=4, failed=1, filtered=1),
            [(0, 0, 3)],
            [],
            [DATA],
            [("text", "string")],
            DATA,
        ),
        entry(shares=[(1, 2, FULL_SHARE // 2)]),
    ],
    {0: 3, 7: 0},
    pass_number=4,
)


def state_in(location: Location) -> dict[str, Any]:
    """Return a stored state without its checksum."""
    stored: dict[str, Any] = json.loads(location.read())
    del stored[CHECKSUM_FIELD]
    return stored


@pytest.fixture
def file(tmp_path: Path) -> Location:
    location = Location(str(tmp_path / "start.json"))
    location.write(FULL.serialized())
    return location


def test_snapshot_is_read_back(file: Location) -> None:
    assert Snapshot.read(file, OURS) == FULL


@given(st.data())
@settings(deadline=None)
def test_truncated_snapshot_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = FULL.serialized()
    location = Location(str(tmp_path_factory.mktemp("cut") / "start.json"))
    location.write(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BadOutput, match=r"start\.json' is missing, damaged or of another output"):
        Snapshot.read(location, OURS)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 99, b"\xff\xfe", b"null", b"[]", b"3", b"{}", b'{"format": 3}',
     b'{"format": "1"}', b'{"format": 3, "work": "a", "entries": {}, "ends": 3}'],
    ids=range(10),
)  # fmt: skip
def test_invalid_snapshot_is_refused(file: Location, content: bytes, messages: Messages) -> None:
    file.write(content)
    with messages.raises(BadOutput):
        Snapshot.read(file, OURS)


@pytest.mark.parametrize("field", json.loads(FULL.serialized()))
def test_snapshot_without_a_field_is_refused(file: Location, field: str) -> None:
    stored = json.loads(file.read())
    del stored[field]
    if field == "version":  # only read from a later format
        stored["format"] = FORMAT + 1
    file.write(json.dumps(stored).encode())
    with pytest.raises(BadOutput, match="damaged"):
        Snapshot.read(file, OURS)


@pytest.mark.parametrize("digit", range(10))
def test_snapshot_with_a_changed_number_is_refused(file: Location, digit: int) -> None:
    content = file.read()
    for number in (byte for byte in range(len(content)) if content[byte : byte + 1].isdigit()):
        changed = content[:number] + str(digit).encode() + content[number + 1 :]
        if changed != content:
            file.write(changed)
            with pytest.raises(BadOutput, match=r"damaged|was written by version"):
                Snapshot.read(file, OURS)


WRONG_FILES = [
    *({"name": f"{start}part-aaaaaaaaaaaaaaaa-1"} for start in ("../", "/", "x/../../", "x\\")),
    *({"name": name} for name in ("", "part-bbbbbbbbbbbbbbbb-1", "notes.txt", 3)),
    *({"bytes": size} for size in (-1, "17", True, 1.5)),
    *({"crc32": value} for value in (-1, 1 << 32, None)),
    {"more": 1},
]  # fmt: skip
WRONG_ENTRIES = [
    *({"row_ranges": [wrong]} for wrong in ([0, 5, 5], [-1, 0, 1], [0, 1], ["0", 0, 1])),
    {"shares": [[0, 0, FULL_SHARE + 1]]}, {"shares": 3},
    *({"columns": wrong} for wrong in ([["a"]], [[1, "a"]], -1, 2, "0", True, None)),
    *({"warnings": [{"rows": 1} | more]} for more in ({}, {"name": "X", "example": [0, 1]})),
    {"counts": {"read": -1}}, {"counts": {"rows": 1}}, {"errors": "part-aaaaaaaaaaaaaaaa-1"},
    {"more": 1},
]  # fmt: skip


def test_wrong_fields_of_a_piece_are_refused(file: Location) -> None:
    """The checksum is correct, because anybody can compute it."""
    stored = state_in(file)
    (first, second) = stored["entries"]
    in_manifest = json.loads(json.dumps(FULL.entries[0].as_json()))
    assert is_manifest_of(OURS, manifest_of(in_manifest))
    wrongs = [*WRONG_ENTRIES, *({"data": [first["data"][0] | wrong]} for wrong in WRONG_FILES)]
    for wrong in wrongs:
        file.write(dump_checksummed(stored | {"entries": [first | wrong, second]}))
        with pytest.raises(BadOutput, match="damaged"):
            Snapshot.read(file, OURS)
        assert not is_manifest_of(OURS, manifest_of(in_manifest | wrong)), wrong


def manifest_of(entry_: Document) -> bytes:
    return dump_checksummed(MANIFEST | {"entries": [entry_]})


MANIFEST = {
    "task": 0, "number": 0, "entries": [], "ends": [], "notes": [["step", '{"batch_size": 8}']],
}  # fmt: skip


def is_manifest_of(work: str, content: bytes) -> bool:
    try:
        return Manifest.parse(content).is_of(work)
    except ValueError:
        return False


@pytest.mark.parametrize(
    "wrong",
    [{"attempt": -1}, {"attempt": "1"}, {"ends": [[0]]}, {"ends": [[0, -1]]}, {"input": "../x"},
     {"schemas": []}, {"schemas": [[["a"]], []]}, {"schemas": [[[1, "a"]], []]}],
    ids=str,
)  # fmt: skip
def test_wrong_fields_of_a_snapshot_are_refused(file: Location, wrong: Document) -> None:
    file.write(dump_checksummed(state_in(file) | wrong))
    with pytest.raises(BadOutput, match="damaged"):
        Snapshot.read(file, OURS)


@pytest.mark.parametrize(
    "wrong",
    [{"task": -1}, {"task": "1"}, {"number": -1}, {"number": None}, {"ends": [[0, "3"]]},
     {"notes": [["step", "{"]]}, {"notes": [["step", '{"batch_size": "large"}']]},
     {"notes": [["step", "[]"]]}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_wrong_fields_of_a_manifest_are_refused(wrong: Document) -> None:
    assert is_manifest_of(OURS, dump_checksummed(MANIFEST))
    assert not is_manifest_of(OURS, dump_checksummed(MANIFEST | wrong))


def test_snapshot_of_other_work_is_refused(file: Location) -> None:
    with pytest.raises(BadOutput, match="of another output"):
        Snapshot.read(file, THEIRS)


def test_entries_share_their_schemas(file: Location) -> None:
    columns = [("text", "string")]
    many = replace(FULL, entries=[replace(FULL.entries[0], columns=[*columns]) for _ in range(5)])
    file.write(many.serialized())
    assert json.loads(file.read())["schemas"] == [[["text", "string"]]]
    content = Snapshot.read(file, OURS)
    assert content == many
    assert len({id(one.columns) for one in content.entries}) == 1


def test_warnings_of_commits_before_8e6be9de_are_read(file: Location) -> None:
    old = {"step": "embed", "name": "TextCut", "rows": 2, "amount": 7, "example": [0, 1]}
    stored = state_in(file)
    stored["entries"][0]["warnings"] = [old]
    file.write(dump_checksummed(stored))
    expected = [WarningCount.of_rows(WarningName.TEXT_CUT, "embed", 2, 7, "0:1")]
    assert Snapshot.read(file, OURS).entries[0].warnings == expected
    in_manifest = FULL.entries[0].as_json() | {"warnings": [old]}
    assert Manifest.parse(manifest_of(in_manifest)).entries[0].warnings == expected


@pytest.mark.parametrize("format_", [FORMAT - 1, FORMAT + 1], ids=["earlier", "later"])
def test_other_format_is_refused_with_the_version_needed(file: Location, format_: int) -> None:
    stored = json.loads(file.read()) | {"format": format_, "version": "9.9", "entries": "other"}
    file.write(json.dumps(stored).encode())
    with pytest.raises(BadOutput, match=r"version 9\.9 in another format\. Use that version"):
        Snapshot.read(file, OURS)


def test_ends_cover_all_commits(file: Location) -> None:
    more = FULL.with_commits(
        [Manifest(0, n, [], [end], []) for n, end in enumerate([(3, 5), (7, 0)])]
    )
    assert more.ends == {0: 3, 3: 5, 7: 0}


def test_rows_are_those_of_all_files() -> None:
    assert Snapshot(OURS, "", [], {0: 3, 1: 0, 2: 4}).rows(3, None) == 7
    assert Snapshot(OURS, "").rows(5, 1) == 5


def test_findings_in_the_first_rows_are_stored(tmp_path: Path) -> None:
    thresholds = {"some": 0.25, "all": None}
    result = replace(Snapshot(OURS, ""), findings="gate: n is 1", thresholds=thresholds)
    location = Location(str(tmp_path / "start.json"))
    location.write(result.serialized())
    assert Snapshot.read(location, OURS) == result
