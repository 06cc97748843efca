"""What readers know before reading: columns, row counts and missing libraries."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers import lines
from batchinference.pipeline.sizing import count_rows
from support.inputs.read_files import Input, open_input


def counted(opened: Input) -> int | None:
    count = count_rows(opened.frozen, opened.file_rows.reader, {})
    return None if count is None else count.rows


@pytest.fixture
def files(tmp_path: Path) -> Path:
    contents = {
        "a.txt": "one\ntwo\nthree",
        "a.jsonl": '{"a": 1, "b": "x"}\n{"a": 2}\n',
        "a.csv": "a,b\n1,x\n2,y\n",
        "a.png": "no image",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "a.parquet")
    return tmp_path


def test_columns_and_row_counts_are_known_before_reading(files: Path) -> None:
    found = {}
    for format_ in ("text", "json", "csv", "parquet", "images", "binary"):
        opened = open_input(format_, files)
        reader = opened.file_rows.reader
        found[format_] = (reader.columns(), counted(opened), reader.rows_exact)
    assert found == {
        "text": (["text"], 3, False),
        "json": (["a", "b"], 2, False),
        "csv": (["a", "b"], 3, False),  # an estimate, which counts the header
        "parquet": (["a", "b"], 1, True),
        "images": (["image"], 1, True),
        "binary": (["bytes"], 5, True),
    }


@pytest.mark.parametrize("format_", ["json", "csv", "parquet"])
def test_columns_of_damaged_files_are_unknown(tmp_path: Path, format_: str) -> None:
    (tmp_path / f"a.{format_}").write_bytes(b"\xff" if format_ != "csv" else b"")
    assert open_input(format_, tmp_path).file_rows.reader.columns() is None


def test_selected_columns_are_known(files: Path) -> None:
    reader = open_input("parquet", files, columns=["b"]).file_rows.reader
    assert reader.columns() == ["b"]


def test_rows_of_a_long_file_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number:05d}\n" for number in range(5000)))
    monkeypatch.setattr(lines, "SAMPLE_BYTES", 1000)
    estimate = counted(open_input("text", tmp_path))
    assert estimate is not None
    assert abs(estimate - 5000) < 50


@pytest.mark.parametrize("lines_", [10, 5_000, 100_000])
def test_rows_of_a_compressed_file_are_estimated(tmp_path: Path, lines_: int) -> None:
    random = np.random.default_rng(2)
    content = "".join(f"{number}\n" for number in random.integers(0, 10**15, lines_))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content.encode(), 1))
    estimate = counted(open_input("text", tmp_path))
    assert estimate == pytest.approx(lines_, rel=0.2)


@pytest.mark.parametrize(
    ("format_", "name"), [("text", "a.txt"), ("json", "a.jsonl"), ("csv", "a.csv")]
)
def test_compressed_files_are_read(files: Path, tmp_path: Path, format_: str, name: str) -> None:
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / f"{name}.gz").write_bytes(gzip.compress((files / name).read_bytes()))
    assert open_input(format_, packed).read().good == open_input(format_, files / name).read().good


@pytest.mark.parametrize(
    ("format_", "library"),
    [("audio", "soundfile"), ("video", "av"), ("tfrecords", "google_crc32c")],
)
def test_missing_library_is_reported_at_open(
    tmp_path: Path, format_: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == library else found(name)
    )
    with pytest.raises(BadInput) as caught:
        open_input(format_, tmp_path)
    assert str(caught.value) == (
        f"the format '{format_}' needs the package {library.replace('_', '-')}: "
        "pip install 'batchinference[formats]', or an image that has it"
    )


def test_length_of_a_json_array_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    assert counted(open_input("json", tmp_path, lines=False)) is None


@pytest.mark.parametrize("format_", ["text", "json", "csv"])
def test_empty_files_have_no_rows(tmp_path: Path, format_: str) -> None:
    (tmp_path / f"a.{ {'text': 'txt'}.get(format_, format_) }").touch()
    opened = open_input(format_, tmp_path)
    assert counted(opened) == 0
    assert opened.read().ends == {0: 0}
