"""The state of an output: what is there, and whether and how an attempt at it begins."""

from __future__ import annotations

from contextlib import nullcontext

from batchinference.pipeline.attempt import Attempt, remove_parts
from batchinference.pipeline.failures import BadOutput
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.owner import Owner, owner_of
from batchinference.pipeline.tables import Table, reaching_table, table_for, taken
from batchinference.spec.write import Write, WriteTable


def begin(write: Write, layout: Layout) -> Attempt | None:
    """The next attempt at this output; None when there is nothing to do: it is
    complete already, or something is there and the mode is ignore.

    Raises BadOutput when the path holds something that this job must not touch, or cannot be used.
    """
    table = table_for(write) if isinstance(write, WriteTable) else None
    try:
        if layout.whole != layout and _is_same_work(layout):
            return None
        with reaching_table() if table is not None else nullcontext():
            return _begin(write, layout, table)
    except OSError as error:
        raise BadOutput(f"write.path '{write.path}' cannot be used: {error}") from error


def _begin(write: Write, layout: Layout, table: Table | None) -> Attempt | None:
    _check_errors(layout)
    owner = owner_of(layout)
    if owner is None:
        return _begin_new(write, layout, table)
    if write.mode == "overwrite":
        _clear(layout, owner)
    elif owner.key != layout.key:
        if write.mode == "ignore":
            return None
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds the output of another job: choose another "
            "path, or set write.mode to overwrite, or to append"
        )
    elif layout.success.exists():
        return None
    elif table is not None and table.holds(owner.mark):
        layout.success.write(b"")  # all that was missing when the attempt before ended
        return None
    else:
        # what the attempt before has committed is done again
        _remove_files(layout, owner)
    if table is not None and _is_taken(write, layout, table):
        _refuse(write, layout)
        return None
    return Attempt.open(layout, owner.attempt + 1)


def _check_errors(layout: Layout) -> None:
    """Raise BadOutput when readers of the output would take bad rows for it. They pass over names
    that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"errors.path '{errors.uri}' lies in write.path '{output.uri}', so that readers would "
            "take bad rows for output: choose another one, or leave it out"
        )


def _is_same_work(layout: Layout) -> bool:
    """Whether the output to add to is of the very same work, whose rows would be there twice.

    Raises BadOutput when it is not complete yet.
    """
    owner = owner_of(layout.whole)
    if owner is None or owner.key != layout.key:
        return False
    if not layout.whole.success.exists():
        raise BadOutput(
            f"write.path '{layout.output.uri}' holds unfinished output of the same work: finish it "
            "with the mode with which it was begun"
        )
    return True


def _begin_new(write: Write, layout: Layout, table: Table | None) -> Attempt | None:
    """The first attempt at an output that no job of this kind has begun."""
    if _is_taken(write, layout, table):
        _refuse(write, layout)
        return None
    return Attempt.open(layout, 1)


def _is_taken(write: Write, layout: Layout, table: Table | None) -> bool:
    """Whether something is there that the mode does not allow to add to or to replace."""
    if table is not None:
        return write.mode in ("error", "ignore") and table.holds_rows()
    return write.mode != "append" and bool(layout.output.files(recursive=True))


def _refuse(write: Write, layout: Layout) -> None:
    """Raises BadOutput unless the mode is to leave what is there."""
    if write.mode != "ignore":
        raise _foreign(write, layout)


def _foreign(write: Write, layout: Layout) -> BadOutput:
    if isinstance(write, WriteTable):
        return taken(write)
    way_out = (
        "overwrite only replaces such output. Remove them yourself, or choose another path"
        if write.mode == "overwrite"
        else "choose another path, empty it, or set write.mode to append"
    )
    return BadOutput(
        f"write.path '{layout.output.uri}' holds files that are no output of a BatchInference: "
        f"{way_out}"
    )


def _clear(layout: Layout, owner: Owner) -> None:
    # the mark of completeness goes first, so that half an output never looks whole; whose it is
    # stays until the new attempt replaces it, so that clearing it can be taken up again
    layout.success.delete()
    for appended in layout.appended():
        if (other := owner_of(appended)) is not None:
            _remove_files(appended, other)
        appended.state.delete_directory()
    _remove_files(layout, owner)
    for name in ("manifests", "errors"):
        (layout.state / name).delete_directory()
    layout.report.delete()
    layout.spec.delete()
    layout.input.delete()


def _remove_files(layout: Layout, owner: Owner) -> None:
    for place in (layout.errors, layout.data):
        remove_parts(place, owner.key)
