"""Around every request: access checks, security headers, logging and counting.

Plain ASGI, around the routes. A failure in here or below becomes a 500 that reveals nothing about the server; the log
has the traceback under the number that the client gets.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from xlan.serving.metrics import Metrics
from xlan.serving.problems import Problem
from xlan.serving.protocol import MAX_HEADER_BYTES

# Only files of this server, no inline script or style, no frames.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FOLDERS = ("/static", "/examples", "/v1/photos")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
# The status that is logged when the client left before its answer, as nginx does.
CLIENT_LEFT = 499

_log = logging.getLogger("xlan.serving")


class Guard:
    """The outermost layer of the application.

    Args:
        app: what answers.
        metrics: what is counted.
        token: the bearer token that `protected` addresses need; None for none.
        protected: addresses that need it; those of `FOLDERS` with all that is below them.
        routes: addresses that are counted under their own name.
        hosts: names the Host header may have, in lower case; None for any.
        stopping: whether the server is about to end, and connections with it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        token: str | None,
        protected: frozenset[str],
        routes: frozenset[str],
        hosts: frozenset[str] | None,
        stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._token = None if token is None else token.encode("ascii")
        self._protected = protected
        self._routes = routes
        self._hosts = hosts
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if self._stopping():
                    headers["Connection"] = "close"
            await send(message)

        # HEAD is answered wherever GET is; uvicorn leaves out the body.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            try:
                _check_size(scope)
                self._check(Headers(scope=scope), scope["method"], scope["path"])
                await self._app(inner, receive, send_safely)
            except Problem as problem:
                await problem.response()(scope, receive, send_safely)
            except ClientDisconnect:
                status = CLIENT_LEFT
            except Exception:
                number = secrets.token_hex(4)
                _log.exception("failure %s", number)
                if status:  # the answer has begun; it can only be aborted
                    raise
                await Problem("failure", f"the server's log has the details under number {number}").response()(
                    scope, receive, send_safely
                )
        finally:
            self._count(scope, status or CLIENT_LEFT, time.perf_counter() - began)

    def _check(self, headers: Headers, method: str, path: str) -> None:
        host = _name_of(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            raise Problem("other-host", f"expected a Host header with one of: {names}")
        if _is_other_site(headers, method, host):
            raise Problem("other-site", "requests from pages of other sites are refused")
        if self._token is not None and _route(path) in self._protected:
            kind, _, given = headers.get("authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
            if kind.lower() != "bearer" or not right:
                challenge = 'Bearer realm="xlan"'
                raise Problem("token", "expected a header Authorization: Bearer …", {"WWW-Authenticate": challenge})

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        path = _route(scope["path"])
        route = path if path in self._routes else "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(route, method, str(status)).inc()
        self._metrics.request_seconds.observe(seconds)
        client = scope.get("client")
        _log.info("%s %s %s %d %.3f s", client[0] if client else "-", method, route, status, seconds)


def _route(path: str) -> str:
    """The address that a path is counted and protected under: files of a folder under its name."""
    return next((folder for folder in FOLDERS if path.startswith(folder + "/")), path)


def _check_size(scope: Scope) -> None:
    """Refuse a header that arrived whole and is too large; h11 refuses those it has to wait for."""
    size = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise Problem("header-too-large", f"expected at most {MAX_HEADER_BYTES >> 10} KB of request line and headers")


def _is_other_site(headers: Headers, method: str, host: str) -> bool:
    """Whether a browser says that a page of another site makes this request; other programs send no such header.

    Such a page could not read the answer anyway (there is no CORS); this keeps it from using the model at all.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        follows_a_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
        return site == "cross-site" and not follows_a_link
    origin = headers.get("origin")
    return origin is not None and _name_of(origin.partition("//")[2]) != host


def _name_of(authority: str) -> str:
    """Host name of `name:port` or `[::1]:port`, in lower case."""
    authority = authority.strip().lower()
    if authority.startswith("["):
        return authority.partition("]")[0] + "]"
    return authority.partition(":")[0]
