"""Files at an address: on a local disk, and on a file system that has no rename."""

from __future__ import annotations

import gzip
import os
import pickle
import stat
import threading
from functools import cached_property
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from batchinference.pipeline.storage import Address, base_name


class Elsewhere(Address):
    """An address that is handled as those of an object store are, and lies on this disk."""

    ROOT = ""

    @cached_property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.SubTreeFileSystem(self.ROOT, pafs.LocalFileSystem())

    def __truediv__(self, name: str) -> Elsewhere:
        return Elsewhere(f"{self.uri.rstrip('/')}/{name}")

    def at(self, path: str) -> Elsewhere:
        return Elsewhere(f"s3://{path}")


@pytest.fixture(params=["local", "elsewhere"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Address:
    if request.param == "local":
        return Address(str(tmp_path))
    (tmp_path / "bucket").mkdir()
    monkeypatch.setattr(Elsewhere, "ROOT", str(tmp_path))
    return Elsewhere("s3://bucket/")


def listed(place: Address, *, recursive: bool = False) -> list[str]:
    return sorted(base_name(info.path) for info in place.files(recursive=recursive))


def test_what_is_written_can_be_read(place: Address) -> None:
    for content in (b"first", b"", memoryview(b"second"), bytes(range(256)) * 1000):
        (place / "a").write(content)
        assert (place / "a").read() == bytes(content)


@pytest.mark.parametrize("name", ["a.gz", "a.json.gz", "a.bz2", "a.zst"])
def test_a_compressed_file_is_written_and_read_as_it_is(
    place: Address, tmp_path: Path, name: str
) -> None:
    content = gzip.compress(b"content")
    (place / name).write(content)
    assert (place / name).read() == content
    assert next(tmp_path.rglob(name)).read_bytes() == content


def test_a_file_that_is_not_there_raises(place: Address) -> None:
    assert not (place / "a").exists()
    with pytest.raises(FileNotFoundError):
        (place / "a").read()


def test_deleting_what_is_gone_is_no_error(place: Address) -> None:
    (place / "a").write(b"x")
    (place / "a").delete()
    assert not (place / "a").exists()
    (place / "a").delete()


def test_files_are_listed_without_directories(place: Address, tmp_path: Path) -> None:
    root = next(tmp_path.glob("bucket"), tmp_path)
    (root / "sub").mkdir()
    for name in ("a", "b", "sub/c"):
        (place / name).write(b"x")
    assert listed(place) == ["a", "b"]
    assert listed(place, recursive=True) == ["a", "b", "c"]
    assert listed(place / "sub") == ["c"]
    assert listed(place / "none") == []


def test_a_directory_is_deleted_with_all_its_files(place: Address, tmp_path: Path) -> None:
    root = next(tmp_path.glob("bucket"), tmp_path)
    (root / "sub/deep").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/deep/c"):
        (place / name).write(b"x")
    (place / "sub").delete_directory()
    assert listed(place, recursive=True) == ["a"]
    (place / "sub").delete_directory()


def test_an_address_travels_without_its_file_system(place: Address) -> None:
    place.info()
    assert pickle.loads(pickle.dumps(Address(place.uri))) == Address(place.uri)
    assert len(pickle.dumps(place)) < 200


def test_paths_of_a_listing_lead_back_to_addresses(place: Address) -> None:
    (place / "a").write(b"content")
    (info,) = place.files()
    assert place.at(info.path).read() == b"content"


@pytest.mark.parametrize(
    ("uri", "path", "local"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/", "/a/b", True),
        ("/a/./c/../b", "/a/b", True),
        ("file:///a/b/", "/a/b", True),
        ("b", os.path.abspath("b"), True),
        ("s3://bucket", "bucket", False),
        ("s3://bucket/a/b/", "bucket/a/b", False),
    ],
)
def test_the_path_is_what_the_file_system_knows(uri: str, path: str, local: bool) -> None:
    assert Address(uri).path == path
    assert Address(uri).local == local
    assert (Address(uri) / "c").path == f"{path}/c"


def test_missing_directories_are_made(tmp_path: Path) -> None:
    Address(str(tmp_path / "a/b/c")).write(b"x")
    assert (tmp_path / "a/b/c").read_bytes() == b"x"


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    Address(str(tmp_path / "a")).write(b"x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_nothing_and_harms_nothing(tmp_path: Path) -> None:
    target = Address(str(tmp_path / "a"))
    target.write(b"before")
    with pytest.raises(TypeError):
        target.write("no bytes")  # type: ignore[arg-type]
    assert target.read() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    target = Address(str(tmp_path / "a"))
    contents = [bytes([number]) * 300_000 for number in range(4)]
    target.write(contents[0])
    done = threading.Event()

    def write() -> None:
        for number in range(100):
            target.write(contents[number % 4])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert target.read() in contents
    writer.join()


def test_a_file_under_way_is_hidden_from_readers_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    rename = os.rename

    def watched(source: str, target: str) -> None:
        seen.extend(os.listdir(tmp_path))
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    Address(str(tmp_path / "a")).write(b"x")
    assert len(seen) == 1
    assert seen[0].startswith(".")
    assert seen[0].endswith(".tmp")
