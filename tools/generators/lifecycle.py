"""Generates docs/lifecycle.md: phases, transitions and failure causes."""

from __future__ import annotations

from batchinference.spec.causes import Cause
from batchinference.spec.phases import MEANINGS, TRANSITIONS, Phase, diagram

_INTRODUCTION = """# The life of a job

This page is generated from the code by `make generate`. `status.phase` of a BatchInference is a
summary for people. Programs should use the conditions ([cluster.md](cluster.md#watching)).
"""
_CAUSES = """
## Causes

`status.attempts[].cause` contains the cause of a failed attempt, and `message` the original
message. If the cause is retried, the operator starts another attempt, with a new RayJob and a new
cluster, until `retry.maxAttempts` attempts have failed. `retry.onCause` sets for single causes
whether they are retried:

```yaml
retry:
  maxAttempts: 5
  backoff: {initial: 30s, max: 10m}
  onCause: {Incomplete: Fail, Application: Retry}
  outOfMemory: {memoryFactor: 1.5, maxMemory: 64Gi}
```

With `retry.outOfMemory`, an attempt after `OutOfMemory` requests more memory
([cluster.md](cluster.md#attempts-deadlines-and-cleanup)). Ray retries single tasks within an
attempt. These retries have no cause and do not count.

| cause | retried | meaning |
| --- | --- | --- |
"""
_BACKSTOP = """
If the operator is unavailable when a deadline passes, KubeRay ends the attempt later. Its cause is
then `DeadlineExceeded` as well
([operations.md](operations.md#when-the-operator-is-unavailable)).
"""


def lifecycle_page() -> str:
    """Return docs/lifecycle.md."""
    phases = "".join(f"| {phase} | {MEANINGS[phase]} |\n" for phase in Phase)
    transitions = "".join(
        f"| {before or 'created'} | {after} | {why} |\n"
        for before, following in TRANSITIONS.items()
        for after, why in following.items()
    )
    causes = "".join(
        f"| `{cause}` | {'yes' if cause.retried else 'no'} | {cause.meaning} |\n" for cause in Cause
    )
    return (
        f"{_INTRODUCTION}\n```mermaid\n{diagram()}\n```\n\n"
        f"| phase | meaning |\n| --- | --- |\n{phases}\n"
        "A job has no phase right after it was created.\n\n"
        f"| from | to | when |\n| --- | --- | --- |\n{transitions}"
        f"{_CAUSES}{causes}{_BACKSTOP}"
    )
