"""An S3 served on this machine by moto, behind a door that can be shut: requests fail, are late, or are never heard."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

_KINDS = ("500", "slow", "dropped", "answer lost")


class Door:
    """A WSGI application that lets requests through to another, or does not."""

    def __init__(self, app: Any, share: Any) -> None:
        self.app, self.share = app, share
        self._random = random.Random(0)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        kind = self._random.choice(_KINDS) if self._random.random() < self.share.value else None
        if kind == "500":
            start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code></Error>"]
        if kind == "slow":
            time.sleep(self._random.uniform(5.0, 20.0))
        if kind == "dropped":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        answer = self.app(environ, start_response)
        if kind == "answer lost":  # done, and nobody is told
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def _serve(port: Any, share: Any) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.disable(logging.CRITICAL)  # a line per request, a trace for each connection that we drop
    app = Door(DomainDispatcherApplication(create_backend_app), share)
    server = make_server("127.0.0.1", 0, app, threaded=True)
    port.value = server.server_port
    server.serve_forever()


@contextmanager
def broken_s3(bucket: str = "runs") -> Iterator[Any]:
    """Serve an S3 known to this process and its children; gives the share of requests that go wrong, to be set."""
    import fsspec
    import s3fs

    context = multiprocessing.get_context("spawn")
    port, share = context.Value("i", 0), context.Value("d", 0.0)
    server = context.Process(target=_serve, args=(port, share), daemon=True)
    server.start()
    while not port.value:
        assert server.is_alive(), "the S3 did not start"
        time.sleep(0.05)
    settings = {"endpoint_url": f"http://127.0.0.1:{port.value}", "key": "test", "secret": "test"}
    for_children = {f"FSSPEC_S3_{key.upper()}": value for key, value in settings.items()}
    with patch.dict(os.environ, for_children), patch.dict(fsspec.config.conf, s3=settings):
        try:
            s3fs.S3FileSystem(**settings).mkdir(bucket)
            yield share
        finally:
            server.kill()
            server.join()
            s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def local_s3(bucket: str = "runs") -> Iterator[str]:
    """Serve an S3 that fails at nothing; gives the URL of a bucket."""
    with broken_s3(bucket):
        yield f"s3://{bucket}"
