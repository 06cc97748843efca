"""`logs --follow` prints each line of a growing log once."""

from __future__ import annotations

import pytest

from batchinference.cli.show_logs import new_lines


@pytest.mark.parametrize(
    ("shown", "lines", "new"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a"], ["a", "b"], ["b"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "x", "a"], ["a", "x", "a", "x", "a"], ["x", "a"]),
        (["a", "b"], ["c", "d"], ["c", "d"]),
    ],
    ids=["first", "longer", "same", "begin cut", "repeated", "another log"],
)
def test_lines_after_the_shown_ones_are_new(
    shown: list[str], lines: list[str], new: list[str]
) -> None:
    assert new_lines(shown, lines) == new
