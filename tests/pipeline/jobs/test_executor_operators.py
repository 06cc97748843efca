"""How a plan runs: as one segment, or as operators of Ray Data if it has pools or collects rows."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from ray.data import ActorPoolStrategy, DataContext, Dataset, from_arrow
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution import executor
from batchinference.pipeline.execution.block_codec import encode
from batchinference.pipeline.execution.chunk_commits import CommitRules
from batchinference.pipeline.execution.crash_isolation import NO_DEATHS
from batchinference.pipeline.execution.dataset import DatasetExecution, _actor
from batchinference.pipeline.execution.dataset_control import ControlCallback
from batchinference.pipeline.execution.execution_control import ExecutionControl
from batchinference.pipeline.execution.segment import Segment
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.file_input import REREAD_BYTES, open_input
from batchinference.pipeline.input.planning import Sizing
from batchinference.pipeline.ray_data_compat import whole_call
from batchinference.pipeline.storage.location import Location
from batchinference.plan import CPU_GROUP, plan_for_cluster, plan_for_machine
from batchinference.plan.groups import GROUP_LABEL
from batchinference.plan.stages import stages_of
from batchinference.spec.job import BatchInferenceSpec
from support.calls import counted
from support.documents.minimal import Document, model_step
from support.documents.parsed import spec_of, steps_of
from support.documents.vllm_models import vllm_step
from support.jobs.command import wait_until
from support.jobs.on_ray import job_document, run_in_process, run_job, write_lines
from support.outputs.batches import good
from support.outputs.stages import TOLERANT
from support.outputs.tables import table_rows, write_fields

pytestmark = pytest.mark.usefixtures("ray")

FUNCTION = {"name": "function", "python": {"callable": "own_code:length"}}
CLASS = {"name": "class", "python": {"callable": "own_code:Suffix"}}
POOL = {**CLASS, "name": "pool", "replicas": {"max": 1}}
FILTER = {"name": "filter", "filter": "len(text) > 1"}
AFTER = {"name": "after", "python": {"callable": "own_code:to_upper"}}


def operators(dataset: Dataset) -> list[str]:
    """Return the names of the executed operators, in order, from the statistics of the dataset."""
    stats: str = dataset._write_ds.stats()
    names = re.findall(r"^Operator \d+ (.*?): \d+ tasks? executed", stats, re.MULTILINE)
    return [re.sub(r"->SplitBlocks\(\d+\)", "", name) for name in names]


def logical_operators(dataset: Dataset) -> list[Any]:
    """Return the operators of the logical plan of a dataset, in order."""
    result: list[Any] = []
    operator: Any = dataset._logical_plan.dag
    while operator is not None:
        result.insert(0, operator)
        operator = next(iter(operator.input_dependencies), None)
    return result


LARGE = Sizing(64, 64, 1)


def run_executor(
    spec: BatchInferenceSpec,
    rows: JobInput,
    count: RowCount | None,
    sizing: Sizing = LARGE,
    **retries: int,
) -> None:
    """Run a job with this input and the stages of this machine, without an output."""
    prepared: Any = SimpleNamespace(
        input=rows,
        count=count,
        sizing=sizing,
        share=1.0,
        missing=None,
        start=SimpleNamespace(input=""),
        job_pass=MagicMock(layout=SimpleNamespace(input=Location("/in"))),
        first_file=0,
        table=None,
        isolation=NO_DEATHS,
    )
    executor.Executor(spec, replace(plan_for_machine(spec), **retries), prepared).run()


COLLECTED = {"rowsPerFile": 50}
CASES: dict[str, tuple[int, list[Document], Document, list[str]]] = {
    "no steps": (1, [], COLLECTED, ["ReadRows", "Write"]),
    "a pool and one file": (
        1,
        [FILTER, POOL],
        {},
        ["ReadRows", "MapBatches(filter)", "MapBatches(pool)", "Write"],
    ),
    "functions around a pool": (
        20,
        [FILTER, POOL, AFTER],
        {"rowNumber": "row"},
        ["ReadRows", "MapBatches(pool)", "Write"],
    ),
}


@pytest.mark.parametrize(("files", "steps", "write", "expected"), CASES.values(), ids=CASES)
def test_steps_around_a_pool_run_in_the_tasks_that_read_and_write(
    tmp_path: Path, files: int, steps: list[Document], write: Document, expected: list[str]
) -> None:
    with counted(Dataset, "write_datasink") as writes:
        run = run_job(_job(tmp_path, files, steps, write))
    assert run.counts == (60, 60, 0, 0)
    (written,) = writes.call_args.args[:1]
    assert operators(written) == expected
    stats: str = written._write_ds.stats()
    # a file is divided into blocks of at least MIN_BLOCK_ROWS
    assert f", {max(files, 3)} blocks produced" in stats.splitlines()[0]


@pytest.mark.parametrize("format_", ["delta", "iceberg", "lance", "sql"])
def test_files_of_a_table_are_put_there_by_tasks(
    tmp_path: Path, format_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Ray for one format. The tasks of the others are pickled in this process."""
    results = executor.Executor._results

    def in_tasks(self: executor.Executor, functions: Any, **_: bool) -> Any:
        return results(self, functions, in_tasks=True)

    monkeypatch.setattr(executor.Executor, "_results", in_tasks)
    run_it = run_job if format_ == "iceberg" else run_in_process
    run = run_it(_job(tmp_path, 2, [FUNCTION], write_fields(format_, tmp_path)))
    assert run.counts == (60, 60, 0, 0)
    assert len(table_rows(format_, tmp_path)) == 60


