"""The cause of a failed row: its error without the parts that differ from row to row."""

from __future__ import annotations

import pytest

from batchinference.pipeline.output.error_groups import cause_of


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("KeyError: 'a b' (own.py:7 in f)", "KeyError: ... (own.py:7 in f)"),
        ('KeyError: "it\'s"', "KeyError: ..."),
        ("ValueError: 12 of 4.5 rows", "ValueError: ... of ... rows"),
        ("OSError: utf8 in a1b2", "OSError: utf8 in a1b2"),
        ("OSError: img_00123.jpg:17 at -1.5", "OSError: img_....jpg:... at -..."),
        ("TypeError: <Row at 0x7f3a> of 0x7F3B", "TypeError: <Row at ...> of ..."),
        ("TypeError: <class 'int'> < 3", "TypeError: <class ...> < ..."),
        ("ValueError: bad value\nin a.txt", "ValueError: bad value"),
        ("RuntimeError: \n\nCUDA out of memory\nTry 1", "RuntimeError: CUDA out of memory"),
        ("", ""),
    ],
)
def test_cause_has_no_values_of_the_row(error: str, cause: str) -> None:
    assert cause_of(error) == cause
