"""Types of the fields of state files: the lease, snapshots, manifests and file records.

Anyone who can write to an output can write its state. So a field that names a file or a directory
must not point outside the output: the job deletes and replaces files by these names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from batchinference.pipeline.commit.layout import part_prefix
from batchinference.pipeline.storage.location import base_name, is_inside

STRICT = ConfigDict(extra="forbid")
Natural = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Checksum = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
Work = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""Empty if there is no digest."""
RunId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def _checked_name(name: str) -> str:
    if not is_inside(name):
        raise ValueError("the name of a file leads out of the output")
    return name


FileName = Annotated[str, Field(strict=True, max_length=4096), AfterValidator(_checked_name)]
"""A path relative to the output or the errors directory."""


def all_of_work(names: Iterable[str], key: str) -> bool:
    """Return whether all names have the prefix that the work with this key gives its files."""
    return all(base_name(name).startswith(part_prefix(key)) for name in names)
