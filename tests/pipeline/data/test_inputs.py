"""The frozen input: which files paths stand for, and in what order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline import inputs
from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.inputs import FrozenInput, freeze_input, paths_of
from batchinference.pipeline.storage import Address

FILES = [
    *("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.txt", "UPPER.TXT", "a.csv", "noending"),
    *(".hidden.txt", "_SUCCESS", "_state/e.txt", ".git/f.txt", "sub/_g.txt", "a[1].txt"),
]
FOUND = ["UPPER.TXT", "a.txt", "a[1].txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"]
"""What a directory with these files holds for a job that reads texts."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def names(tree: Path, *patterns: str, extensions: tuple[str, ...] = ("txt",)) -> list[str]:
    """The files behind some paths below a directory, by their names in it."""
    frozen = freeze_input([f"{tree}/{pattern}" for pattern in patterns], list(extensions))
    return [os.path.relpath(file.path, tree) for file in frozen.files()]


def test_a_directory_is_all_its_files_with_a_usual_ending_sorted(tree: Path) -> None:
    assert names(tree, "") == FOUND


def test_without_endings_a_directory_is_all_its_files(tree: Path) -> None:
    assert names(tree, "", extensions=()) == sorted([*FOUND, "a.csv", "noending"])


@pytest.mark.parametrize("ending", ["csv", ".csv", "CSV"])
def test_endings_are_told_with_or_without_the_dot(tree: Path, ending: str) -> None:
    assert names(tree, "", extensions=(ending,)) == ["a.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["a.txt", "a[1].txt", "b.txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[ab].*", ["a.csv", "a.txt", "b.txt"]),
        ("*/c.txt", ["sub/c.txt"]),
        ("**/d.txt", ["sub/deep/d.txt"]),
        ("s*", ["sub/c.txt", "sub/deep/d.txt"]),
        ("*", ["UPPER.TXT", "a.csv", "a.txt", "a[1].txt", "b.txt", "noending", "sub/c.txt",
               "sub/deep/d.txt"]),
        (".h*", [".hidden.txt"]),
        ("_s*/*", ["_state/e.txt"]),
        ("_state/*", ["_state/e.txt"]),
    ],
)  # fmt: skip
def test_a_glob_stands_for_what_it_matches(tree: Path, pattern: str, expected: list[str]) -> None:
    assert names(tree, pattern) == expected


@pytest.mark.parametrize(
    "name", ["a.csv", "noending", ".hidden.txt", "_SUCCESS", "_state/e.txt", "a[1].txt"]
)
def test_a_file_that_is_named_is_taken_whatever_its_name(tree: Path, name: str) -> None:
    assert names(tree, name) == [name]


def test_a_hidden_directory_that_is_named_is_read(tree: Path) -> None:
    assert names(tree, "_state", ".git") == [".git/f.txt", "_state/e.txt"]


@pytest.mark.parametrize(
    "path", ["{}/a.txt", "file://{}/a.txt", "FILE://{}/a.txt", "{}/sub/../a.txt", "{}//a.txt"]
)
def test_a_local_path_can_be_written_in_several_ways(tree: Path, path: str) -> None:
    (file,) = freeze_input([path.format(tree)], []).files()
    assert file.path == str(tree / "a.txt")


def test_a_path_may_be_relative(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert [file.path for file in freeze_input(["./sub"], ["txt"]).files()] == [
        *(str(tree / "sub/c.txt"), str(tree / "sub/deep/d.txt"))
    ]


def test_a_file_that_is_named_twice_is_read_once(tree: Path) -> None:
    assert names(tree, "a.txt", "", "*.txt", "./a.txt", "sub", "sub/") == FOUND


def test_files_are_numbered_in_the_order_of_their_paths_and_not_of_the_list(tree: Path) -> None:
    frozen = freeze_input([f"{tree}/sub", f"{tree}/b.txt", f"{tree}/a.txt"], ["txt"])
    assert [(file.number, os.path.relpath(file.path, tree)) for file in frozen.files()] == [
        *((0, "a.txt"), (1, "b.txt"), (2, "sub/c.txt"), (3, "sub/deep/d.txt"))
    ]


def test_sizes_are_kept(tree: Path) -> None:
    frozen = freeze_input([f"{tree}/a.txt", f"{tree}/sub"], ["txt"])
    assert [file.size for file in frozen.files()] == [5, 9, 14]
    assert frozen.size == 28
    assert len(frozen) == 3


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("missing", r"read.paths\[1\] '.*/missing' does not exist"),
        ("missing/*.txt", r"read.paths\[1\] '.*' holds no files that end in .txt"),
        ("*.nothing", r"read.paths\[1\] '.*' holds no files that end in .txt"),
        ("empty", r"read.paths\[1\] '.*/empty' holds no files that end in .txt"),
    ],
)
def test_a_path_without_files_is_refused_by_its_place(tree: Path, pattern: str, words: str) -> None:
    (tree / "empty/inner").mkdir(parents=True)
    (tree / "empty/inner/a.csv").touch()
    with pytest.raises(BadInput, match=words):
        names(tree, "a.txt", pattern)


def test_an_empty_directory_without_endings_has_no_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds no files$"):
        names(tmp_path, "", extensions=())


def test_a_directory_that_may_not_be_listed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(BadInput, match=r"cannot be listed: .*too long"):
        freeze_input([str(path)], [])


def test_more_files_than_ids_can_tell_apart_are_refused(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "MAX_FILES", 5)
    with pytest.raises(BadInput, match="the input has 6 files; at most 5"):
        names(tree, "")


def test_a_frozen_input_tells_the_paths_of_its_files_later(tree: Path) -> None:
    frozen = freeze_input([str(tree)], ["txt"])
    kept = Address(str(tree / "input.parquet"))
    kept.write(frozen.serialized())
    assert paths_of(kept).to_pylist() == [str(tree / name) for name in FOUND]


def test_an_address_of_a_file_can_be_read(tree: Path) -> None:
    frozen = freeze_input([f"file://{tree}/sub"], ["txt"])
    assert [frozen.address(file).read() for file in frozen.files()] == [
        *(b"sub/c.txt", b"sub/deep/d.txt")
    ]


@settings(max_examples=30, deadline=None)
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
def test_the_list_depends_on_the_files_alone(
    tmp_path_factory: pytest.TempPathFactory, made: set[str], again: object
) -> None:
    directory = tmp_path_factory.mktemp("tree")
    for name in made:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    paths = [str(directory / name) for name in made]
    again.shuffle(paths)  # type: ignore[attr-defined]
    whole = freeze_input([str(directory)], ["txt"])
    assert _same(whole, freeze_input(paths, ["txt"]))
    listed = [file.path for file in whole.files()]
    assert listed == sorted(str(directory / name) for name in made)


def _same(one: FrozenInput, other: FrozenInput) -> bool:
    return bool(one.table.equals(other.table)) and one.serialized() == other.serialized()


def test_all_paths_lie_in_one_storage(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="mixes local paths and s3://"):
        freeze_input([str(tmp_path), "s3://bucket/data"], [])
