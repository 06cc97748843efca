"""`batchinference-operator`."""

from __future__ import annotations

import asyncio
import logging
import sys

import aiohttp
import kopf
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from batchinference.rendering import MANAGER
from batchinference_operator.runtime.controller import Controller
from batchinference_operator.runtime.driver import Dashboard
from batchinference_operator.runtime.gateway import ApiServer
from batchinference_operator.runtime.handlers import configure, register
from batchinference_operator.runtime.preflight import NotReady, check_api
from batchinference_operator.runtime.settings import OperatorSettings


def main() -> None:
    settings = OperatorSettings()
    log_format = kopf.LogFormat.JSON if settings.log_format == "json" else kopf.LogFormat.PLAIN
    kopf.configure(log_format=log_format)
    logging.getLogger().setLevel(settings.log_level)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # else a line an event
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)  # and a line a probe
    try:
        asyncio.run(operate(settings))
    except NotReady as problem:
        sys.exit(f"batchinference-operator cannot start: {problem}")


async def operate(settings: OperatorSettings) -> None:
    """Watch and work until SIGTERM. Raises NotReady."""
    try:
        decided = settings.for_reconcile()
    except (OSError, ValueError) as problem:
        raise NotReady(str(problem)) from None
    client = ApiClient(await _connection(2 * settings.workers))
    async with client, aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        await check_api(client, settings.namespace_list)
        await _run(Controller(ApiServer(client), Dashboard(session), decided), settings)


async def _run(controller: Controller, settings: OperatorSettings) -> None:
    registry = kopf.OperatorRegistry()
    register(registry, controller)
    kopf_settings = kopf.OperatorSettings()
    configure(kopf_settings, clusterwide=not settings.namespace_list)
    async with asyncio.TaskGroup() as group:
        # started before kopf, which at its end waits for each task that came after it
        workers = [group.create_task(controller.work()) for _ in range(settings.workers)]
        try:
            await kopf.operator(
                registry=registry,
                settings=kopf_settings,
                namespaces=settings.namespace_list,
                clusterwide=not settings.namespace_list,
                standalone=True,
                # else kopf asks for the name of a user that has none; its type is not public
                identity=MANAGER,  # type: ignore[arg-type]
                liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
            )
        finally:
            for worker in workers:
                worker.cancel()


async def _connection(pool: int) -> Configuration:
    """The connection of the pod's service account, or of the kubeconfig outside a cluster."""
    configuration = Configuration()
    configuration.connection_pool_maxsize = pool
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return configuration
