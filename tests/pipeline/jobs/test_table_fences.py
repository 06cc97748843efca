"""Drivers that die right after the commit of a table, or are held up right before it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import deltalake
import lance
import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog

from batchinference.pipeline import attempt
from batchinference.pipeline.attempt import Attempt
from batchinference.pipeline.inputs import paths_of
from batchinference.pipeline.tables.base import Fence
from batchinference.spec.report import JobState, Report
from support.documents import Document, document
from support.job_runs import write_lines
from support.played_jobs import play
from support.verified import verified

EXCLUSIVE = ["delta", "iceberg", "sql"]
"""Tables that do not take a second commit of a series, at whatever moment it comes."""
FORMATS = [*EXCLUSIVE, "lance"]


class Table:
    """A table, and the job that writes it: bad rows are those with an x."""

    def __init__(self, format_: str, place: Path) -> None:
        self.format, self.place = format_, place
        self.output = place / "out"
        self.lines("a", ["a1", "x a2", "a3"])

    def lines(self, name: str, lines: list[str]) -> None:
        write_lines(self.place / "in", {f"{name}.txt": lines})

    def job(self, mode: str = "append", **spec: Any) -> Document:
        step: Document = {
            "name": "own",
            "python": {"callable": "support.tables:without_x", "method": "map"},
        }
        errors = {"maxRows": 10, **spec.pop("errors", {})}
        write = {"format": self.format, "path": str(self.output), "mode": mode, **self._fields()}
        read = {"format": "text", "paths": [str(self.place / "in")]}
        return document("job", read=read, write=write, steps=[step], errors=errors, **spec)

    def play(self, mode: str = "append", **spec: Any) -> Report:
        paths_of.cache_clear()
        return play(self.job(mode, **spec))

    def texts(self) -> list[str]:
        return sorted(row["text"] for row in READ[self.format](self.place))

    def proven(self) -> bool:
        done = verified(self.output)
        assert done.found == {}
        return done.result == "proven"

    def _fields(self) -> Document:
        if self.format == "sql":
            return {"table": "rows", "url": f"sqlite:///{self.place}/data.db"}
        if self.format == "iceberg":
            return {"table": "ns.rows", "catalog": {"properties": properties(self.place)}}
        return {}


def properties(place: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}/w"}


def of_database(place: Path) -> list[dict[str, Any]]:
    with sa.create_engine(f"sqlite:///{place}/data.db").connect() as connection:
        return [dict(row) for row in connection.execute(sa.text("select * from rows")).mappings()]


READ: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "lance": lambda place: lance.dataset(str(place / "out")).to_table().to_pylist(),
    "delta": lambda place: deltalake.DeltaTable(str(place / "out")).to_pyarrow_table().to_pylist(),
    "iceberg": lambda place: (
        load_catalog("default", **properties(place)).load_table("ns.rows").scan().to_arrow()
    ).to_pylist(),
    "sql": of_database,
}


@pytest.fixture
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return Table(request.param, tmp_path)


Check = Callable[[], None]
Held = Callable[[Check], None]
"""What happens at the last look of a driver, before it or after it."""


def hold_up(monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    """Hold the next driver up at its last look, right before it writes to the table."""

    def fence(mark: str, series: str, check: Check) -> Fence:
        monkeypatch.setattr(attempt, "Fence", Fence)
        looks = chain([lambda: held(check)], repeat(check))

        def look() -> None:
            next(looks)()

        return Fence(mark, series, look)

    monkeypatch.setattr(attempt, "Fence", fence)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
@pytest.mark.parametrize("mode", ["error", "append"])
def test_a_driver_that_dies_right_after_its_commit_leaves_what_proves_it(
    table: Table, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Attempt.commit

    def die(self: Attempt, *arguments: Any) -> None:
        real(self, *arguments)
        raise OSError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(Attempt, "commit", die)
        assert table.play(mode).state == JobState.FAILED
    report = table.play(mode)
    assert (report.state, table.texts()) == (JobState.SUCCEEDED, ["a1", "a3"])
    assert report.counts is not None
    assert report.counts.model_dump() == {"read": 3, "written": 2, "failed": 1, "skipped": 0}
    assert table.proven()
    assert not (table.output / "_batchinference" / "staged").exists()
    assert table.play(mode).state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["a1", "a3"], True)


@pytest.mark.parametrize("filled", [False, True], ids=["a new table", "one with rows"])
class TestADriverThatIsHeldUp:
    def begin(self, table: Table, filled: bool) -> list[str]:
        """The rows of the table once all is done."""
        if not filled:
            return ["a1", "a3"]
        assert table.play().state == JobState.SUCCEEDED
        table.lines("b", ["b1", "x b2"])
        return ["a1", "a3", "b1"]

    @pytest.mark.parametrize("table", FORMATS, indirect=True)
    def test_until_another_has_finished_sees_it_at_its_last_look(
        self, table: Table, filled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.begin(table, filled)

        def held(check: Check) -> None:
            assert table.play().state == JobState.SUCCEEDED
            check()

        hold_up(monkeypatch, held)
        late = table.play()
        assert (late.state, late.reason) == (JobState.FAILED, "BadOutput")
        assert "another run has taken over" in (late.message or "")
        assert (table.texts(), table.proven()) == (rows, True)

    @pytest.mark.parametrize("table", EXCLUSIVE, indirect=True)
    def test_after_its_last_look_is_kept_out_by_the_table(
        self, table: Table, filled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.begin(table, filled)

        def held(check: Check) -> None:
            check()
            assert table.play().state == JobState.SUCCEEDED

        hold_up(monkeypatch, held)
        late = table.play()
        assert (late.state, late.reason) == (JobState.FAILED, "BadOutput")
        assert (table.texts(), table.proven()) == (rows, True)
        assert table.play().state == JobState.SUCCEEDED
        assert table.texts() == rows

    @pytest.mark.parametrize("table", ["lance"], indirect=True)
    def test_after_its_last_look_is_found_by_verify_in_a_table_that_lets_it_in(
        self, table: Table, filled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.begin(table, filled)

        def held(check: Check) -> None:
            check()
            assert table.play().state == JobState.SUCCEEDED

        hold_up(monkeypatch, held)
        assert table.play().state == JobState.FAILED
        done = verified(table.output)
        assert (table.texts(), done.found) == (
            (sorted([*rows, "b1"]), {"duplicated": 1}) if filled else (rows, {})
        )

    @pytest.mark.parametrize("table", ["delta", "iceberg", "lance"], indirect=True)
    def test_until_another_has_begun_and_commits_first_is_not_guessed_at(
        self, table: Table, filled: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.begin(table, filled)

        def other(check: Check) -> None:
            raise OSError("killed before its commit")

        def held(check: Check) -> None:
            check()
            hold_up(monkeypatch, other)
            assert table.play().state == JobState.FAILED

        hold_up(monkeypatch, held)
        assert table.play().state == JobState.FAILED, "it cannot say any more what it has done"
        assert table.texts() == rows
        for _ in range(2):
            refused = table.play()
            assert refused.reason == "BadOutput"
            assert "of an attempt that was held up" in (refused.message or "")
            assert table.texts() == rows
        assert table.play("overwrite").state == JobState.SUCCEEDED
        assert (table.texts(), table.proven()) == (rows, True)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
def test_of_two_that_replace_the_rows_one_does(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.play().state == JobState.SUCCEEDED
    table.lines("a", ["b1", "b2"])

    def held(check: Check) -> None:
        check()
        table.lines("a", ["c1", "c2"])
        assert table.play("overwrite").state == JobState.SUCCEEDED

    hold_up(monkeypatch, held)
    assert table.play("overwrite").state == JobState.FAILED
    assert (table.texts(), table.proven()) == (["c1", "c2"], True)
    table.lines("a", ["d1"])
    assert table.play("overwrite").state == JobState.SUCCEEDED
    assert (table.texts(), table.proven()) == (["d1"], True)


@pytest.mark.parametrize("table", FORMATS, indirect=True)
def test_rows_that_others_add_meanwhile_do_not_keep_a_job_out(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert table.play().state == JobState.SUCCEEDED
    table.lines("b", ["b1"])

    def held(check: Check) -> None:
        check()
        other = table.job()
        other["spec"]["read"]["paths"] = [str(write_lines(table.place / "more", {"c.txt": ["c1"]}))]
        report = play(other)
        assert report.state == JobState.SUCCEEDED, report.message

    hold_up(monkeypatch, held)
    report = table.play()
    assert report.state == JobState.SUCCEEDED, report.message
    assert (table.texts(), table.proven()) == (["a1", "a3", "b1", "c1"], True)
