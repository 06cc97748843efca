"""More memory for groups of pods that ran out of it."""

from __future__ import annotations

from batchinference.rendering import with_memory
from support.documents.minimal import model_step, python_step
from support.documents.parsed import job
from support.operator.rendered import Rendered, render

GPU_STEPS = [model_step("a", resources={"gpu": 1}), model_step("b", resources={"gpu": 1})]
STEPS = [*GPU_STEPS, python_step("c", resources={"memory": "8Gi"})]


def memory_of(made: Rendered) -> dict[str, str]:
    """Return the memory limit of a pod of each group."""
    groups = {"head": made.head, **made.workers}
    return {
        name: group["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for name, group in groups.items()
    }


def test_each_group_gets_its_memory() -> None:
    before = {"head": "4Gi", "cpu": "4Gi", "a": "4Gi", "c": "8Gi"}
    asked = job(steps=STEPS)
    assert memory_of(render(asked)) == before
    for group in before:
        made = render(with_memory(asked, {group: "20Gi"}))
        assert memory_of(made) == {**before, group: "20Gi"}, "steps a and b share the group a"


def test_groups_keep_their_names_when_their_memory_would_become_equal() -> None:
    steps = [
        model_step("a", resources={"gpu": 1, "memory": "16Gi"}),
        model_step("b", resources={"gpu": 1, "memory": "24Gi"}),
    ]
    params = {"b": {"log-color": "true"}}
    asked = job(steps=steps, cluster={"rayStartParams": params})
    for minimum, a, b in (
        ({"a": "24Gi"}, "24575Mi", "24Gi"),
        ({"a": "32Gi", "b": "32Gi"}, "32Gi", "32767Mi"),
    ):
        made = render(with_memory(asked, minimum))
        assert memory_of(made) == {"head": "4Gi", "cpu": "4Gi", "a": a, "b": b}


def test_less_memory_and_unknown_groups_change_nothing() -> None:
    asked = job(steps=STEPS)
    assert with_memory(asked, {"c": "8192Mi", "head": "1Gi", "gone": "20Gi"}) == asked