@pytest.mark.parametrize(
    ("parts", "divisible", "tasks"),
    [(20_000, True, 384), (20_000, False, 384), (100, False, 100), (40, False, 40)],
)
def test_input_is_divided_among_all_cpus(
    monkeypatch: pytest.MonkeyPatch, parts: int, divisible: bool, tasks: int
) -> None:
    """More parts would be better for 96 CPUs, but these tasks need no operators for that."""
    result: list[int] = []

    def commit_tasks(_: object, tasks: list[Any]) -> Any:
        result.append(len(tasks))
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(executor, "all_cpus", lambda plan: 96)
    monkeypatch.setattr(executor.Executor, "_commit_tasks", commit_tasks)
    given: Any = MagicMock(divisible=lambda tasks: divisible)
    given.__len__.return_value, given.share.return_value = parts, 1.0
    given.read_tasks = lambda wanted, *_: [None] * (wanted if divisible else min(wanted, parts))
    spec = spec_of(steps=[FUNCTION])
    run_executor(spec, given, RowCount(20_000, estimated=False))
    assert result == [tasks]


@pytest.mark.parametrize(
    ("rows", "rows_per_file", "tasks"),
    [(48_000, 1000, 12), (1_000_000, 10_000, 25), (47_000, 1000, None), (0, 1000, None)],
)
def test_tasks_commit_if_each_fills_most_of_its_files(
    monkeypatch: pytest.MonkeyPatch, rows: int, rows_per_file: int, tasks: int | None
) -> None:
    """Otherwise, Ray Data collects the rows of several tasks for a file."""
    result: list[int | None] = []

    def single(_: object, tasks: list[Any]) -> Any:
        result.append(len(tasks))
        return SimpleNamespace(run=lambda: None)

    def several(*_: object, **__: object) -> Any:
        return SimpleNamespace(run=lambda: result.append(None))

    monkeypatch.setattr(executor, "all_cpus", lambda plan: 4)
    monkeypatch.setattr(executor.Executor, "_commit_tasks", single)
    monkeypatch.setattr(executor.Executor, "_dataset", several)
    given: Any = MagicMock(divisible=lambda tasks: True, size=1)
    given.__len__.return_value, given.share.return_value = 1, 1.0
    given.read_tasks = lambda wanted, *_: [None] * wanted
    write = {"format": "parquet", "path": "/out", "rowsPerFile": rows_per_file}
    spec = spec_of(steps=[FUNCTION], write=write)
    run_executor(spec, given, RowCount(rows, estimated=False) if rows else None)
    assert result == [tasks]


