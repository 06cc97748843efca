"""TFRecord files: the features of each tf.train.Example are read without TensorFlow."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.readers.tfrecords import Example
from support.inputs.read_files import open_input, read_files
from support.inputs.tfrecords import example, record, write_examples


def write(directory: Path, *rows: dict[str, Any], name: str = "a.tfrecords") -> Path:
    write_examples(directory / name, rows)
    return directory / name


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def test_features_are_columns(tmp_path: Path) -> None:
    rows = [
        {"id": -5, "score": 0.5, "name": b"a", "ids": [1, 2**40], "parts": [b"x", b""]},
        {"id": 7, "score": -2.0, "name": b"", "ids": [3], "parts": [b"y"]},
    ]
    write(tmp_path, *rows)
    outcome = read_files("tfrecords", tmp_path)
    assert outcome.good == rows
    assert [field.type for field in outcome.schema] == [
        *(pa.int64(), pa.list_(pa.int64()), pa.large_binary()),
        *(pa.list_(pa.large_binary()), pa.float32()),
    ]
    assert outcome.schema.names == ["id", "ids", "name", "parts", "score"]


def test_feature_with_several_values_is_always_a_list(tmp_path: Path) -> None:
    write(tmp_path, {"tags": [b"a"]}, name="a.tfrecords")
    write(tmp_path, {"tags": [b"b", b"c"]}, name="b.tfrecords")
    assert read_files("tfrecords", tmp_path).good == [{"tags": [b"a"]}, {"tags": [b"b", b"c"]}]


def with_empty(kind: str, row: dict[str, Any]) -> bytes:
    """Return a record with these features, and a feature `tag` without values."""
    message = Example.FromString(example(row))
    getattr(message.features.feature["tag"], kind).SetInParent()
    return record(message.SerializeToString())


def test_feature_without_a_value_is_an_empty_list(tmp_path: Path) -> None:
    empty = with_empty("bytes_list", {"id": 2})
    path = write(tmp_path, {"id": 1, "tag": b"x"})
    path.write_bytes(path.read_bytes() + empty + record(example({"id": 3})))
    outcome = read_files("tfrecords", tmp_path)
    assert [row["tag"] for row in outcome.good] == [[b"x"], [], None]
    write(tmp_path, *({"tag": b"x"} for _ in range(100)))
    path.write_bytes(path.read_bytes() + empty)
    assert "listColumns" in read_files("tfrecords", tmp_path).bad[0, 100]


def test_kind_of_a_feature_is_that_of_its_values(tmp_path: Path) -> None:
    path = write(tmp_path, {"tag": 5}, {"tag": [6, 7]})
    path.write_bytes(with_empty("bytes_list", {}) + path.read_bytes())
    outcome = read_files("tfrecords", tmp_path)
    assert [row["tag"] for row in outcome.good] == [[], [5], [6, 7]]
    assert outcome.bad == {}


def test_list_columns_are_lists(tmp_path: Path) -> None:
    write(tmp_path, {"tags": [1], "id": 1})
    outcome = read_files("tfrecords", tmp_path, listColumns=["tags"])
    assert outcome.good == [{"tags": [1], "id": 1}]
    with pytest.raises(BadInput, match="there is no feature 'tag', only id, tags"):
        read_files("tfrecords", tmp_path, listColumns=["tag"])


def test_unexpected_list_fails_its_row(tmp_path: Path) -> None:
    write(tmp_path, *numbers(150), {"id": [1, 2]}, {"id": 150})
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == list(range(151))
    assert outcome.bad == {
        (0, 150): "ValueError: feature 'id' has 2 values, and the first records had one each: "
        "name it in read.options.listColumns"
    }


def test_feature_of_another_kind_fails_its_row(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1}, {"id": b"two"}, {"id": 3})
    outcome = read_files("tfrecords", tmp_path)
    assert outcome.good == [{"id": 1}, {"id": 3}]
    assert outcome.bad == {
        (0, 1): "ValueError: feature 'id' is a bytes_list, and others a int64_list"
    }


def test_missing_features_are_null(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1, "tags": [1, 2]}, {"id": []}, {"tags": [3]})
    assert read_files("tfrecords", tmp_path).good == [
        {"id": 1, "tags": [1, 2]},
        {"id": None, "tags": None},
        {"id": None, "tags": [3]},
    ]


def test_feature_of_an_unsampled_file_is_a_list(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1}, name="a.tfrecords")
    write(tmp_path, {"id": 2, "late": 5}, {"id": 3, "late": b"x"}, name="b.tfrecords")
    outcome = open_input("tfrecords", tmp_path, sampled=1).read()
    assert outcome.good == [{"id": 1, "late": None}, {"id": 2, "late": [5]}]
    assert list(outcome.bad) == [(1, 1)]


@pytest.mark.parametrize(
    ("damage", "good", "error"),
    [
        (lambda r: r[:-5] + b"\xff" + r[-4:], [0, 1, 3, 4], "is damaged: its checksum is another"),
        (lambda r: record(b"\xff\xff\xff"), [0, 1, 3, 4], "the record is no tf.train.Example"),
        (lambda r: record(r[12:-4] + b"\x12\x00"), [0, 1, 2, 3, 4], ""),
        (lambda r: record(r[12:-4] + b"\x12\x02\x0a\x00"), [0, 1, 3, 4], "SequenceExample"),
        (lambda r: record(b"\x1a\x00"), [0, 1, 3, 4], "another message"),
        (lambda r: b"\xff" + r[1:], [0, 1], "the length of a record is damaged"),
    ],
    ids=["content", "no example", "no lists", "sequence", "other message", "length"],
)
def test_damaged_record_fails_its_row_or_the_rest(
    tmp_path: Path, damage: Callable[[bytes], bytes], good: list[int], error: str
) -> None:
    records = [record(example(row)) for row in numbers(5)]
    records[2] = damage(records[2])
    (tmp_path / "a.tfrecords").write_bytes(b"".join(records))
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == good
    assert [error in message for message in outcome.bad.values()] == [True] * bool(error)
    assert set(outcome.bad) == ({(0, 2)} if error else set())
    assert outcome.ends == {0: 3 if len(good) == 2 else 5}


def test_rest_of_a_truncated_file_is_one_failed_row(tmp_path: Path) -> None:
    write(tmp_path, {"id": 9}, name="b.tfrecords")
    for cut in (1, 5, 17):  # within the checksum, the content and the header
        content = b"".join(record(example(row)) for row in numbers(3))[:-cut]
        for packed in (content, gzip.compress(content)):
            (tmp_path / "a.tfrecords").write_bytes(packed)
            outcome = read_files("tfrecords", tmp_path)
            assert [row["id"] for row in outcome.good] == [0, 1, 9], cut
            assert outcome.bad == {(0, 2): "ValueError: the file ends within a record"}, cut


@pytest.mark.parametrize("damage", [slice(40, 60), slice(-30, None)], ids=["middle", "end"])
def test_damaged_gzip_is_one_failed_row(tmp_path: Path, damage: slice) -> None:
    path = write(tmp_path, *numbers(2000), name="a.tfrecord.gz")
    content = bytearray(path.read_bytes())
    content[damage] = b""
    path.write_bytes(content)
    outcome = read_files("tfrecords", tmp_path)
    assert len(outcome.bad) == 1
    assert outcome.ends == {0: len(outcome.good) + 1}


def test_other_compressions_are_named(tmp_path: Path) -> None:
    content = record(example({"id": 1}))
    packed = {"ZLIB": zlib.compress(content), "zstd": pa.compress(content, "zstd", asbytes=True)}
    for name, compressed in packed.items():
        (tmp_path / "a.tfrecords").write_bytes(compressed)
        assert name in read_files("tfrecords", tmp_path).bad[0, 0]


def test_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecords").touch()
    outcome = read_files("tfrecords", tmp_path)
    assert (outcome.good, outcome.bad, outcome.ends) == ([], {}, {0: 0})
