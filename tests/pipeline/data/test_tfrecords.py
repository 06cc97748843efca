"""TFRecord files: the features of each tf.train.Example, as written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers import streams
from batchinference.pipeline.sizing import count_rows
from support.inputs.read_files import open_input, read_files
from support.inputs.tfrecords import example, masked_crc, record, write_examples


def write(directory: Path, *rows: dict[str, Any], name: str = "a.tfrecords") -> Path:
    write_examples(directory / name, rows)
    return directory / name


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def test_checksum_of_the_test_writer_matches_the_specification() -> None:
    unmasked = int.from_bytes(masked_crc(b"123456789"), "little") - 0xA282EAD8
    assert (unmasked >> 17 | unmasked << 15) & 0xFFFFFFFF == 0xE3069283


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


def test_list_columns_are_lists(tmp_path: Path) -> None:
    write(tmp_path, {"tags": [1], "id": 1})
    outcome = read_files("tfrecords", tmp_path, list_columns=["tags"])
    assert outcome.good == [{"tags": [1], "id": 1}]


def test_unexpected_list_fails_its_row(tmp_path: Path) -> None:
    write(tmp_path, *numbers(150), {"id": [1, 2]}, {"id": 150})
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == list(range(151))
    assert outcome.bad == {
        (0, 150): "ValueError: feature 'id' has 2 values, and the first records had one each: "
        "name it in read.options.list_columns"
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


def test_wrong_checksum_fails_its_row(tmp_path: Path) -> None:
    records = [record(example(row)) for row in numbers(5)]
    records[2] = records[2][:-5] + b"\xff" + records[2][-4:]
    (tmp_path / "a.tfrecords").write_bytes(b"".join(records))
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == [0, 1, 3, 4]
    assert outcome.bad == {(0, 2): "ValueError: the record is damaged: its checksum is another"}
    assert outcome.ends == {0: 5}


def test_record_without_an_example_fails_its_row(tmp_path: Path) -> None:
    content = record(example({"id": 1})) + record(b"\xff\xff\xff") + record(example({"id": 2}))
    (tmp_path / "a.tfrecords").write_bytes(content)
    outcome = read_files("tfrecords", tmp_path)
    assert outcome.good == [{"id": 1}, {"id": 2}]
    assert "the record is no tf.train.Example" in outcome.bad[0, 1]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("cut", [1, 5, 17], ids=["checksum", "content", "header"])
def test_rest_of_a_truncated_file_is_one_failed_row(tmp_path: Path, cut: int, packed: bool) -> None:
    content = b"".join(record(example(row)) for row in numbers(3))[:-cut]
    (tmp_path / "a.tfrecords").write_bytes(gzip.compress(content) if packed else content)
    write(tmp_path, {"id": 9}, name="b.tfrecords")
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == [0, 1, 9]
    assert outcome.bad == {(0, 2): "ValueError: the file ends within a record"}


def test_rest_after_a_damaged_length_is_one_failed_row(tmp_path: Path) -> None:
    records = [record(example(row)) for row in numbers(5)]
    records[2] = b"\xff" + records[2][1:]
    (tmp_path / "a.tfrecords").write_bytes(b"".join(records))
    outcome = read_files("tfrecords", tmp_path)
    assert [row["id"] for row in outcome.good] == [0, 1]
    assert "the length of a record is damaged" in outcome.bad[0, 2]


@pytest.mark.parametrize("damage", [slice(40, 60), slice(-30, None)], ids=["middle", "end"])
def test_damaged_gzip_is_one_failed_row(tmp_path: Path, damage: slice) -> None:
    path = write(tmp_path, *numbers(2000), name="a.tfrecord.gz")
    content = bytearray(path.read_bytes())
    content[damage] = b""
    path.write_bytes(content)
    outcome = read_files("tfrecords", tmp_path)
    assert len(outcome.bad) == 1
    assert outcome.ends == {0: len(outcome.good) + 1}


def test_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecords").touch()
    outcome = read_files("tfrecords", tmp_path)
    assert (outcome.good, outcome.bad, outcome.ends) == ([], {}, {0: 0})


def test_unknown_list_column_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, {"id": 1, "tag": 2})
    with pytest.raises(BadInput, match="there is no feature 'tags', only id, tag"):
        read_files("tfrecords", tmp_path, list_columns=["tags"])


@pytest.mark.parametrize("name", ["a.tfrecords", "a.tfrecords.gz"])
def test_row_count_is_estimated_from_the_beginning(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(5)
    write(tmp_path, *({"noise": random.bytes(200)} for _ in range(1500)), name=name)
    monkeypatch.setattr(streams, "SAMPLE_BYTES", 1 << 17)
    opened = open_input("tfrecords", tmp_path)
    count = count_rows(opened.frozen, opened.file_rows.reader, {})
    assert count is not None
    assert count.estimated
    assert abs(count.rows - 1500) < 200
