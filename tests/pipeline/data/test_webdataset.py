"""Tar archives of samples, read and written: rows equal those of the WebDataset library."""

from __future__ import annotations

import io
import json
import re
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from batchinference.pipeline.arrow import concat, to_column
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.readers.webdataset import SAMPLE_ROWS
from batchinference.pipeline.media import images
from batchinference.pipeline.output.output_rows import first_rows
from batchinference.pipeline.output.writers.kinds import writer_for
from batchinference.spec.warnings import WarningName
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.inputs.formats import add_member, pictures, png, tar_of, write_webdataset
from support.inputs.media_files import saved
from support.inputs.read_files import Outcome, open_input, read_files
from support.tiers import examples

PICTURES = pictures(6)


def shard(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive with these members, compressed according to its name."""
    path.write_bytes(tar_of(members.items(), {".gz": "w:gz", ".tgz": "w:gz"}.get(path.suffix, "w")))
    return path


def captions(count: int) -> dict[str, bytes]:
    return {f"{number:04d}.txt": f"caption {number}".encode() for number in range(count)}


def test_samples_equal_the_library(tmp_path: Path) -> None:
    write_webdataset(tmp_path)
    library = webdataset.WebDataset(
        [str(tmp_path / "0.tar"), str(tmp_path / "1.tar")], shardshuffle=False, empty_check=False
    ).decode("rgb8")
    outcome = read_files("webdataset", tmp_path)
    pixels = outcome.column("png")
    for number, (ours, expected) in enumerate(zip(outcome.good, library, strict=True)):
        assert ours["__key__"] == expected["__key__"]
        assert ours["json"] == expected["json"]
        assert (ours["txt"], ours["cls"]) == (expected["txt"], expected["cls"])
        assert ours["bin"] == expected["bin"]
        assert np.array_equal(pixels[number], expected["png"])


def test_members_without_decoder_are_bytes(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.png": b"no picture", "1.json": b"{", "1.cls": b"x"})
    assert read_files("webdataset", tmp_path, decoder=False).good == [
        {"__key__": "1", "png": b"no picture", "json": b"{", "cls": b"x"}
    ]


def test_samples_of_a_limit_are_counted_without_decoding_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = shard(tmp_path / "a.tar", {f"{number}.png": b"no picture" for number in range(4)})
    cut.write_bytes(cut.read_bytes()[:2600])
    shard(tmp_path / "b.tar", {f"{number}.png": png(PICTURES[0]) for number in range(5)})
    outcome = read_files("webdataset", tmp_path)
    rows = len(outcome.good) + len(outcome.bad)
    assert rows == 8
    decode = Mock(side_effect=ValueError("decoded"))
    monkeypatch.setattr(images, "decode", decode)
    for limit in (1, 3, 4, 100):
        counted = open_input("webdataset", tmp_path, limit=limit).given.count()
        assert counted == RowCount(min(limit, rows), estimated=False)
    decode.assert_not_called()


def test_suffixes_select_members(tmp_path: Path, messages: Messages) -> None:
    shard(tmp_path / "a.tar", {"1.png": b"no picture", "1.seg.png": b"", "1.txt": b"a"})
    outcome = read_files("webdataset", tmp_path, suffixes=["txt"])
    assert outcome.good == [{"__key__": "1", "txt": "a"}]
    assert read_files("webdataset", tmp_path, suffixes=["TXT"]).good == outcome.good
    with messages.raises(BadInput):
        open_input("webdataset", tmp_path, suffixes=["txt", "jpg"])


def test_file_other_than_an_archive_is_one_failed_row(tmp_path: Path) -> None:
    contents = (b"no archive", b"no archive" * 100, b"\x1f\x8bno gzip")
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.tar").write_bytes(content)
    for options in ({}, {"suffixes": ["txt"]}):
        assert list(read_files("webdataset", tmp_path, **options).bad) == [(0, 0), (1, 0), (2, 0)]


def test_suffix_follows_the_first_dot(tmp_path: Path) -> None:
    masks = {f"dir.v1/{n}.seg.PNG": png(picture) for n, picture in enumerate(PICTURES)}
    shard(tmp_path / "a.tar", masks)
    outcome = read_files("webdataset", tmp_path, mode="L", size=[3, 4])
    assert outcome.column("__key__").tolist() == [f"dir.v1/{n}" for n in range(6)]
    assert outcome.column("seg.png").shape == (6, 3, 4)


def ignored_members(outcome: Outcome) -> list[tuple[int, int]]:
    """Return the row number and the count of each row with a warning about ignored members."""
    tables = [batch.warnings for batch in outcome.batches]
    rows = [row for table in tables for row in table.to_pylist()]
    assert {row["name"] for row in rows} <= {WarningName.MEMBERS_IGNORED}
    return [(row["id"], row["amount"]) for row in rows]


NOT_READ = [
    *("README", "._1.txt", "__MACOSX/._1.txt", "__MACOSX/a/1.txt", "a/._1.txt", "a/.DS_Store"),
    *("Thumbs.db", "a/desktop.ini", "PaxHeader/1.txt", "PaxHeaders.42/1.txt", "a/.hidden.txt"),
    *("0.", ".0.txt", "./.0.txt"),
]


def test_ignored_members_are_counted(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in NOT_READ:
            add_member(archive, name, b"a")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            special = tarfile.TarInfo("1.lnk")
            special.type, special.linkname = kind, "1.txt"
            archive.addfile(special)
        folder = tarfile.TarInfo("folder.txt")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name in ("1.txt", "README.", "2.txt", "3.txt", "._3.txt"):
            add_member(archive, name, b"a")
    outcome = read_files("webdataset", tmp_path)
    assert [row["__key__"] for row in outcome.good] == ["1", "2", "3"]
    assert set(outcome.good[0]) == {"__key__", "txt"}
    assert ignored_members(outcome) == [(0, len(NOT_READ) + 3 + 1), (2, 1)]


def test_ignored_members_of_a_failed_row_are_counted(tmp_path: Path) -> None:
    members = {"README": b"", "0.png": b"no picture", "LICENSE": b"", "1.json": b"{", "NOTICE": b""}
    shard(tmp_path / "a.tar", members)
    outcome = read_files("webdataset", tmp_path)
    assert set(outcome.bad) == {(0, 0), (0, 1)}
    assert ignored_members(outcome) == [(0, 2), (1, 1)]


def test_sample_of_links_is_a_row(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add_member(archive, "1.txt", b"a")
        link = tarfile.TarInfo("2.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "1.txt"
        archive.addfile(link)
    outcome = read_files("webdataset", tmp_path)
    assert outcome.good == [{"__key__": "1", "txt": "a"}, {"__key__": "2", "txt": None}]
    assert ignored_members(outcome) == [(1, 1)]


def test_members_other_than_the_chosen_suffixes_are_not_counted(tmp_path: Path) -> None:
    names = ("1.txt", "1.json", "README", ".DS_Store", "._1.json", "._1.txt")
    shard(tmp_path / "a.tar", dict.fromkeys(names, b"a"))
    assert ignored_members(read_files("webdataset", tmp_path, suffixes=["txt"])) == [(0, 1)]


def test_archive_without_samples_is_one_failed_row(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"README": b"", "data/LICENSE": b""})
    shard(tmp_path / "b.tar", {})
    outcome = read_files("webdataset", tmp_path)
    assert (outcome.good, set(outcome.bad)) == ([], {(0, 0)})
    assert outcome.ends == {0: 1, 1: 0}


def test_suffix_of_members_that_follow_later_may_be_chosen(tmp_path: Path) -> None:
    texts = {f"{number:04}.txt": b"a" for number in range(SAMPLE_ROWS + 5)}
    shard(tmp_path / "a.tar", texts | {name.replace("txt", "cls"): b"1" for name in texts})
    outcome = read_files("webdataset", tmp_path, suffixes=["cls"])
    assert [row["cls"] for row in outcome.good] == [1] * len(texts)


def test_members_apart_in_a_large_compressed_archive_fail_the_file(tmp_path: Path) -> None:
    shard(tmp_path / "a.tgz", {"a.txt": b"a", "b.txt": b"b", "a.cls": b"1", "b.cls": b"2"})
    shard(tmp_path / "b.tgz", {"a.txt": b"a", "a.cls": b"1", "b.txt": b"b", "b.cls": b"2"})
    outcome = read_files("webdataset", tmp_path, maxRowBytes=1024)
    assert [row["cls"] for row in outcome.good] == [1, 2]
    assert "--sort=name" in outcome.bad[0, 0]


def test_damaged_archive_whose_members_are_apart_has_no_half_rows(tmp_path: Path) -> None:
    members = ["a.txt", "b.txt", "c.txt", "a.cls", "b.cls", "c.cls"]
    path = shard(tmp_path / "a.tar", dict.fromkeys(members, b"1"))
    path.write_bytes(path.read_bytes()[: 4 * 1024 + 100])
    outcome = read_files("webdataset", tmp_path)
    assert (outcome.good, set(outcome.bad)) == ([], {(0, 0)})


LABELS: dict[str, tuple[list[bytes], list[Any]]] = {
    "words": ([b"cat\n", b"dog\r\n", b"3"], ["cat", "dog", "3"]),
    "spaces": ([b" cat \n", b"\tdog"], [" cat ", "\tdog"]),
    "integers": ([b"3\n", b"-1", b" 0 "], [3, -1, 0]),
    "leading zeros": ([b"007", b"1"], ["007", "1"]),
    "fractions": ([b"1.0", b"1"], ["1.0", "1"]),
    "other notations": ([b"1_0", b"+1"], ["1_0", "+1"]),
    "long integers": ([b"12345678901234567890", b"1"], ["12345678901234567890", "1"]),
    "marked as UTF-8": (["\ufeff1".encode(), b"2"], [1, 2]),
}


@pytest.mark.parametrize(("contents", "labels"), LABELS.values(), ids=LABELS)
def test_labels_are_integers_if_all_are(
    tmp_path: Path, contents: list[bytes], labels: list[Any]
) -> None:
    for number, content in enumerate(contents):
        shard(tmp_path / f"{number}.tar", {"1.cls": content, "1.index": b"1"})
    outcome = read_files("webdataset", tmp_path)
    assert [row["cls"] for row in outcome.good] == labels
    assert [row["index"] for row in outcome.good] == [1] * len(labels)


def test_later_label_that_is_no_integer_is_a_failed_row(tmp_path: Path) -> None:
    for number, label in enumerate((b"1", b"cat", b"", b"08")):
        shard(tmp_path / f"{number}.tar", {"1.cls": label})
    outcome = open_input("webdataset", tmp_path, sampled=1).read()
    assert [row["cls"] for row in outcome.good] == [1]
    assert set(outcome.bad) == {(1, 0), (2, 0), (3, 0)}
    assert all("types: {cls: string}" in error for error in outcome.bad.values())


def test_names_that_are_not_utf_8_are_escaped(tmp_path: Path) -> None:
    old: dict[str, Any] = {"encoding": "latin-1", "format": tarfile.GNU_FORMAT}
    with tarfile.open(tmp_path / "a.tar", "w", **old) as archive:
        add_member(archive, "caf\xe9.txt", b"a")
    assert read_files("webdataset", tmp_path).good == [{"__key__": "caf\\xe9", "txt": "a"}]


def test_texts_are_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.txt": "\ufeffü\n".encode(), "2.txt": "ü".encode("utf-16")})
    outcome = read_files("webdataset", tmp_path)
    assert [row["txt"] for row in outcome.good] == ["ü\n"]
    assert "UTF-8" in outcome.bad[0, 1]


def test_json_types_are_shared_by_all_archives(tmp_path: Path) -> None:
    for name, about in {"a": {"x": 1}, "b": {"x": 1.5, "y": "late"}, "c": {"x": None}}.items():
        shard(tmp_path / f"{name}.tar", {"1.json": json.dumps(about).encode()})
    outcome = read_files("webdataset", tmp_path)
    assert [row["json"] for row in outcome.good] == [
        *({"x": 1.0, "y": None}, {"x": 1.5, "y": "late"}, {"x": None, "y": None})
    ]


def test_json_of_several_shapes_is_text_and_types_can_be_declared(tmp_path: Path) -> None:
    about = {"1.json": b'{"x": 1.50}', "2.json": b'"a text"', "3.json": b'[{"x":\n2}]'}
    shard(tmp_path / "a.tar", about)
    texts = ['{"x": 1.50}', "a text", '[{"x": 2}]']
    assert [row["json"] for row in read_files("webdataset", tmp_path).good] == texts
    declared = read_files("webdataset", tmp_path, types={"json": "struct<x: decimal<3, 2>>"})
    assert [row["json"] for row in declared.good] == [{"x": Decimal("1.50")}]
    assert set(declared.bad) == {(0, 1), (0, 2)}
    with pytest.raises(BadInput, match=r"types\.txt: 'int64'"):
        read_files("webdataset", tmp_path, types={"txt": "int64"})


def test_missing_members_are_null(tmp_path: Path) -> None:
    members = {"1.png": png(PICTURES[0]), "1.txt": b"a", "2.txt": b"b", "3.png": png(PICTURES[1])}
    shard(tmp_path / "a.tar", members)
    for size in (None, [6, 5]):
        outcome = read_files("webdataset", tmp_path, size=size)
        assert outcome.table.column("txt").to_pylist() == ["a", "b", None]
        first, none, last = outcome.column("png")
        assert none is None
        assert np.array_equal(first, PICTURES[0])
        assert np.array_equal(last, PICTURES[1])


def test_heic_pictures_are_decoded(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.heic": saved(Image.fromarray(PICTURES[0]), "HEIF")})
    assert read_files("webdataset", tmp_path).column("heic")[0].shape == PICTURES[0].shape


def test_undecodable_sample_fails_its_row(tmp_path: Path) -> None:
    bad = {"1.png": b"no picture", "3.json": b"{", "4.cls": b"\xff", "5.txt": b"\xff"}
    bad["6.index"] = b"\x80"
    shard(tmp_path / "a.tar", {"0.txt": b"a", **bad, "2.txt": b"c", "7.txt": b"h"})
    outcome = read_files("webdataset", tmp_path)
    assert [row["txt"] for row in outcome.good] == ["a", "c", "h"]
    assert [row for _, row in outcome.bad] == [1, 2, 3, 4, 5]
    assert outcome.ends == {0: 8}


def test_member_with_the_name_of_the_column_of_keys_fails_its_row(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.txt": b"a", "1.__key__": b"2", "2.txt": b"b"})
    outcome = read_files("webdataset", tmp_path)
    assert outcome.good == [{"__key__": "2", "txt": "b"}]
    assert "sample '1' has a member '__key__'" in outcome.bad[0, 0]


@pytest.mark.parametrize(
    ("begin", "noise", "good"),
    # a member that is missing, or has a damaged header, might belong to the third sample
    [(600, b"", 3), (0, b"", 2), (0, b"\xff" * 100, 2)],
    ids=["truncated", "truncated between members", "damaged header"],
)
def test_rest_of_a_damaged_archive_is_one_failed_row(
    tmp_path: Path, begin: int, noise: bytes, good: int
) -> None:
    path = shard(tmp_path / "a.tar", captions(9))
    content, fourth = path.read_bytes(), 3 * 1024
    rest = content[fourth + len(noise) :] if noise else b""
    path.write_bytes(content[: fourth + begin] + noise + rest)
    shard(tmp_path / "b.tar", captions(1))
    outcome = read_files("webdataset", tmp_path)
    assert [row for row in outcome.order if row[0] == 0] == [(0, row) for row in range(good)]
    assert list(outcome.bad) == [(0, good)]
    assert (1, 0) in outcome.order


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_archives_after_the_end_mark_of_another_are_read(tmp_path: Path, suffix: str) -> None:
    parts = [shard(tmp_path / f"{n}.{suffix}", {f"{n}.txt": b"x"}).read_bytes() for n in range(3)]
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / f"a.{suffix}").write_bytes(b"".join(parts))
    outcome = read_files("webdataset", tmp_path / "all")
    assert ([row["__key__"] for row in outcome.good], outcome.bad) == (["0", "1", "2"], {})


def test_samples_of_joined_archives_with_the_same_names_are_failed_rows(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", captions(2))
    path.write_bytes(2 * path.read_bytes())
    outcome = read_files("webdataset", tmp_path)
    assert (outcome.good, list(outcome.bad)) == ([], [(0, 0), (0, 1)])
    assert all("joined" in error for error in outcome.bad.values())


def test_cut_of_a_joined_archive_between_members_is_one_failed_row(tmp_path: Path) -> None:
    full, cut = (shard(tmp_path / "a.tar", {f"{n}.txt": b"x", f"{n + 1}.txt": b"y"}).read_bytes()
                  for n in (0, 2))  # fmt: skip
    (tmp_path / "a.tar").write_bytes(full + cut[:1024])
    outcome = read_files("webdataset", tmp_path)
    assert [row["__key__"] for row in outcome.good] == ["0", "1"]
    assert "no end mark" in outcome.bad[0, 2]


def test_damaged_gzip_is_one_failed_row(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar.gz", captions(500))
    path.write_bytes(path.read_bytes()[:-500])
    outcome = read_files("webdataset", tmp_path)
    assert len(outcome.bad) == 1
    assert len(outcome.good) > 300


PIXELS = np.arange(48, dtype=np.uint8).reshape(2, 4, 2, 3)
VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)


def tar_file(table: pa.Table, **fields: str) -> bytes:
    ((ending, content),) = writer_for(write_of("webdataset", **fields)).files(table)
    assert ending == ".tar"
    return bytes(content)


def samples(content: bytes, tmp_path: Path, decode: str = "rgb8") -> list[dict[str, Any]]:
    """Return the rows as the library reads them."""
    (tmp_path / "shard.tar").write_bytes(content)
    text = webdataset.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).decode(decode)
    return [{k: v for k, v in row.items() if k not in ("__url__", "__local_path__")}
            for row in text]  # fmt: skip


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
    first, second = samples(tar_file(everything(), keyColumn="id"), tmp_path)
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
    extensions = [name.split(".", 1)[1] for name in names(tar_file(table))]
    assert extensions == ["jpg", "cls", "txt", "json", "npy", "flac"] * 2


def test_unicode_names_are_kept(tmp_path: Path) -> None:
    table = pa.table({"键": ["图片.jpg", "प्रति"], "类别": ["a", "b"], "标签": ["c", "d"],
                      "two words": [1, 2]})  # fmt: skip
    first, second = samples(tar_file(table, keyColumn="键"), tmp_path)
    kept = {"__key__.txt": "图片.jpg", "类别.txt": "a", "标签.txt": "c", "two words.cls": 1}
    assert first == {"__key__": "图片_jpg", **kept}
    assert (second["__key__"], "__key__.txt" in second) == ("प्रति", False)


def test_value_of_a_changed_key_is_a_member_beside_any_columns() -> None:
    """A column of keys may have a name that no other column could have."""
    for name in ("jpg", "name.jpg", "ID", "__key__"):
        table = pa.table({name: ["a/b", "c"], "id": [1, 2]})
        assert names(tar_file(table, keyColumn=name)) == [
            "a_b.id.cls",
            "a_b.__key__.txt",
            "c.id.cls",
        ]
    table = pa.table({"id": ["a/b"], "__key__": ["x"], "___KEY__.txt": ["y"]})
    written = names(tar_file(table, keyColumn="id"))
    assert written == ["a_b.__key__.txt", "a_b.___KEY__.txt", "a_b.____key__.txt"]
    table = pa.table({"id": ["a/b"], "__key__": pa.nulls(1, pa.string())})
    assert names(tar_file(table, keyColumn="id")) == ["a_b.___key__.txt"], "as in other files"


def test_lists_and_vectors_are_no_keys(messages: Messages) -> None:
    for keys in ([[1, 2]], [{"x": 1}], VECTORS[:1]):
        with messages.raises(BadOutput):
            tar_file(pa.table({"v": to_column(keys), "n": [1]}), keyColumn="v")


def test_member_names_are_safe_and_unique(messages: Messages) -> None:
    assert names(tar_file(pa.table({"a/b\x00\n": ["x"]}))) == ["00000000.a_b__.txt"]
    for pair in (("a/b", "a\x00b"), ("a", "a.txt"), ("Size", "size")):
        with messages.raises(BadOutput) as raised:
            tar_file(pa.table({name: ["x"] for name in pair}))
        assert all(repr(name) in str(raised.value) for name in pair)
    table = pa.table({"a.json": [{"x": 1}], "a": pa.nulls(1)})
    assert names(tar_file(table)) == ["00000000.a.json"]


def test_row_without_values_is_a_sample(tmp_path: Path) -> None:
    content = tar_file(pa.table({"text": ["a", None, "c"]}))
    assert names(content) == ["00000000.text.txt", "00000001.json", "00000002.text.txt"]
    assert [row["__key__"] for row in samples(content, tmp_path)] == ["00000000", "00000001",
                                                                      "00000002"]  # fmt: skip
    rows = read_files("webdataset", tmp_path / "shard.tar").good
    assert [row.get("text.txt") for row in rows] == ["a", None, "c"]


def test_null_makes_no_member(tmp_path: Path) -> None:
    table = concat([pa.table({"n": [1], "v": to_column(VECTORS[:1])}), pa.table({"n": [2]})])
    first, second = samples(tar_file(table), tmp_path)
    assert "v.npy" in first
    assert second == {"__key__": "00000001", "n.cls": 2}


def test_value_other_than_an_image_names_its_column() -> None:
    with pytest.raises(BadOutput, match=r"column 'my\.png' cannot be encoded \(float32"):
        tar_file(pa.table({"my.png": to_column(VECTORS)}))


@settings(max_examples=examples(100))
@example(["a", "a", "a--2", "a"])
@example(["", None, "00000001"])
@given(st.lists(st.none() | st.text(max_size=4), min_size=1, max_size=8))
def test_keys_are_unique(keys: list[str | None]) -> None:
    table = pa.table({"key": pa.array(keys, pa.string()), "n": range(len(keys))})
    written = [name for name in names(tar_file(table, keyColumn="key")) if name.endswith(".cls")]
    assert len(set(written)) == len(keys)
    assert all(re.fullmatch(r"[^./\\\s\x00]+\.n\.cls", name) for name in written)


def test_output_is_deterministic() -> None:
    assert tar_file(everything()) == tar_file(everything())


def test_first_rows_of_an_output_are_shown(tmp_path: Path) -> None:
    (tmp_path / "part-0.tar").write_bytes(tar_file(pa.table({"a.txt": ["xy", "z"], "n": [1, 2]})))
    shown = first_rows(write_of("webdataset", tmp_path), 1)
    assert shown == [{"key": "00000000", "a.txt": "2 bytes", "n.cls": "1 bytes"}]