def test_only_a_model_occupies_the_nodes_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, decoding and writing are for the CPU workers of a cluster."""
    documents: dict[str, Document] = {}

    def write(self: Dataset, sink: object, ray_remote_args: Document, **_: object) -> None:
        documents["Write"] = ray_remote_args["label_selector"]
        documents["split"] = self.context.execution_options.label_selector
        for operator in logical_operators(self):
            documents[operator.name] = operator.ray_remote_args["label_selector"]

    monkeypatch.setattr(Dataset, "write_datasink", write)
    decode = {"name": "decode", "decode": {"column": "image", "format": "image"}}
    step = model_step("see", resources={"custom": {"NPU": 1}})
    read = {"format": "parquet", "paths": ["s3://in/"]}
    plan = plan_for_cluster(spec_of(read=read, steps=[decode, step, AFTER]))
    errors = ErrorHandling(tolerant=False, input=Location("/in"))
    commits = MagicMock(), CommitRules(1)
    DatasetExecution(plan, [lambda: iter(())], 1, True, errors, *commits, ExecutionControl()).run()
    on_cpus, on_device = {GROUP_LABEL: CPU_GROUP}, {GROUP_LABEL: "see"}
    tasks = dict.fromkeys(["ReadRows", "Write", "split"], on_cpus)
    assert documents == {**tasks, "MapBatches(see)": on_device}


@pytest.mark.parametrize("error", [None, JobFailure("no")])
def test_settings_of_ray_data_are_those_of_the_user_after_a_pass(
    monkeypatch: pytest.MonkeyPatch, error: JobFailure | None
) -> None:
    """A notebook may run other datasets after a job."""
    settings = DataContext.get_current()
    own = {"zone": "a"}
    monkeypatch.setattr(settings.execution_options, "label_selector", own)
    monkeypatch.setattr(settings, "custom_execution_callback_classes", [])
    monkeypatch.setattr(settings, "enable_progress_bars", True)
    during = list[DataContext]()

    def write(self: Dataset, *_: object, **__: object) -> None:
        during.append(self.context)
        if error is not None:
            raise error

    monkeypatch.setattr(Dataset, "write_datasink", write)
    plan = plan_for_cluster(spec_of(steps=[AFTER]))
    errors = ErrorHandling(tolerant=False, input=Location("/in"))
    commits = MagicMock(), CommitRules(1)
    run = DatasetExecution(plan, [lambda: iter(())], 1, True, errors, *commits, ExecutionControl())
    with nullcontext() if error is None else pytest.raises(JobFailure):
        run.run()
    assert during[0].execution_options.label_selector == {GROUP_LABEL: CPU_GROUP}
    assert during[0].custom_execution_callback_classes == [ControlCallback]
    assert settings.execution_options.label_selector == own
    assert settings.custom_execution_callback_classes == []
    assert settings.enable_progress_bars


def test_gpus_of_a_replica_on_several_pods_are_free_after_its_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_actor(self: Dataset, *_: object, **__: object) -> None:
        _, pool = logical_operators(self)
        ids.append(pool.ray_remote_args_fn()["scheduling_strategy"].placement_group.id.hex())

    ids: list[str] = []
    monkeypatch.setattr(Dataset, "write_datasink", start_actor)
    step = vllm_step(gpu=2, parallelism={"tensor": 1, "pipeline": 2})
    plan = plan_for_cluster(spec_of(steps=[step]))
    errors = ErrorHandling(tolerant=False, input=Location("/in"))
    commits = MagicMock(), CommitRules(1)
    DatasetExecution(plan, [lambda: iter(())], 1, True, errors, *commits, ExecutionControl()).run()
    assert placement_group_table()[ids[0]]["state"] == "REMOVED"


def test_actor_on_several_pods_gives_their_devices_back_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Actors that share a group keep it."""
    monkeypatch.setattr(DataContext.get_current().execution_options, "label_selector", {})
    (stage,) = stages_of(steps_of(POOL))
    group = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group)
    block = encode(good(0, 0, pa.table({"text": ["a"]})))
    try:
        for pods in (1, 2):
            computed = from_arrow(block).map_batches(
                _actor(replace(stage, pods=pods), Segment.of([stage], TOLERANT)),
                batch_format="pyarrow",
                compute=ActorPoolStrategy(size=1),
                ray_remote_args_fn=lambda: {"scheduling_strategy": strategy},
            )
            computed.materialize()
            assert pods == 2 or state_of(group) == "CREATED"
        wait_until(lambda: state_of(group) == "REMOVED", "its end", 30)
    finally:
        remove_placement_group(group)


