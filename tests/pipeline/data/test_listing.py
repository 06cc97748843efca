"""The input snapshot: the files that paths, directories and globs select, and their order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.input_snapshot import file_table, paths_of
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.storage.location import Location
from support.calls import counted
from support.tiers import examples

FILES = [
    *("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", "UPPER.TXT", "a.csv", "noending"),
    *(".hidden.txt", "_SUCCESS", "_state/e.txt", ".git/f.txt", "sub/_g.txt", "a[1].txt"),
]
FOUND = ["UPPER.TXT", "a.txt", "a[1].txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
"""The entries of FILES that a job with the format text reads from the directory."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(tree: Path, *patterns: str, extensions: tuple[str, ...] = ("txt",)) -> list[str]:
    """Return the names of the files that the patterns, relative to the directory, select."""
    frozen = snapshot_input([f"{tree}/{pattern}" for pattern in patterns], list(extensions))
    return [os.path.relpath(file.path, tree) for file in frozen.files()]


def test_directory_selects_files_by_extension_sorted(tree: Path) -> None:
    assert names(tree, "") == FOUND
    assert names(tree, "", extensions=()) == sorted([*FOUND, "a.csv", "noending"])
    for ending in ("csv", ".csv", "CSV"):
        assert names(tree, "", extensions=(ending,)) == ["a.csv"]


def test_glob_selects_matching_files(tree: Path) -> None:
    expected = {
        "*.txt": ["a.txt", "a[1].txt", "b.txt"],
        "?.txt": ["a.txt", "b.txt"],
        "[ab].*": ["a.csv", "a.txt", "b.txt"],
        "*/c.txt": ["sub/c.txt"],
        "**/d.txt": ["sub/deep/d.txt"],
        "s*": ["sub/c.txt", "sub/deep/d.txt"],
        "*": sorted([*FOUND, "a.csv", "noending"]),
        **{"**": sorted([*FOUND, "a.csv", "noending"]), "**/*.csv": ["a.csv"]},
        **{"s*/**/d.txt": ["sub/deep/d.txt"], "**/deep/**": ["sub/deep/d.txt"]},
        **{"**/d*p": ["sub/deep/d.txt"], "a[[]1].txt": ["a[1].txt"]},
        **{".h*": [".hidden.txt"], "_s*/*": ["_state/e.txt"], "_state/*": ["_state/e.txt"]},
    }
    assert {pattern: names(tree, pattern) for pattern in expected} == expected


def test_brackets_in_the_name_of_a_directory_are_literal(tmp_path: Path) -> None:
    for directory in ("a[1]", "a1", "b[2]"):
        (tmp_path / directory / "in[1]").mkdir(parents=True)
        (tmp_path / directory / "in[1]" / "x.txt").touch()
    for pattern in ("a[1]/in[1]/*.txt", "a[1]/*/x.txt", "a[1]/**", "a[1]/in[1]/[wx].txt"):
        assert names(tmp_path, pattern) == ["a[1]/in[1]/x.txt"], pattern
    assert names(tmp_path, "a[01]/*/*.txt") == ["a1/in[1]/x.txt"]
    assert names(tmp_path, "*[[]2]/*/*") == ["b[2]/in[1]/x.txt"]


def test_each_directory_of_a_glob_is_listed_once(tree: Path) -> None:
    with counted(Location, "content") as lists:
        assert names(tree, "*/*.txt") == ["sub/c.txt"]
        assert names(tree, "**") == sorted([*FOUND, "a.csv", "noending"])
    *first, last = (os.path.relpath(call.args[0].path, tree) for call in lists.call_args_list)
    assert (sorted(first), last) == (sorted([".", "sub", "_state", ".git"]), ".")


def test_links_to_directories_above_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("in/a.txt", "in/sub/b.txt", "other/c.txt"):
        (tmp_path / name).touch()
    (tmp_path / "in" / "sub" / "top").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "self").symlink_to("self")
    (tmp_path / "in" / "side").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(tmp_path / "in")
    assert names(tmp_path, "in") == ["in/a.txt", "in/side/c.txt", "in/sub/b.txt"]
    assert snapshot_input([str(tmp_path / "in")], ["txt"]).ignored.total == 3


def test_named_files_and_hidden_directories_are_read(tree: Path) -> None:
    for name in ("a.csv", "noending", ".hidden.txt", "_SUCCESS", "_state/e.txt", "a[1].txt"):
        assert names(tree, name) == [name]
    assert names(tree, "_state", ".git") == [".git/f.txt", "_state/e.txt"]


