"""What is committed counts, for other resources and those that are made anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.kubectl import Kubectl, condition
from support.lives import outcomes, rows_are_done
from support.objectstore import ObjectStore, starts

Job = dict[str, Any]


def test_of_two_jobs_for_one_path_the_later_one_is_refused_and_does_nothing_afterwards(
    kubectl: Kubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    create: Callable[[Job], str],
    tmp_path: Path,
) -> None:
    job = slow_job("earlier", until=store.uri("gates/earlier"))
    earlier = create(job)
    rows_are_done(kubectl, earlier)
    other = copy.deepcopy(job)
    other["metadata"]["name"] = "later"
    later = create(other)
    failed = kubectl.wait_condition(later, "Failed", timeout=240)
    assert failed["reason"] == "BadOutput"
    assert f"is being written by {kubectl.namespace}/{earlier} (" in failed["message"]
    (tmp_path / "earlier").touch()
    store.upload(tmp_path, "gates")
    assert outcomes(kubectl.wait_complete(earlier, timeout=300)) == ["Succeeded"]

    # made anew over the complete output
    status = kubectl.wait_complete(create(other), timeout=240)
    ready = condition(status, "Complete", "True")
    assert ready is not None
    assert "complete already" in ready["message"]
    assert status["counts"]["read"] == 2000
    assert starts(store, job["spec"]["write"]["path"]) == [0]
