"""Errors as clients get them: `application/problem+json` (RFC 9457).

A detail is written for the person who sent the request: no paths, no traceback, no bytes of the picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"

# Name → status and title. The name is the end of `type`; docs/serving.md lists the same names.
KINDS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request cannot be read"),
    "bad-option": (400, "An option is invalid"),
    "token": (401, "A bearer token is needed"),
    "other-site": (403, "Pages of other sites may not use this server"),
    "not-found": (404, "Not found"),
    "method": (405, "Method not allowed"),
    "too-slow": (408, "The request took too long to arrive"),
    "too-large": (413, "The request is too large"),
    "content-type": (415, "The content type is not supported"),
    "not-a-picture": (415, "The file is not a picture of a known format"),
    "other-host": (421, "The Host header does not name this server"),
    "unusable-picture": (422, "The picture cannot be used"),
    "unusable-options": (422, "The options cannot be fulfilled"),
    "header-too-large": (431, "The header of the request is too large"),
    "failure": (500, "The server failed"),
    "busy": (503, "Too many requests are waiting"),
    "stopping": (503, "The server is stopping"),
    "time": (504, "The caption was not ready in time"),
}


class Problem(Exception):  # noqa: N818 - it is an answer rather than an error of the program
    """An answer that is not a caption.

    Args:
        kind: a name of `KINDS`.
        detail: one sentence for the person who sent the request.
        headers: further headers of the answer.
    """

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status, self.title = KINDS[kind]
        self.detail = detail
        self.headers = dict(headers or {})

    def content(self) -> dict[str, str | int]:
        """The fields of the answer."""
        return {
            "type": f"urn:xlan:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }

    def response(self) -> JSONResponse:
        """The answer itself."""
        return JSONResponse(self.content(), self.status, self.headers, MEDIA_TYPE)


def from_status(status: int, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem for a status that the router found (404, 405, …)."""
    kinds = {404: "not-found", 405: "method"}
    details = {
        404: "there is no such address; GET /openapi.json lists them all",
        405: "this address does not support the method; see GET /openapi.json",
    }
    if status in kinds:
        return Problem(kinds[status], details[status], headers)
    return Problem("bad-request" if status < 500 else "failure", HTTPStatus(status).phrase, headers)
