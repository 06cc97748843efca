"""The plan on one machine: no worker groups, and models on the CPU where GPUs do not suffice."""

from __future__ import annotations

import pytest

from batchinference.plan import Plan, cpus_needed, plan_for_machine
from batchinference.spec import SpecError
from support.documents import Document, model_step, python_step
from support.specs import filter_step, spec_of


def plan(*steps: Document, gpus: int = 0) -> Plan:
    return plan_for_machine(spec_of(steps=list(steps)), gpus)


def on_gpu(name: str, gpu: int = 1) -> Document:
    return model_step(name, resources={"gpu": gpu, "cpu": 2})


def test_a_machine_has_no_worker_groups() -> None:
    assert plan(model_step(), filter_step()).groups == ()


def test_steps_that_need_no_gpu_are_planned_as_for_a_cluster() -> None:
    made = plan(filter_step(), model_step(batchSize=7))
    assert [stage.name for stage in made.stages] == ["keep", "embed"]
    assert made.stages[1].batch_size == 7
    assert made.notes == ()


@pytest.mark.parametrize("gpus", [3, 4])
def test_models_run_on_gpus_that_are_there(gpus: int) -> None:
    made = plan(on_gpu("one"), on_gpu("two", gpu=2), gpus=gpus)
    assert [stage.gpus for stage in made.stages] == [1, 2]
    assert made.notes == ()


def test_models_run_on_the_cpu_where_there_is_no_gpu_and_the_plan_says_so() -> None:
    made = plan(on_gpu("embed"), model_step("score"))
    assert [stage.gpus for stage in made.stages] == [0, 0]
    assert made.notes == (
        "step 'embed' runs on the CPU: the job needs 1 GPU(s) at the same time and this machine "
        "has 0",
    )


def test_all_models_run_on_the_cpu_where_the_gpus_do_not_suffice_for_all() -> None:
    made = plan(on_gpu("one"), on_gpu("two"), gpus=1)
    assert [stage.gpus for stage in made.stages] == [0, 0]
    assert [note.split(":")[0] for note in made.notes] == [
        "step 'one' runs on the CPU",
        "step 'two' runs on the CPU",
    ]
    assert all("needs 2 GPU(s)" in note and "has 1" in note for note in made.notes)


@pytest.mark.parametrize("gpus", [0, 1], ids=["on the CPU", "on the GPU"])
def test_a_machine_grows_its_pools_from_one_replica(gpus: int) -> None:
    step = model_step(replicas={"min": 4, "max": 8}, resources={"gpu": 1})
    (stage,) = plan(step, gpus=gpus).stages
    assert stage.replicas is not None
    assert (stage.replicas.min, stage.replicas.max) == (1, 8)


def test_a_step_that_reads_a_missing_column_is_refused_here_as_well() -> None:
    with pytest.raises(SpecError, match="reads column 'txt'"):
        plan(filter_step(expression="len(txt) > 0"))


@pytest.mark.parametrize(
    ("steps", "cpus"),
    [
        pytest.param([], 1.25, id="reading and writing"),
        pytest.param([filter_step()], 1.25, id="column steps run where reading runs"),
        pytest.param([model_step()], 2.25, id="a replica beside them"),
        pytest.param([model_step(replicas={"min": 3, "max": 3})], 2.25, id="one replica is enough"),
        pytest.param(
            [model_step("a"), python_step("b", resources={"cpu": 2.5})], 4.75, id="of each pool"
        ),
        pytest.param(
            [python_step("f", "m:function", resources={"cpu": 3})],
            3.25,
            id="a wide function",
        ),
    ],
)
def test_cpus_without_which_tasks_would_starve(steps: list[Document], cpus: float) -> None:
    assert cpus_needed(plan(*steps)) == cpus
