"""`batchinference-operator`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import aiohttp
import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from batchinference.rendering import MANAGER
from batchinference_operator.runtime.controller import Controller, run_workers
from batchinference_operator.runtime.driver import Dashboard
from batchinference_operator.runtime.gateway import ApiServer
from batchinference_operator.runtime.handlers import configure, register
from batchinference_operator.runtime.settings import OperatorSettings


def main() -> None:
    settings = OperatorSettings()
    log_format = kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.PLAIN
    kopf.configure(log_format=log_format)
    logging.getLogger().setLevel(settings.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line an event
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # and a line a probe
    asyncio.run(operate(settings))


async def operate(settings: OperatorSettings) -> None:
    """Watch and work until SIGTERM."""
    async with _controller(settings) as controller:
        registry = kopf.OperatorRegistry()
        register(registry, controller)
        kopf_settings = kopf.OperatorSettings()
        configure(kopf_settings, clusterwide=not settings.namespace_list)
        workers = asyncio.create_task(run_workers(controller, settings.workers))
        try:
            await kopf.operator(
                registry=registry,
                settings=kopf_settings,
                namespaces=settings.namespace_list,
                clusterwide=not settings.namespace_list,
                standalone=True,
                identity=MANAGER,  # else kopf asks for the name of a user that has none
                liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
            )
        finally:
            workers.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await workers


@contextlib.asynccontextmanager
async def _controller(settings: OperatorSettings) -> AsyncIterator[Controller]:
    configuration = Configuration()
    configuration.connection_pool_maxsize = 2 * settings.workers
    await _load(configuration)
    async with ApiClient(configuration) as client, aiohttp.ClientSession() as session:
        yield Controller(ApiServer(client), Dashboard(session), settings.for_reconcile())


async def _load(configuration: Configuration) -> None:
    """The connection of the pod's service account, or of the kubeconfig outside a cluster."""
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
