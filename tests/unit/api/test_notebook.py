"""Progress in a notebook: one table that is updated in place, with safe values."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchinference import Job
from batchinference.api.display import Display
from batchinference.api.notebook_display import NotebookDisplay, cell_number, html_of, text_of
from batchinference.api.run import JobFailed, Result, _display
from batchinference.spec.report import Report

TIMES = {"startedAt": "2026-03-02T09:00:00Z", "updatedAt": "2026-03-02T09:01:11Z"}


def report(state: str = "running", **fields: Any) -> Report:
    base = {"name": "breeds", "state": state, "output": "./out", "version": "1", **TIMES}
    return Report.parse(json.dumps({**base, **fields}))


PROGRESS = {"rows": 1200, "total": 10000, "percent": 12, "rowsPerSecond": 33.25, "eta": "4m25s"}
COUNTS = {"read": 1200, "written": 1197, "failed": 3}


class Notebook:
    """A fake IPython with what a notebook shows: the current content of each output."""

    def __init__(self, shell: Any) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        self.module = ModuleType("IPython")
        self.module.get_ipython = lambda: shell  # type: ignore[attr-defined]
        self.display = ModuleType("IPython.display")
        self.display.display = self._display  # type: ignore[attr-defined]

    def _display(self, shown: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.outputs.append(shown)
        return SimpleNamespace(update=self._update)

    def _update(self, shown: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.outputs[-1] = shown
        self.updates += 1


def installed(monkeypatch: pytest.MonkeyPatch, shell: Any) -> Notebook:
    notebook = Notebook(shell)
    monkeypatch.setitem(sys.modules, "IPython", notebook.module)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook.display)
    return notebook


def test_a_result_is_shown_as_its_table_and_a_job_as_yaml() -> None:
    job = Job(
        {"format": "text", "paths": ["<b>"]}, {"format": "json", "path": "out"}, name="breeds"
    )
    result = Result(job.resource, report("succeeded", counts=COUNTS))
    assert "1,200 read, 1,197 written, 3 failed" in result._repr_html_()
    assert "<pre>" in job._repr_html_()
    assert "- &lt;b&gt;" in job._repr_html_()
    text = "Report(name='breeds', state='succeeded', written=1197, failed=3, output='./out')"
    assert (repr(result.report), repr(result)) == (text, f"Result({text})")
    assert repr(job) == "Job('breeds': text, [], json)"


def test_one_table_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = installed(monkeypatch, SimpleNamespace(kernel=object(), execution_count=3))
    with NotebookDisplay() as display:
        display.show(report("preparing"))
        display.show(report(progress=PROGRESS, counts=COUNTS, stage="read, classify, write"))
        assert shown.outputs[0]["text/plain"].splitlines() == [
            "job: breeds",
            "state: running: read, classify, write",
            "rows: 1,200 of 10,000 (12 %)",
            "speed: 33.2 rows/s, ETA 4m25s",
            "failed rows: 3",
        ]
        assert '<progress value="1200" max="10000"' in shown.outputs[0]["text/html"]
        display.show(report("succeeded", counts=COUNTS))
    assert (len(shown.outputs), shown.updates) == (1, 2)
    assert "result: succeeded" in shown.outputs[0]["text/plain"]
    assert "<progress" not in shown.outputs[0]["text/html"]


def test_lines_are_the_output_of_the_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels do, for which rich would show a bar
    shown = installed(monkeypatch, SimpleNamespace(kernel=object(), execution_count=3))
    with NotebookDisplay() as display:
        display.say("breeds: starting Ray [on] this machine")
    assert capsys.readouterr().out == "breeds: starting Ray [on] this machine\n"
    assert shown.outputs == []


def test_bar_without_a_total_has_no_value() -> None:
    assert html_of(report("preparing")).startswith('<progress style="width:100%"></progress>')
    unknown = html_of(report(progress={"rows": 5}))
    assert unknown.startswith('<progress style="width:100%"></progress>')
    assert ">5<" in unknown


def test_a_failure_names_the_arguments_of_run() -> None:
    failed = report("failed", reason="BadOutput", message="Run with --restart to start over")
    assert "result: failed\nmessage: BadOutput: Run with restart=True" in text_of(failed)
    (shown,) = JobFailed(failed)._render_traceback_()
    assert "Run with restart=True" in shown


def test_a_result_is_not_shown_twice_in_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(kernel=object(), execution_count=3)
    shown = installed(monkeypatch, shell)
    job = Job({"format": "text", "paths": ["in"]}, {"format": "json", "path": "out"})
    result = Result(job.resource, report("succeeded"), cell_number())
    result._ipython_display_()
    assert shown.outputs == []
    shell.execution_count = 4
    result._ipython_display_()
    assert "succeeded" in shown.outputs[0]["text/html"]


def test_values_are_shown_as_text() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e&\n"
    for result in (report(name=hostile, stage=hostile), report("failed", message=hostile)):
        html = html_of(result)
        assert "<script>" not in html
        assert "&lt;script&gt;" in html
        assert "\x1b" not in html + text_of(result)
        assert "\u202e" not in html


@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        (SimpleNamespace(kernel=object(), execution_count=3), NotebookDisplay),
        (SimpleNamespace(), Display),  # IPython on a terminal
        (None, Display),  # a script that imports IPython
    ],
)
def test_display_depends_on_the_shell(
    monkeypatch: pytest.MonkeyPatch, shell: Any, expected: type
) -> None:
    installed(monkeypatch, shell)
    assert type(_display(verbose=False)) is expected
