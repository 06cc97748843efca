"""`batchinference plan`: the stages and pods of a job on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchinference.plan.stages import TASK_CPUS
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.parsed import drop_step, filter_step
from support.program import Invoke, WriteJob

Table = list[dict[str, str]]


def tables(text: str) -> tuple[Table, Table]:
    """Return the rows of stages and groups, each as a dict by heading."""
    stages, groups = text.split("\n\n")
    return _table(stages), _table(groups)


def _table(text: str) -> Table:
    head, *rows = text.splitlines()
    names = [name for name in head.split("  ") if name]
    starts = [head.index(name) for name in names]
    ends = [*starts[1:], 1000]
    return [
        {
            name.strip(): row[start:end].strip()
            for name, start, end in zip(names, starts, ends, strict=True)
        }
        for row in rows
    ]


@pytest.fixture
def planned(invoke: Invoke, write_job: WriteJob) -> Callable[..., tuple[Table, Table]]:
    """Return the tables of a job with these steps and cluster settings."""

    def run(*steps: Document, **cluster: object) -> tuple[Table, Table]:
        result = invoke("plan", write_job(document(steps=list(steps), cluster=cluster)))
        assert (result.exit_code, result.stderr) == (0, "")
        return tables(result.stdout)

    return run


Planned = Callable[..., tuple[Table, Table]]


def test_plan_output(invoke: Invoke, write_job: WriteJob) -> None:
    steps = [
        filter_step("prose"),
        model_step(
            "embed", replicas={"min": 1, "max": 4}, resources={"gpu": 0.25, "memory": "8Gi"}
        ),
        drop_step("text", name="slim"),
        model_step("judge", resources={"cpu": 2.5}, batchSize=8),
    ]
    steps[3]["model"]["inputs"] = {"text": "embedding"}
    result = invoke("plan", write_job(document(steps=steps)))
    assert result.exit_code == 0
    assert result.stdout == (
        "STAGE  STEPS       RUNS AS     BATCH  CPU   DEVICES   GROUP\n"
        "read   text        tasks       -      1     -         cpu\n"
        "prose  prose       tasks       block  1     -         cpu\n"
        "embed  embed,slim  1-4 actors  32     1     0.25 GPU  embed\n"
        "judge  judge       actors      8      2.5   -         cpu\n"
        "write  parquet     tasks       -      0.25  -         cpu\n"
        "\n"
        "GROUP  CPU  DEVICES  MEMORY  MIN  MAX\n"
        "head   1    -        4Gi     1    1\n"
        "cpu    4    -        4Gi     1    2\n"
        "embed  4    1 GPU    32Gi    0    1\n"
    )


@pytest.mark.parametrize(
    ("resources", "shown"),
    [
        ({"cpu": 2}, "-"),
        ({"gpu": 2}, "2 GPU"),
        ({"gpu": 1, "acceleratorType": "T4"}, "1 GPU (T4)"),
        ({"custom": {"NPU": 4}, "acceleratorType": "Ascend910B"}, "4 NPU (Ascend910B)"),
        ({"gpu": 1, "custom": {"licence": 1}}, "1 GPU, 1 licence"),
    ],
    ids=str,
)
def test_plan_shows_devices(planned: Planned, resources: Document, shown: str) -> None:
    profiles: Document = {"T4": {}, "Ascend910B": {}, "licence": {}}
    stages, groups = planned(model_step(resources=resources, replicas={}), profiles=profiles)
    assert stages[1]["DEVICES"] == groups[-1]["DEVICES"] == shown


def test_plan_shows_the_price_of_each_choice(invoke: Invoke, write_job: WriteJob) -> None:
    step = model_step(resources={"gpu": 1, "acceleratorType": ["H100", "A100"]})
    profiles: Document = {"H100": {"deviceHour": "4"}, "A100": {"deviceHour": "2.5"},
                          "spot": {"priceFactor": 0.4}}  # fmt: skip
    cluster = {"profiles": profiles, "fallback": {"capacityTypes": ["spot"], "after": "5m"}}
    result = invoke("plan", write_job(document(steps=[step], cluster=cluster)))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split("\n\n")[2].splitlines() == [
        "devices: H100 spot, 1.6 per device hour (choice 1 of 2)",
        "devices: A100 spot, 1 per device hour (choice 2 of 2)",
    ]


@pytest.mark.parametrize(
    ("replicas", "shown"),
    [
        ({"min": 2, "max": 8}, "2-8 actors"),
        ({"min": 3, "max": 3}, "3 actors"),
        ({"max": 1}, "1 actor"),
    ],
)
def test_plan_shows_actors(planned: Planned, replicas: Document, shown: str) -> None:
    assert planned(model_step(replicas=replicas))[0][1]["RUNS AS"] == shown


@pytest.mark.parametrize(
    ("sizes", "shown"), [([None], "auto"), ([9], "9"), ([9, 9, 7], "9,7")], ids=str
)
def test_plan_shows_a_job_without_pools_as_one_stage(
    planned: Planned, sizes: list[int | None], shown: str
) -> None:
    names = [f"f{number}" for number in range(len(sizes))]
    steps = [
        python_step(name, "m:f", **({"batchSize": size} if size else {}))
        for name, size in zip(names, sizes, strict=True)
    ]
    (stage,) = planned(*steps)[0]
    assert stage["STEPS"] == ",".join(["text", *names, "parquet"])
    assert (stage["RUNS AS"], stage["BATCH"]) == ("tasks", shown)
    assert (stage["CPU"], stage["GROUP"]) == (f"{TASK_CPUS:g}", "cpu")


def test_plan_shows_a_model_without_a_pool_in_that_stage(planned: Planned) -> None:
    (stage,) = planned(filter_step("a"), model_step("b", resources={"cpu": 3}))[0]
    shown = ["read-write", "text,a,b,parquet", "tasks", "32", "3", "-", "cpu"]
    assert list(stage.values()) == shown


def test_plan_shows_pods_of_the_job(planned: Planned) -> None:
    workers = {"cpu": 3, "memory": "5Gi", "min": 1, "max": 9}
    _, groups = planned(head={"cpu": 2, "memory": "6Gi"}, workers=workers)
    assert [list(group.values()) for group in groups] == [
        ["head", "2", "-", "6Gi", "1", "1"],
        ["cpu", "3", "-", "5Gi", "1", "9"],
    ]


def test_plan_applies_platform_defaults(
    invoke: Invoke, write_job: WriteJob, directory: Path
) -> None:
    (directory / "defaults.yaml").write_text("workers: {cpu: 6, min: 2, max: 3}")
    result = invoke("plan", write_job(document()), "--defaults", "defaults.yaml")
    assert list(tables(result.stdout)[1][1].values()) == ["cpu", "6", "-", "4Gi", "2", "3"]


@pytest.mark.parametrize(
    "spec",
    [
        {"write": {"format": "parquet", "path": "./out"}},
        {"steps": [model_step(resources={"gpu": 1, "acceleratorType": "T4"})]},
    ],
    ids=["local path", "missing profile"],
)
def test_plan_warns_if_a_cluster_would_refuse_the_job(
    invoke: Invoke, write_job: WriteJob, spec: Document, messages: Messages
) -> None:
    result = invoke("plan", write_job(document(**spec)))
    assert result.exit_code == 0
    assert len(tables(result.stdout)[1]) >= 2
    messages.check(result.stderr)


def test_plan_refuses_a_job(invoke: Invoke, write_job: WriteJob, messages: Messages) -> None:
    wide = document(steps=[model_step(resources={"cpu": 8})], cluster={"workers": {"cpu": 2}})
    for jobs in ([wide], [document("a"), document("b")]):
        result = invoke("plan", write_job(*jobs))
        assert (result.exit_code, result.stdout) == (2, "")
        messages.check(result.stderr)