def state_of(group: PlacementGroup) -> str:
    return str(placement_group_table()[group.id.hex()]["state"])


def planned(monkeypatch: pytest.MonkeyPatch, spec: BatchInferenceSpec) -> dict[str, Any]:
    """Return the logical operators of a job that reads text files by name, without a run."""
    return {each.name: each for each in planned_in_order(monkeypatch, spec)}


def planned_in_order(
    monkeypatch: pytest.MonkeyPatch, spec: BatchInferenceSpec, **retries: int
) -> list[Any]:
    """Return the logical operators of a job that reads text files, without a run."""
    result: list[Any] = []

    def write(self: Dataset, *_: object, **__: object) -> None:
        result.extend(logical_operators(self))

    monkeypatch.setattr(Dataset, "write_datasink", write)
    rows = open_input(spec.read)
    run_executor(spec, rows, rows.count(), Sizing(1, 8, 1), **retries)
    return result


def test_pool_of_a_text_model_gets_windows_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path, {"a.txt": ["text"] * 600})
    own = {"name": "own", "python": {"callable": "own_code:Suffix"}, "batchSize": 16}
    steps = [model_step(replicas={"max": 2}), own]
    spec = spec_of(read={"format": "text", "paths": [str(tmp_path)]}, steps=steps)
    operators = planned(monkeypatch, spec)
    assert operators["MapBatches(embed)"].batch_size == 100
    assert operators["MapBatches(own)"].batch_size == whole_call(16)


def test_rows_are_prepared_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a slow input do not wait for more rows before the pool."""
    write_lines(tmp_path, {"a.txt": ["text"] * 600})
    steps = [model_step(replicas={"max": 2})]
    spec = spec_of(read={"format": "text", "paths": [str(tmp_path)]}, steps=steps)
    prepare, pool = planned_in_order(monkeypatch, spec)[1:3]
    assert (prepare.name, prepare.batch_size) == (pool.name, None)


def test_operators_have_the_retries_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = {"format": "text", "paths": [str(write_lines(tmp_path, {"a.txt": ["text"] * 600}))]}
    spec = spec_of(read=read, steps=[FUNCTION, POOL])
    operators = planned_in_order(monkeypatch, spec, task_retries=3, actor_restarts=2)
    *tasks, pool = [operator.ray_remote_args for operator in operators]
    assert [arguments["max_retries"] for arguments in tasks] == [3, 4]
    assert (pool["max_task_retries"], pool["max_restarts"]) == (3, 2)


def test_class_gets_a_pool_if_the_input_cannot_be_divided_among_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path, {"a.txt": ["x" * (REREAD_BYTES // 50)] * 60})
    spec = spec_of(read={"format": "text", "paths": [str(tmp_path)]}, steps=[FILTER, CLASS])
    operators = planned(monkeypatch, spec)
    assert list(operators) == ["ReadRows", "MapBatches(filter)", "MapBatches(class)"]
    assert isinstance(operators["MapBatches(class)"].compute, ActorPoolStrategy)


def _job(directory: Path, files: int, steps: list[Document], write: Document) -> Document:
    lines = {f"{n}.txt": [f"text {m}" for m in range(60 // files)] for n in range(files)}
    source = write_lines(directory / "in", lines)
    return job_document("job", source, directory / "out", steps=steps, write=write)


def test_tasks_use_all_cpus(tmp_path: Path) -> None:
    lines = {f"{n}.txt": [f"text {m}" for m in range(3)] for n in range(20)}
    source = write_lines(tmp_path / "in", lines)
    (tmp_path / "here").mkdir()
    arguments = {"directory": str(tmp_path / "here"), "tasks": 2}
    step = {
        "name": "meet",
        "python": {"callable": "own_code:require_concurrent_tasks", "callArgs": arguments},
    }
    run = run_job(job_document("job", source, tmp_path / "out", steps=[step]))
    assert run.counts == (60, 60, 0, 0), run.report.message