def test_local_paths_are_normalized(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("{}/a.txt", "file://{}/a.txt", "FILE://{}/a.txt", "{}/sub/../a.txt", "{}//a.txt"):
        (file,) = snapshot_input([path.format(tree)], []).files()
        assert file.path == str(tree / "a.txt"), path
    monkeypatch.chdir(tree)
    files = snapshot_input(["./sub"], ["txt"]).files()
    assert [file.path for file in files] == [f"{tree}/sub/c.txt", f"{tree}/sub/deep/d.txt"]


def test_file_selected_by_different_paths_is_read_once(tree: Path) -> None:
    assert names(tree, "a.txt", "", "*.txt", "./a.txt", "sub", "sub/") == FOUND


def test_path_listed_twice_is_read_twice(tree: Path) -> None:
    assert names(tree, "b.txt", "a.txt", "b.txt", "*.txt") == ["a.txt", "a[1].txt", *["b.txt"] * 2]
    assert names(tree, "sub", "sub") == [*("sub/c.txt",) * 2, *("sub/deep/d.txt",) * 2]


def test_files_have_numbers_in_the_order_of_paths_and_sizes(tree: Path) -> None:
    frozen = snapshot_input([f"{tree}/sub", f"{tree}/b.txt", f"{tree}/a.txt"], ["txt"])
    files = frozen.files()
    chosen = ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt")
    assert [file.path for file in files] == [f"{tree}/{name}" for name in chosen]
    assert [(file.number, file.size) for file in files] == [(0, 5), (1, 5), (2, 9), (3, 14)]
    assert (frozen.size, len(frozen)) == (33, 4)


def test_path_without_files_is_rejected(tree: Path) -> None:
    (tree / "empty/inner").mkdir(parents=True)
    assert_refused(tree, "empty", r"holds no files\. Choose another path", extensions=())
    (tree / "empty/inner/a.csv").touch()
    assert_refused(tree, "empty", r"1 file ignored: \.csv 1.*fileExtensions.*read\.allowEmpty")
    assert_refused(tree, "missing", "/missing' does not exist")
    (tree / "[x]").mkdir()
    assert_refused(tree, "[x]/a.txt", "/a.txt' does not exist")
    assert_refused(tree, "missing/*.txt", "matches no file; there is no directory '.*/missing'")
    assert_refused(
        tree, "*.nothing", rf"matches no file; '{tree}' holds .*a\.txt.* \d more\. Correct"
    )
    assert_refused(tree, "empty", r"/empty' holds no files that end in \.txt")
    assert_refused(tree, "x" * 300, r"cannot be listed: .*too long")


def assert_refused(tree: Path, pattern: str, reason: str, **options: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=rf"spec.read.paths\[1\]: '.*{reason}"):
        names(tree, "a.txt", pattern, **options)


def test_paths_in_different_storages_are_rejected(tree: Path) -> None:
    with pytest.raises(BadInput, match="mixes local paths and s3://"):
        snapshot_input([str(tree), "s3://bucket/data"], [])


def test_too_many_files_are_rejected() -> None:
    with pytest.raises(BadInput, match="the input has 6 files; at most 5"):
        file_table([("/a", 1, None)] * 6, max_files=5)


def test_stored_frozen_input_has_the_paths(tree: Path) -> None:
    stored = Location(str(tree / "input.parquet"))
    stored.write(snapshot_input([str(tree)], ["txt"]).serialized())
    assert paths_of(stored, "a digest").to_pylist() == [str(tree / name) for name in FOUND]


@settings(max_examples=examples(30), deadline=None)
@given(
    made=st.sets(
        st.lists(st.sampled_from(["a", "B", "1", "é", "a b", "%20", "#"]), min_size=1, max_size=3)
        .map("/".join)
        .map("{}.txt".format),
        min_size=1,
        max_size=8,
    ),
    again=st.randoms(use_true_random=False),
)
def test_frozen_list_depends_on_the_files_only(
    tmp_path_factory: pytest.TempPathFactory, made: set[str], again: object
) -> None:
    directory = tmp_path_factory.mktemp("tree")
    for name in made:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    paths = [str(directory / name) for name in made]
    again.shuffle(paths)  # type: ignore[attr-defined]
    full, listed = snapshot_input([str(directory)], ["txt"]), snapshot_input(paths, ["txt"])
    assert full.table.equals(listed.table)
    assert full.serialized() == listed.serialized()
    assert [file.path for file in full.files()] == sorted(str(directory / name) for name in made)
