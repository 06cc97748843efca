"""Verifies that an output holds each row of its input once, and reports all contradictions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

from batchinference.pipeline.commit.layout import Layout, addition_key, part_prefix
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.verify.findings import (
    Findings,
    Found,
    JobReport,
    Kind,
    Spot,
    VerificationReport,
)
from batchinference.pipeline.verify.input_check import input_rows
from batchinference.pipeline.verify.job_check import Proving
from batchinference.pipeline.verify.jobs import places_at, work_at

_PART = re.compile(r"part-[0-9a-f]{8}-\d{4,}-\d{8,}-[0-9a-f]{8}\b")
"""The file names of any job. Several jobs may store their error records in one directory."""
_KEYED = len(part_prefix("0" * 64))
_MOST_ADDITIONS = 9999
_ADDITION = re.compile(r"append-([0-9a-f]{8})-\d+$")


def verify(output: Location, *, quick: bool = False, trusted: bool = False) -> VerificationReport:
    """Read input and output, compare them, and return the report. With `quick`, perform only checks
    that cover many rows at once.

    Endpoints that the output names are used only if it is trusted. Raises BadInput if there is no
    output or the input cannot be read, and OSError or JobFailure if storage is unavailable."""
    places = places_at(output)
    proofs = [_proof(place, quick=quick, trusted=trusted) for place in places]
    findings = Findings()
    findings.add(_read_twice(places, proofs))
    findings.add(_strangers(places, proofs))
    return VerificationReport(output.uri, proofs, findings.listed())


def _proof(place: Layout, *, quick: bool, trusted: bool) -> JobReport:
    """Return the report on the work of one job, whose state is at `place`."""
    try:
        work = work_at(place, trusted=trusted)
        end = work.committed() if work else None
        if work is None or end is None:
            return JobReport(place.state.uri)
        given = input_rows(work, end, quick=quick)
        return Proving(work, end, given, quick).proof()
    except BadOutput as failure:
        findings = Findings()
        findings.add([(Kind.STATE, Spot(place.state.uri, detail=failure.message), 1)])
        return JobReport(place.state.uri, place.success.exists(), findings=findings.listed())


def _read_twice(places: Sequence[Layout], proofs: Sequence[JobReport]) -> Iterator[Found]:
    """Yield input files that the same work has read twice: first when it began, and again as new
    files. Other work that has added to the output may read any files."""
    seen: dict[str, set[str]] = defaultdict(set)
    for place, proof in zip(places, proofs, strict=True):
        added = _ADDITION.match(base_name(place.state.path))
        known = seen[added[1] if added else proof.key[:8]]
        yield from ((Kind.INPUT_TWICE, Spot(name), 1) for name in proof.names if name in known)
        known.update(proof.names)


def _strangers(places: Sequence[Layout], proofs: Sequence[JobReport]) -> Iterator[Found]:
    """Yield files that readers of the output or the errors take for rows, but that none of the jobs
    has written. If the first job appended to existing data, files in the output may belong to
    anybody and are not reported."""
    whole, layouts = places[0], [proof.layout for proof in proofs if proof.layout]
    if len(layouts) < len(proofs):
        return
    known = tuple(part_prefix(layout.key) for layout in layouts)
    added_to = tuple(
        each.key for each in layouts if not _ADDITION.match(base_name(each.state.path))
    )
    own = {whole.output.path, *((layout.state / "errors").path for layout in layouts)}
    for place in _read_places(layouts, mixed=whole != whole.whole):
        shared = place.path not in own
        for info in place.visible_files(but=whole.output):
            name = base_name(info.path)
            if name.startswith(known):
                continue
            if not (shared and _PART.match(name)) or name[:_KEYED] in _of_additions(added_to):
                yield Kind.STRANGERS, Spot(place.at(info.path).uri), 1


@lru_cache(maxsize=1)
def _of_additions(keys: tuple[str, ...]) -> set[str]:
    """Return the prefixes of the file names of all additions to works that may have existed."""
    numbers = range(1, _MOST_ADDITIONS + 1)
    return {part_prefix(addition_key(key, number)) for key in keys for number in numbers}


def _read_places(layouts: Sequence[Layout], *, mixed: bool) -> list[Location]:
    """Return the directories of the rows and of the errors, without duplicates. The directory of
    the rows is excluded if others may have written rows there. It is also excluded for a table,
    which tracks its own files."""
    rows = [layout.output for layout in layouts if not layout.is_table and not mixed]
    places = [*rows, *(layout.errors for layout in layouts)]
    return list({place.path: place for place in places}.values())
