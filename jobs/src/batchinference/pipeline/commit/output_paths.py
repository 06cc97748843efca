"""Checks the paths of an output, before anything is read or written."""

from __future__ import annotations

from batchinference.pipeline.commit.layout import Layout
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.storage.location import Location
from batchinference.spec.addresses import unexpanded_variable
from batchinference.spec.read import Read, ReadFiles


def check_paths(read: Read, layout: Layout) -> None:
    """Raise BadOutput if an output path holds a path of the input: advice about the content of the
    output, such as to append to it, would be wrong then. Also if it has a variable of a shell, so
    that a directory with its name would be created."""
    variable = unexpanded_variable(layout.output.uri) if layout.output.local else ""
    if variable and not layout.output.exists():
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' has the variable {variable}, and variables "
            "are not expanded. Begin the path with ~, or use a parameter of the job"
        )
    if not isinstance(read, ReadFiles):
        return
    for path in read.paths:
        source = Location(path, read.storage)
        for place in (layout.output, layout.errors):
            is_same = source.path.rstrip("/") == place.path.rstrip("/")
            if place.holds(source) or (is_same and source.in_store_of(place)):
                raise BadOutput(
                    f"'{place.uri}' is an output path and contains the input '{source.uri}'. "
                    "Choose another write.path or errors.path"
                )


def check_errors_path(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read error records as output. Readers skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    place, within = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (within.startswith(place) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in within.removeprefix(place).split("/")):
        raise BadOutput(
            f"spec.errors.path: '{errors.uri}' is below write.path '{output.uri}', so readers "
            "would read error records as output. Choose another errors.path, or remove the field"
        )
