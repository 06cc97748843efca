"""Compares the known sampling parameters with those of the vLLM that is installed.

`python -m support.documents.vllm_names` prints each difference, and fails if there is one. Run it
in an environment with vLLM after its version has changed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from batchinference.pipeline.runtimes.vllm.engine_arguments import fields_of
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
        fields = fields_of(module, name) or sys.exit("vLLM is not installed")
        public = {field for field in fields if not field.startswith("_")}
        yield from (f"{name}.{field} is not known" for field in sorted(public - known))
        yield from (f"{name}.{field} does not exist" for field in sorted(known - public))
        if name == "SamplingParams":
            nullable = {field for field in GENERATE if "None" in fields.get(field, "")}
            wrong = nullable ^ (NULLABLE & GENERATE.keys())
            yield from (f"{name}.{field}: whether it may be null" for field in sorted(wrong))


if __name__ == "__main__":
    sys.exit("\n".join(differences()) or None)
