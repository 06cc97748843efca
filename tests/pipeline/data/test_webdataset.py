"""Tar archives of samples: rows equal those of the WebDataset library."""

from __future__ import annotations

import json
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from batchinference.pipeline.errors import BadInput
from support.inputs.formats import add_member, pictures, png, write_webdataset
from support.inputs.read_files import open_input, read_files

PICTURES = pictures(6)


def shard(path: Path, members: dict[str, bytes]) -> Path:
    """Write an archive with these members, compressed according to its name."""
    mode: Any = {".gz": "w:gz", ".tgz": "w:gz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            add_member(archive, name, content)
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


def test_suffixes_select_members(tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.png": b"no picture", "1.seg.png": b"", "1.txt": b"a"})
    outcome = read_files("webdataset", tmp_path, suffixes=["txt"])
    assert outcome.good == [{"__key__": "1", "txt": "a"}]
    refusal = "suffixes: 'jpg': no inspected sample has it, only png, seg.png, txt"
    with pytest.raises(BadInput, match=refusal):
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


def test_other_members_are_skipped(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("folder"))
        link = tarfile.TarInfo("1.lnk")
        link.type, link.linkname = tarfile.SYMTYPE, "1.txt"
        archive.addfile(link)
        for name in ("README", "._1.txt", "1.txt"):
            add_member(archive, name, b"a")
    assert read_files("webdataset", tmp_path).good == [{"__key__": "1", "txt": "a"}]


def test_compressed_archives_are_unpacked(tmp_path: Path) -> None:
    for name in ("a.tar.gz", "a.tgz"):
        outcome = read_files("webdataset", shard(tmp_path / name, captions(20)))
        assert [row["txt"] for row in outcome.good] == [f"caption {n}" for n in range(20)], name


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
    with pytest.raises(BadInput, match=r"types\.txt: only members that end in \.json"):
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


def test_undecodable_sample_fails_its_row(tmp_path: Path) -> None:
    bad = {"1.png": b"no picture", "3.json": b"{", "4.cls": b"cat", "5.txt": b"\xff"}
    bad["6.cls"] = b"9" * 30
    shard(tmp_path / "a.tar", {"0.txt": b"a", **bad, "2.txt": b"c", "7.txt": b"h"})
    outcome = read_files("webdataset", tmp_path)
    assert [row["txt"] for row in outcome.good] == ["a", "c", "h"]
    assert [place for _, place in outcome.bad] == [1, 2, 3, 4, 5]
    assert outcome.ends == {0: 8}


def test_duplicate_member_fails_its_row(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("1.txt", "1.TXT", "2.txt"):
            add_member(archive, name, b"a")
    outcome = read_files("webdataset", tmp_path)
    assert outcome.bad == {(0, 0): "ValueError: sample '1' has two members 'txt'"}
    assert [row["__key__"] for row in outcome.good] == ["2"]


@pytest.mark.parametrize(
    ("begin", "noise", "good"),
    # the member with the damaged header might belong to the third sample
    [(600, b"", 3), (0, b"\xff" * 100, 2)],
    ids=["truncated", "damaged header"],
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
    assert [place for place in outcome.places if place[0] == 0] == [(0, row) for row in range(good)]
    assert list(outcome.bad) == [(0, good)]
    assert (1, 0) in outcome.places


def test_damaged_gzip_is_one_failed_row(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar.gz", captions(500))
    path.write_bytes(path.read_bytes()[:-500])
    outcome = read_files("webdataset", tmp_path)
    assert len(outcome.bad) == 1
    assert len(outcome.good) > 300
