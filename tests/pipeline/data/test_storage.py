"""Files on a local disk: atomic writes, permissions, locks, links and special files."""

from __future__ import annotations

import errno
import os
import pickle
import re
import stat
import threading
from pathlib import Path
from unittest.mock import patch

import pytest
from ray.exceptions import OutOfDiskError

from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import BadInput, BadOutput, ModelLoad
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.storage.location import Location, remnant_of
from plugins.messages import Messages


def test_file_is_moved_to_another_disk(tmp_path: Path) -> None:
    source, target = Location(str(tmp_path / "x")), Location(str(tmp_path / "b" / "y"))
    source.write(b"new")
    error = OSError(errno.EXDEV, "Invalid cross-device link")
    with patch("os.rename", side_effect=[error, None]) as rename:
        source.move(target)
    assert rename.call_args_list[1].args[1] == "y", "it was written to a temporary file"
    assert not source.exists()


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
        assert (Location(uri).path, Location(uri).local) == (path, local)
        assert (Location(uri) / "c").path == f"{path}/c"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_write_makes_directories_and_a_file_with_the_permissions_of_the_umask(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        Location(str(tmp_path / "a/b/c")).write(b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a/b/c").read_bytes() == b"x"
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode | mode >> 2 & 0o111


def test_full_disk_is_named_with_its_free_space(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "a"))
    full = OSError(errno.ENOSPC, "No space left on device")
    with patch("os.fsync", side_effect=full), pytest.raises(OSError, match="full") as caught:
        location.write(b"x")
    failure = root_cause(caught.value)
    assert failure.reason == "OutOfDisk"
    message = r" is full: \d+ MB are free. Free some space, then run the same job again to resume"
    assert re.fullmatch(f"the disk of '{tmp_path}'{message}", failure.message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/cache/model"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        ModelLoad("the model cannot be loaded: [Errno 28] No space left on device"),
        OutOfDiskError("local disk"),
    ],
)
def test_full_disk_of_a_pod_is_no_fault_of_the_job(error: Exception) -> None:
    assert root_cause(error).reason == "OutOfDisk"


def test_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    target = Location(str(tmp_path / "a"))
    target.write(b"before")
    with pytest.raises(TypeError):
        target.write("no bytes")  # type: ignore[arg-type]
    assert target.read() == b"before"
    assert os.listdir(tmp_path) == ["a"]


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    target = Location(str(tmp_path / "a"))
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


def test_file_is_created_and_changed_under_a_lock(tmp_path: Path) -> None:
    file = Location(str(tmp_path / "job.json"))
    file.update(lambda before: b"first" if before is None else b"")
    file.update(lambda before: (before or b"") + b" second")
    assert file.read() == b"first second"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"job.json", ".job.json.lock"}
    assert {remnant_of(name) for name in names} == {None, "job.json"}


def test_temporary_file_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    rename = os.rename

    def watched(*names: str, **directories: int) -> None:
        seen.extend(os.listdir(tmp_path))
        rename(*names, **directories)

    monkeypatch.setattr(os, "rename", watched)
    Location(str(tmp_path / "a")).write(b"x")
    assert len(seen) == 1
    assert seen[0].startswith(".")
    assert seen[0].endswith(".tmp")


def test_linked_directories_of_partitions_are_not_followed(tmp_path: Path) -> None:
    output, other = tmp_path / "out", tmp_path / "other"
    for folder in (output / "class=cat", other / "day=1"):
        folder.mkdir(parents=True)
        (folder / "part-1.parquet").write_text("a")
    (output / "class=dog").symlink_to(other)
    (output / "class=cat" / "day=1").symlink_to(other / "day=1")
    location = Location(str(output))
    relatives = [location.relative(info.path) for info in location.data_files()]
    assert relatives == ["class=cat/part-1.parquet"]
    (tmp_path / "link").symlink_to(output)
    linked = Location(str(tmp_path / "link"))
    assert [linked.relative(info.path) for info in linked.data_files()] == relatives


OPERATIONS = {
    "info": Location.info,
    "read": Location.read,
    "open": Location.open_input_file,
    "write": lambda file: file.write(b"x"),
    "delete": Location.delete,
    "move": lambda file: file.move(Location(str(Path(file.root).parent / "stolen"))),
    "move to": lambda file: Location(str(Path(file.root).parent / "mine")).move(file),
    "list": lambda file: file.at(os.path.dirname(file.path)).files(),
    "list data": lambda file: file.at(os.path.dirname(file.path)).data_files(),
    "delete directory": Location.delete_directory,
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("linked", ["state", "state/deep"])
def test_no_operation_follows_a_link_below_the_root(
    tmp_path: Path, operation: str, linked: str, messages: Messages
) -> None:
    """The path of the root itself may contain links, because the user has named it."""
    theirs, output = tmp_path / "theirs", tmp_path / "out"
    (theirs / "deep").mkdir(parents=True)
    for file in (theirs / "file", theirs / "deep" / "file", tmp_path / "mine"):
        file.write_text("not in the output")
    (output / linked).parent.mkdir(parents=True)
    (output / linked).symlink_to(theirs if linked == "state" else theirs / "deep")
    (tmp_path / "link").symlink_to(output)
    root = Location(str(tmp_path / "link"))
    file = pickle.loads(pickle.dumps(root.without_links_below(root))) / "state/deep/file"
    before = sorted(tmp_path.rglob("*"))
    with messages.raises(BadOutput):
        OPERATIONS[operation](file)
    assert sorted(tmp_path.rglob("*")) == before
    (output / "own").write_bytes(b"own")
    assert (root.without_links_below(root) / "own").read() == b"own"


def test_linked_file_is_neither_read_nor_moved_but_replaced_and_deleted(tmp_path: Path) -> None:
    theirs, link = tmp_path / "theirs", tmp_path / "out" / "link"
    theirs.write_text("secret")
    link.parent.mkdir()
    root = Location(str(link.parent))
    file = (root / "link").without_links_below(root)
    for act in (Location.read, Location.open_input_file, lambda file: file.move(root / "new")):
        link.symlink_to(theirs)
        with pytest.raises(BadOutput, match="symbolic link"):
            act(file)
        file.delete()
        assert not link.is_symlink()
    link.symlink_to(theirs)
    file.write(b"own")
    assert (file.read(), theirs.read_text()) == (b"own", "secret")


@pytest.mark.timeout(20)
def test_special_file_is_not_read(tmp_path: Path, messages: Messages) -> None:
    """Reading a named pipe would wait for a writer forever."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with messages.raises(OSError):
            Location(str(path)).read(10)
        with messages.raises(BadInput):
            snapshot_input([str(path)], [])


@pytest.mark.skipif(not hasattr(os, "O_PATH"), reason="needs O_PATH, which Linux has")
def test_file_is_read_in_directories_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "file"
    file.parent.mkdir()
    file.write_bytes(b"content")
    real_open = os.open

    def refusing(path: str, flags: int, *args: int, **options: int) -> int:
        if flags & os.O_DIRECTORY and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real_open(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    root = Location(str(tmp_path))
    assert Location(str(file)).read() == b"content"
    assert (root.without_links_below(root) / "deep/file").read() == b"content"


def test_lock_that_cannot_be_created_is_a_missing_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refusing(path: str, flags: int, *args: int, **options: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real_open(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(PermissionError):
        Location(str(tmp_path / "job.json")).update(lambda _: b"new")
