"""Columns with the same name are renamed by one rule for all formats, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.column_names import unique_names
from batchinference.pipeline.errors import BadInput
from support.inputs.read_files import Outcome, open_input, read_files


@pytest.fixture(params=["parquet", "csv"])
def clashing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Write a file with clashing names, and return its format and its path."""
    names, path = ["v", "V", "v", "v_1"], tmp_path / f"a.{request.param}"
    if request.param == "csv":
        path.write_text(",".join(names) + "\n0,1,2,3\n")
    else:
        columns = [pa.array([number]) for number in range(len(names))]
        pq.write_table(pa.Table.from_arrays(columns, names=names), path)
    return request.param, path


def test_duplicate_columns_are_renamed_or_refused(clashing: tuple[str, Path]) -> None:
    with pytest.raises(BadInput, match=r"two columns 'v'.*duplicateColumns: rename"):
        open_input(*clashing)
    given = open_input(*clashing, duplicateColumns="rename").given
    assert given.columns() == ["v", "V_2", "v_3", "v_1"]
    outcome = read_files(*clashing, duplicateColumns="rename")
    assert outcome.good == [{"v": 0, "V_2": 1, "v_3": 2, "v_1": 3}]


@pytest.mark.parametrize("clashing", ["parquet"], indirect=True)
def test_columns_are_chosen_by_their_new_names(clashing: tuple[str, Path]) -> None:
    def read(**options: Any) -> Outcome:
        return read_files(*clashing, **options)

    renamed = read(columns=["v_3", "v_1"], duplicateColumns="rename")
    assert renamed.good == [{"v_3": 2, "v_1": 3}]
    assert read(columns=["V", "v_1"]).good == [{"V": 1, "v_1": 3}]


@pytest.mark.parametrize(
    ("names", "unique"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a_1", "a_2"]),
        (["a", "a_1", "a"], ["a", "a_1", "a_2"]),
        (["id", "ID"], ["id", "ID_1"]),
    ],
)
def test_names_are_made_unique(names: list[str], unique: list[str]) -> None:
    assert unique_names(names) == unique
