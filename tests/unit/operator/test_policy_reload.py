"""The operator uses a changed policy without a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.job import SCHEDULE_KIND
from batchinference_operator.controller.policy_reload import RELOAD_SECONDS, reload_policy
from batchinference_operator.controller.schedule_controller import ScheduleController
from batchinference_operator.settings import OperatorSettings
from support.documents.minimal import schedule_document
from support.operator.harness import Harness
from support.operator.virtual_time import in_virtual_time


@in_virtual_time
async def test_policy_is_reloaded_unless_it_is_invalid(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "policy.yaml"
    settings = OperatorSettings(policy_file=file, token_key_file=tmp_path / "key")

    async def change(text: str) -> PlatformPolicy:
        file.write_text(text)
        await asyncio.sleep(3 * RELOAD_SECONDS)
        return controller.config.policy

    async with harness.operator() as controller:
        file.write_text("")
        schedules = ScheduleController(harness.api, controller.config, controller.recorder)
        harness.cluster.put(schedule_document())
        schedules.handle_event(harness.cluster.objects[SCHEDULE_KIND, "nightly"])
        schedules.queue.done(key := await schedules.queue.get())
        task = asyncio.create_task(reload_policy(controller, schedules, settings.policy))
        strict = await change("images: [registry.example/]")
        assert strict.images == ["registry.example/"]
        assert schedules.config.policy == strict
        assert schedules.queue.is_queued(key), "its template is checked again"
        assert await change("images: registry.example/") == strict
        errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
        assert len(errors) == 1
        assert f"{file}: images" in errors[0]
        file.unlink()
        assert await change("images: true\nvolumes: true") == PlatformPolicy(volumes=True)
        task.cancel()
