"""docs/lifecycle.md: phases, what leads from one to the next, and the causes of failure."""

from __future__ import annotations

from batchinference.spec.causes import Cause
from batchinference.spec.phases import MEANINGS, TRANSITIONS, Phase, diagram

_INTRODUCTION = """# The life of a job

Generated from the code by `make generate`; a test fails when it differs. `status.phase` of a
BatchInference is one word for people; programs go by the conditions
([cluster.md](cluster.md#watching)).
"""
_CAUSES = """
## Causes

Why an attempt failed stands in `status.attempts[].cause`, with the words of what failed beside it.
A cause that is retried leads to another attempt, with a RayJob of its own on a cluster of its own,
up to `retry.maxAttempts`; `retry.onCause` says otherwise for single causes:

```yaml
retry:
  maxAttempts: 5
  backoff: {initial: 30s, max: 10m}
  onCause: {OutOfMemory: fail, Application: retry}
```

| cause | retried | what it stands for |
| --- | --- | --- |
"""
_BACKSTOP = """
`DeadlineExceeded` is also the cause of an attempt that KubeRay has ended because the operator was
away when the deadline passed ([operations.md](operations.md#when-the-operator-is-away)).
"""


def lifecycle_page() -> str:
    phases = "".join(f"| {phase} | {MEANINGS[phase]} |\n" for phase in Phase)
    steps = "".join(
        f"| {before or 'created'} | {after} | {why} |\n"
        for before, following in TRANSITIONS.items()
        for after, why in following.items()
    )
    causes = "".join(
        f"| `{cause}` | {'yes' if cause.retried else 'no'} | {cause.meaning} |\n" for cause in Cause
    )
    return (
        f"{_INTRODUCTION}\n```mermaid\n{diagram()}\n```\n\n"
        f"| phase | what it says |\n| --- | --- |\n{phases}\n"
        f"| from | to | when |\n| --- | --- | --- |\n{steps}"
        f"{_CAUSES}{causes}{_BACKSTOP}"
    )
