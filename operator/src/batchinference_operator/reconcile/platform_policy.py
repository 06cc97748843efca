"""What the platform allows jobs to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from batchinference.rendering.strategic_merge import MERGE_KEYS
from batchinference.spec.patches import Patch
from batchinference.spec.problems import Problem

Path = tuple[str, ...]
PodPath = Annotated[str, Field(pattern=r"^(metadata|spec)(\.[A-Za-z]+)+$", max_length=128)]
"""A field of a pod such as spec.affinity. Items of lists have the path of their list."""
_WAY_OUT = "Remove it, or ask who runs the operator"


class PlatformPolicy(BaseModel):
    """The chart value `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    patches: bool | list[PodPath] = False
    """Whether jobs may have `cluster.patches`, or the fields of pods that these may change."""

    def check_patches(self, patches: Sequence[Patch]) -> Iterator[Problem]:
        """Yield the problems with the patches of a job. Those of the platform are not checked."""
        if isinstance(self.patches, bool):
            if patches and not self.patches:
                message = "the platform's policy does not allow patches (patches: false)"
                yield Problem("spec.cluster.patches", f"{message}. {_WAY_OUT}")
            return
        allowed = [tuple(path.split(".")) for path in self.patches]
        message = (
            "the platform's policy does not allow this field in patches (patches: "
            f"{', '.join(self.patches) or 'none'}). {_WAY_OUT}"
        )
        for index, patch in enumerate(patches):
            for path in dict.fromkeys(_paths(patch.pod.model_dump(exclude_defaults=True))):
                if not any(path[: len(prefix)] == prefix for prefix in allowed):
                    yield Problem(f"spec.cluster.patches[{index}].pod.{'.'.join(path)}", message)


def _paths(value: Any, path: Path = (), keys: Path = ()) -> Iterator[Path]:
    """Yield the paths of all fields that a patch sets, except for the keys of list items."""
    if isinstance(value, dict) and (value or len(path) > 1):
        changed = {name: child for name, child in value.items() if name not in keys}
        if not changed:
            yield path
        for name, child in changed.items():
            yield from _paths(child, (*path, name))
    elif isinstance(value, list) and value and path[-1] in MERGE_KEYS:
        for item in value:
            yield from _paths(item, path, MERGE_KEYS[path[-1]])
    elif path and (value != {} or len(path) > 1):
        yield path
