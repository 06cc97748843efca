"""Checks names of accelerator types and of custom resources of Ray."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from batchinference.spec.base import ACCELERATOR, invalid

RAY_NAMES = (
    *("K80", "P4", "P100", "V100", "T4", "A10G", "L4", "L40S", "RTX-PRO-6000"),
    *("A100", "A100-40G", "A100-80G", "H20", "H100", "H200"),
    *("B200", "B300", "GB200", "GB300"),
    *("AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X-MI250"),
    *("AMD-Instinct-MI300A", "AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"),
    *("Intel-GPU-Max-1100", "Intel-GPU-Max-1550", "Intel-GAUDI"),
    *("Ascend910B", "Ascend910B4", "MXC500", "MXC550", "FURIOSA_RNGD"),
    *("MOBILINT_ARIES", "MOBILINT_REGULUS", "aws-neuron-core"),
    *("TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"),
    *("Apple-Silicon", "M1", "M1-Pro", "M1-Max", "M1-Ultra"),
    *("M2", "M2-Pro", "M2-Max", "M2-Ultra", "M3", "M3-Pro", "M3-Max"),
)
"""The names in `ray.util.accelerators` of Ray 2.60. Ray also detects other accelerators, such as
`Ascend910B2`, and uses the names that their drivers report."""


def wrong_case_of(name: str) -> str | None:
    """Return the accelerator name that differs from `name` only in case; None if there is none.
    With the wrong case, Ray would wait forever for a matching node."""
    if name in RAY_NAMES:
        return None
    return next((known for known in RAY_NAMES if known.lower() == name.lower()), None)


_EXPECTED = "expected letters, digits, '-', '_' and '.', a letter or digit at both ends"


def _check_resource_name(name: str) -> str:
    if not re.fullmatch(ACCELERATOR, name):
        raise invalid(_EXPECTED)
    return name


ResourceName = Annotated[
    str, Field(min_length=1, max_length=63), AfterValidator(_check_resource_name)
]
