"""The results as text, and as the table of docs/contributing/traps.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from traps.cases import CASES, KINDS
from traps.verdict import Judged, Verdict

BEGIN, END = "<!-- begin: make traps -->", "<!-- end: make traps -->"
Results = Mapping[str, Mapping[str, Judged]]
"""The verdict of each tool, by its name, about each case, by its id."""
_SHORT = {Verdict.RIGHT: "right", Verdict.REFUSED: "refused", Verdict.WRONG: "**wrong**"}


def listed(results: Results) -> str:
    """Return a line for each case with the verdict of each tool, and the totals."""
    width = max(len(case.title) for case in CASES.values()) + 8
    lines = [f"{'':{width}}" + "".join(f"{tool:>16}" for tool in results)]
    run = {case for each in results.values() for case in each}
    for kind, title in KINDS.items():
        cases = [case for case in CASES.values() if case.kind == kind and case.id in run]
        lines += [f"\n{kind} {title}"] if cases else []
        for case in cases:
            verdicts = (each[case.id].verdict for each in results.values())
            lines.append(
                f"  {case.id} {case.title:{width - 8}}" + "".join(f"{v:>16}" for v in verdicts)
            )
    return "\n".join([*lines, "", *totals(results)])


def totals(results: Results) -> list[str]:
    return [f"{tool:16}" + counted(each.values()) for tool, each in results.items()]


def counted(judged: Iterable[Judged]) -> str:
    counts = Counter(each.verdict for each in judged)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def section(results: Results) -> str:
    """Return the table of docs/contributing/traps.md between its markers, and what BatchInference
    refuses: the first of the results."""
    head = [
        "| case | variants |" + "".join(f" {tool} |" for tool in results),
        "| --- | --- |" + " --- |" * len(results),
    ]
    rows = [_row(kind, title, results) for kind, title in KINDS.items()]
    last = f"| all | {len(CASES)} |" + "".join(
        f" {_cell(each.values())} |" for each in results.values()
    )
    refused = _refused(next(iter(results.values())))
    return "\n".join([BEGIN, "", *head, *rows, last, "", *refused, END])


def _refused(own: Mapping[str, Judged]) -> list[str]:
    """Return a paragraph about the cases that BatchInference refuses, with the reasons."""
    cases = [CASES[id_] for id_, each in own.items() if each.verdict == Verdict.REFUSED]
    lines = [f"- {KINDS[case.kind]}: {case.title}. Reason: {case.refused}." for case in cases]
    return ["BatchInference refuses:", "", *lines, ""] if lines else []


def _row(kind: str, title: str, results: Results) -> str:
    ids = [case.id for case in CASES.values() if case.kind == kind]
    cells = (_cell(each[id_] for id_ in ids) for each in results.values())
    return f"| {title} | {len(ids)} |" + "".join(f" {cell} |" for cell in cells)


def _cell(judged: Iterable[Judged]) -> str:
    """Return the number of each verdict; a dash if the tool has no reader for any of the cases."""
    counts = Counter(each.verdict for each in judged)
    if counts.keys() <= {Verdict.MISSING}:
        return "not installed"
    return ", ".join(f"{counts[v]} {text}" for v, text in _SHORT.items() if counts[v]) or "-"


def with_section(page: str, results: Results) -> str:
    """Return a page with the table in the place of its earlier one."""
    before, rest = page.split(BEGIN)
    return before + section(results) + rest.split(END)[1]
