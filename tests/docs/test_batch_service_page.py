"""The page about the batch service: its client and its values."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml

from batchinference.service.config import parse_config
from support.documents.code_blocks import blocks_of
from support.documents.pages import ROOT
from support.jobs.without_ray import run_without_ray
from support.service.cluster import FakeCluster, Object
from support.service.running import KEYS, requests, running

BLOCKS = {block.language: block.text for block in blocks_of(ROOT / "docs/batch-service.md")}


async def test_client_of_the_page_gets_all_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()

    def run(job: Object) -> None:
        counts = run_without_ray(job).counts.model_dump()
        cluster.set_status({"phase": "Succeeded", "counts": counts}, job["metadata"]["name"])

    cluster.run = run
    (tmp_path / "requests.jsonl").write_bytes(requests(7))
    monkeypatch.chdir(tmp_path)
    async with running(tmp_path, cluster) as service:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{service.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEYS["team-a"])
        code, changed = re.subn(r"sleep\(30\)", "sleep(0)", BLOCKS["python"])
        assert changed == 1
        await asyncio.to_thread(exec, code, {})
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in answers] == [f"row-{n}" for n in range(7)]


def test_values_of_the_page_configure_the_service() -> None:
    values = yaml.safe_load(BLOCKS["yaml"])["batchService"]
    config = parse_config(json.dumps({"path": values["path"], "models": values["models"]}))
    assert list(config.models_of("search")) == ["Qwen/Qwen3-8B"]
    assert config.models_of("other") == {}
