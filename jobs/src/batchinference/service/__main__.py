"""The program `python -m batchinference.service CONFIG KEYS`. CONFIG is the configuration file, and
KEYS a directory with hashes of API keys."""

import logging
import sys
from pathlib import Path

from aiohttp import web

from batchinference.service.api_keys import Keys
from batchinference.service.cluster_client import Kubernetes
from batchinference.service.config import ServiceConfig, parse_config
from batchinference.service.server import Service
from batchinference.spec import SpecError

PORT = 8080
IDLE_SECONDS = 75.0
"""Maximum seconds that a connection stays open without a request."""
STOP_SECONDS = 60.0
"""Maximum seconds that requests may take after the pod was asked to stop."""
ACCESS_LOG = '%a "%r" %s %b %Tf'


async def _application(config: ServiceConfig, keys: Keys) -> web.Application:
    cluster = Kubernetes.in_cluster()
    application = Service(config, keys, cluster).application()
    application.on_cleanup.append(lambda _: cluster.close())
    return application


def main(config: str, keys: str) -> None:
    """Serve until the process is asked to stop. Raises SystemExit if the service cannot start."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    try:
        web.run_app(
            _application(parse_config(Path(config).read_text()), Keys(Path(keys))),
            port=PORT,
            keepalive_timeout=IDLE_SECONDS,
            shutdown_timeout=STOP_SECONDS,
            access_log_format=ACCESS_LOG,
            print=None,
        )
    except (SpecError, OSError) as error:
        raise SystemExit(f"batchService: {error}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
