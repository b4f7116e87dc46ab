"""Serves the page of running runs, only to browsers on this machine."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"


class LiveServer(ThreadingHTTPServer):
    """Serves the current page at one address, and 404 at all others.

    The address has a secret token, because other users of this machine can reach its loopback address, too. Requests
    for another host name are refused, so that a website can't read the page under a name of its own (DNS rebinding).

    Args:
        page: returns the page; called for each request.
        port: 0 is any free port.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, page: Callable[[], str], port: int = 0) -> None:
        self.page = page
        self.path = f"/{secrets.token_urlsafe(24)}/"
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{self.host}{self.path}"

    @property
    def host(self) -> str:
        """The only host name that requests may use."""
        return f"{LOOPBACK}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer

    def do_GET(self) -> None:
        is_ours = secrets.compare_digest(self.path.encode(), self.server.path.encode())
        if not is_ours or self.headers.get("Host") != self.server.host:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = self.server.page().encode("utf-8", errors="backslashreplace")
        tag = f'"{hashlib.sha256(content).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            self._begin(HTTPStatus.NOT_MODIFIED, tag)
            return
        self._begin(HTTPStatus.OK, tag, len(content))
        self.wfile.write(content)

    def _begin(self, status: HTTPStatus, tag: str, size: int = 0) -> None:
        self.send_response(status)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the page sends a request every two seconds."""
