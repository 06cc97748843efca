"""Files at an address: on a local disk, and on a file system without rename."""

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
    """An address of an object store whose objects are files of this disk."""

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


def test_written_content_can_be_read(place: Address) -> None:
    for content in (b"first", b"", memoryview(b"second"), bytes(range(256)) * 1000):
        (place / "a").write(content)
        assert (place / "a").read() == bytes(content)


@pytest.mark.parametrize("name", ["a.gz", "a.json.gz", "a.bz2", "a.zst"])
def test_compressed_file_is_not_unpacked(place: Address, tmp_path: Path, name: str) -> None:
    content = gzip.compress(b"content")
    (place / name).write(content)
    assert (place / name).read() == content
    assert next(tmp_path.rglob(name)).read_bytes() == content


def test_missing_file_raises_and_can_be_deleted(place: Address) -> None:
    for _ in range(2):
        assert not (place / "a").exists()
        with pytest.raises(FileNotFoundError):
            (place / "a").read()
        (place / "a").delete()
        (place / "a").write(b"x")
        (place / "a").delete()


def test_files_are_listed_without_directories(place: Address, tmp_path: Path) -> None:
    root = next(tmp_path.glob("bucket"), tmp_path)
    (root / "sub/deep").mkdir(parents=True)
    for name in ("a", "b", "sub/c", "sub/deep/d"):
        (place / name).write(b"x")
    assert listed(place) == ["a", "b"]
    assert listed(place, recursive=True) == ["a", "b", "c", "d"]
    assert listed(place / "sub") == ["c"]
    assert listed(place / "none") == []
    for _ in range(2):
        (place / "sub").delete_directory()
        assert listed(place, recursive=True) == ["a", "b"]


def test_address_is_pickled_without_its_file_system(place: Address) -> None:
    place.info()
    assert pickle.loads(pickle.dumps(Address(place.uri))) == Address(place.uri)
    assert len(pickle.dumps(place)) < 200


def test_listed_paths_become_addresses(place: Address) -> None:
    (place / "a").write(b"content")
    (info,) = place.files()
    assert place.at(info.path).read() == b"content"


def test_path_is_normalized() -> None:
    for uri, path, local in (
        ("/a/b", "/a/b", True),
        ("/a/b/", "/a/b", True),
        ("/a/./c/../b", "/a/b", True),
        ("file:///a/b/", "/a/b", True),
        ("b", os.path.abspath("b"), True),
        ("s3://bucket", "bucket", False),
        ("s3://bucket/a/b/", "bucket/a/b", False),
    ):
        assert (Address(uri).path, Address(uri).local) == (path, local)
        assert (Address(uri) / "c").path == f"{path}/c"


def test_write_makes_directories_and_a_file_readable_by_all(tmp_path: Path) -> None:
    Address(str(tmp_path / "a/b/c")).write(b"x")
    assert (tmp_path / "a/b/c").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o644


def test_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    target = Address(str(tmp_path / "a"))
    target.write(b"before")
    with pytest.raises(TypeError):
        target.write("no bytes")  # type: ignore[arg-type]
    assert target.read() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
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


def test_temporary_file_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
