"""Tar output files, read back by the webdataset library."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from batchinference.pipeline.arrow import concat, to_column
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.output_rows import first_rows
from batchinference.pipeline.output.writers import writer_for
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.inputs.read_files import read_files
from support.tiers import examples

PIXELS = np.arange(48, dtype=np.uint8).reshape(2, 4, 2, 3)
VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def shard(table: pa.Table, **fields: str) -> bytes:
    ((ending, content),) = writer_for(write_of("webdataset", **fields)).files(table)
    assert ending == ".tar"
    return bytes(content)


def samples(content: bytes, tmp_path: Path, decode: str = "rgb8") -> list[dict[str, Any]]:
    """Return the rows as the library reads them."""
    (tmp_path / "shard.tar").write_bytes(content)
    found = webdataset.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).decode(decode)
    return [{k: v for k, v in row.items() if k not in ("__url__", "__local_path__")}
            for row in found]  # fmt: skip


def names(content: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


def everything() -> pa.Table:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(buffer, "png")
    return pa.table(
        {
            "id": ["a", "b"],
            "image": to_column(PIXELS),
            "vector": to_column(VECTORS),
            "label": [3, 4],
            "caption": ["cat", "ü"],
            "about": [{"x": [1, None]}, {"x": []}],
            "thumb.png": [buffer.getvalue()] * 2,
            "score.txt": [0.5, 1.5],
        }
    )


def test_each_type_is_read_back_by_its_extension(tmp_path: Path) -> None:
    first, second = samples(shard(everything(), keyColumn="id"), tmp_path)
    assert (first["__key__"], second["__key__"]) == ("a", "b")
    assert np.array_equal(first["image.png"], PIXELS[0])
    assert np.array_equal(second["vector.npy"], VECTORS[1])
    assert (first["label.cls"], second["caption.txt"]) == (3, "ü")
    assert first["about.json"] == {"x": [1, None]}
    assert np.array_equal(first["thumb.png"], PIXELS[0])
    assert first["score.txt"] == "0.5"
    assert "id.txt" not in first


def test_column_named_as_an_extension_is_encoded_by_it() -> None:
    table = pa.table({"jpg": to_column(PIXELS), "cls": [1, 2], "txt": ["a", "b"],
                      "json": [1.5, 2.5], "npy": [[1, 2], [3, 4]],
                      "flac": [b"f", b"g"]})  # fmt: skip
    extensions = [name.split(".", 1)[1] for name in names(shard(table))]
    assert extensions == ["jpg", "cls", "txt", "json", "npy", "flac"] * 2


def test_unicode_names_are_kept(tmp_path: Path) -> None:
    table = pa.table({"键": ["图片.jpg", "प्रति"], "类别": ["a", "b"], "标签": ["c", "d"],
                      "two words": [1, 2]})  # fmt: skip
    first, second = samples(shard(table, keyColumn="键"), tmp_path)
    assert first == {"__key__": "图片_jpg", "类别.txt": "a", "标签.txt": "c", "two words.cls": 1}
    assert second["__key__"] == "प्रति"


def test_member_names_are_safe_and_unique(messages: Messages) -> None:
    assert names(shard(pa.table({"a/b\x00\n": ["x"]}))) == ["00000000.a_b__.txt"]
    for pair in (("a/b", "a\x00b"), ("a", "a.txt"), ("Size", "size")):
        with messages.raises(BadOutput) as raised:
            shard(pa.table({name: ["x"] for name in pair}))
        assert all(repr(name) in str(raised.value) for name in pair)
    table = pa.table({"a.json": [{"x": 1}], "a": pa.nulls(1)})
    assert names(shard(table)) == ["00000000.a.json"]


def test_row_without_values_is_a_sample(tmp_path: Path) -> None:
    content = shard(pa.table({"text": ["a", None, "c"]}))
    assert names(content) == ["00000000.text.txt", "00000001.json", "00000002.text.txt"]
    assert [row["__key__"] for row in samples(content, tmp_path)] == ["00000000", "00000001",
                                                                      "00000002"]  # fmt: skip
    rows = read_files("webdataset", tmp_path / "shard.tar").good
    assert [row.get("text.txt") for row in rows] == ["a", None, "c"]


def test_rows_without_key_column_are_numbered(tmp_path: Path) -> None:
    found = samples(shard(pa.table({"text": ["a", "b"]})), tmp_path)
    assert found == [{"__key__": "00000000", "text.txt": "a"},
                     {"__key__": "00000001", "text.txt": "b"}]  # fmt: skip


def test_null_makes_no_member(tmp_path: Path) -> None:
    table = concat([pa.table({"n": [1], "v": to_column(VECTORS[:1])}), pa.table({"n": [2]})])
    first, second = samples(shard(table), tmp_path)
    assert "v.npy" in first
    assert second == {"__key__": "00000001", "n.cls": 2}


def test_value_other_than_an_image_names_its_column() -> None:
    with pytest.raises(BadOutput, match=r"column 'my\.png' cannot be encoded \(float32"):
        shard(pa.table({"my.png": to_column(VECTORS)}))


@settings(max_examples=examples(100))
@example(["a", "a", "a--2", "a"])
@example(["", None, "00000001"])
@given(st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=8))
def test_keys_are_unique(keys: list[str | None]) -> None:
    table = pa.table({"key": pa.array(keys, pa.string()), "n": range(len(keys))})
    written = names(shard(table, keyColumn="key"))
    assert len(set(written)) == len(keys)
    assert all(re.fullmatch(r"[^./\\\s\x00]+\.n\.cls", name) for name in written)


def test_output_is_deterministic() -> None:
    assert shard(everything()) == shard(everything())


def test_first_rows_of_an_output_are_shown(tmp_path: Path) -> None:
    (tmp_path / "part-0.tar").write_bytes(shard(pa.table({"a.txt": ["xy", "z"], "n": [1, 2]})))
    shown = first_rows(write_of("webdataset", tmp_path), 1)
    assert shown == [{"key": "00000000", "a.txt": "2 bytes", "n.cls": "1 bytes"}]
