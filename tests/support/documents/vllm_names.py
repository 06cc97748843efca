"""Compares the known sampling parameters with those of the vLLM that is installed.

`python -m support.documents.vllm_names` prints each difference, and fails if there is one. Run it
in an environment with vLLM after its version has changed.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from batchinference.spec.models.sampling import (
    CONSTRAINTS,
    EMBED,
    GENERATE,
    LOST,
    NULLABLE,
    WITHOUT_EFFECT,
)

INTERNAL = {"step_tag_id", "returned_token_ids", "task", "requires_token_ids", "extra_kwargs",
            "skip_reading_prefix_cache", "late_interaction_params", "output_kind"}  # fmt: skip
KNOWN = {
    ("sampling_params", "SamplingParams"): {*GENERATE, *LOST},
    ("sampling_params", "StructuredOutputsParams"): {*CONSTRAINTS, *WITHOUT_EFFECT},
    ("pooling_params", "PoolingParams"): {*EMBED, *INTERNAL},
}


def differences() -> Iterator[str]:
    """Yield each difference between the known names and the fields of vLLM's classes."""
    for (module, name), known in KNOWN.items():
        fields = fields_of(module, name)
        public = {field for field in fields if not field.startswith("_")}
        yield from (f"{name}.{field} is not known" for field in sorted(public - known))
        yield from (f"{name}.{field} does not exist" for field in sorted(known - public))
        if name == "SamplingParams":
            nullable = {field for field in GENERATE if "None" in fields.get(field, "")}
            wrong = nullable ^ (NULLABLE & GENERATE.keys())
            yield from (f"{name}.{field}: whether it may be null" for field in sorted(wrong))


def fields_of(module: str, name: str) -> dict[str, str]:
    """Return the fields of a class of the installed vLLM, and their types. Reads the source,
    because an import takes minutes."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        sys.exit("vLLM is not installed")
    source = Path(found.submodule_search_locations[0]) / f"{module}.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    (body,) = (node.body for node in tree.body if getattr(node, "name", None) == name)
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}


if __name__ == "__main__":
    sys.exit("\n".join(differences()) or None)
