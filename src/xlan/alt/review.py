"""The review page: a person accepts, edits or rejects each text, and every decision is written at once.

The server listens on this machine alone. Its address has a secret part, requests that come under another name than the
machine's own are refused, and pictures leave it only as small JPEGs.
"""

from __future__ import annotations

import io
import json
import re
import secrets
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from xlan.alt.document import Document
from xlan.alt.images import one_line
from xlan.alt.survey import Finding
from xlan.errors import DataError, ImageError, XlanError
from xlan.pages.layout import STYLE, text
from xlan.vision.image import open_image

PER_PAGE = 50
MAX_BODY = 64 << 10
MAX_TEXT = 2000
_SIDE = 640
ACTIONS = ("accept", "reject", "decorative")


class RefusedError(XlanError):
    """A request that cannot be answered; the message is for the person at the page."""


class Review:
    """The findings under review and the decisions so far; safe to use from several threads.

    Args:
        findings: what to decide on.

    Attributes:
        decisions: what was decided, by the number of the finding.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = list(findings)
        self.decisions: dict[int, str] = {}
        self._digests = {one.document: one.digest for one in findings}
        self._lock = threading.Lock()

    def decide(self, number: int, action: str, words: str = "") -> str:
        """Write a decision: `accept` writes the text without a mark, `reject` leaves the image as it was before
        `xlan alt --apply`, `decorative` says that it needs no text.

        Returns:
            What to show for it.

        Raises:
            RefusedError: there is no such image or action, it is decided, or its text is empty.
            DataError: the document changed meanwhile, or the change cannot be made.
            OSError: the document cannot be written.
        """
        if not 0 <= number < len(self.findings) or action not in ACTIONS:
            raise RefusedError("expected the number of an image and one of: " + ", ".join(ACTIONS))
        if action == "accept" and not (words := one_line(words)[:MAX_TEXT]):
            raise RefusedError("an empty text cannot be accepted; choose decorative if the image says nothing")
        with self._lock:
            if number in self.decisions:
                raise RefusedError(f"already decided: {self.decisions[number]}")
            finding = self.findings[number]
            if finding.state == "computed":
                raise RefusedError(finding.note)
            if action != "reject" or finding.state == "marked":
                self._write(finding, action, words)
            self.decisions[number] = words if action == "accept" else {"reject": "rejected"}.get(action, action)
            return self.decisions[number]

    def _write(self, finding: Finding, action: str, words: str) -> None:
        document = Document(finding.document)
        if document.digest != self._digests[finding.document]:
            raise DataError(f"{finding.document}: changed by another program meanwhile; start the review again")
        if action == "accept":
            content = document.describe({finding.number: words}, marked=False)
        elif action == "decorative":
            content = document.decorate(finding.number)
        else:
            content = document.undo([finding.number])
        document.write(content)
        self._digests[finding.document] = Document(finding.document).digest


class ReviewServer(ThreadingHTTPServer):
    """Serves the review on 127.0.0.1.

    Args:
        findings: what to decide on.
        port: where to listen; 0 takes a free port.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, findings: Sequence[Finding], *, port: int = 0) -> None:
        self.review = Review(findings)
        self.secret = secrets.token_urlsafe(16)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.secret}/"

    @property
    def decided(self) -> int:
        """How many decisions were made."""
        return len(self.review.decisions)

    def __enter__(self) -> ReviewServer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that disconnects during an answer is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    timeout = 30

    def do_GET(self) -> None:
        rest = self._rest()
        if rest is None:
            return
        if found := re.fullmatch(r"picture/(\d{1,9})", rest):
            self._picture(int(found[1]))
        elif found := re.fullmatch(r"(?:page/(\d{1,6}))?", rest):
            nonce = secrets.token_urlsafe(12)
            body = review_page(self.server.review, max(1, int(found[1] or 1)), self.server.secret, nonce)
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", body.encode("utf-8"), nonce)
        else:
            self._fail(HTTPStatus.NOT_FOUND, "no such page")

    def do_POST(self) -> None:
        rest = self._rest()
        if rest is None:
            return
        length = self.headers.get("Content-Length", "")
        if rest != "decide" or self.headers.get_content_type() != "application/json":
            self._fail(HTTPStatus.NOT_FOUND, "expected a decision as JSON")
        elif not length.isdigit() or int(length) > MAX_BODY:
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
        else:
            self._decide(self.rfile.read(int(length)))

    def _decide(self, body: bytes) -> None:
        try:
            given = json.loads(body)
            number, action, words = given["number"], given["action"], given.get("text", "")
            if not isinstance(number, int) or not isinstance(action, str) or not isinstance(words, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._fail(HTTPStatus.BAD_REQUEST, "expected JSON with number, action and text")
            return
        try:
            result = self.server.review.decide(number, action, words)
        except XlanError as error:
            self._fail(HTTPStatus.CONFLICT, str(error))
        except OSError as error:
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, f"cannot be written: {error.strerror or error}")
        else:
            self._json(HTTPStatus.OK, {"result": result})

    def _rest(self) -> str | None:
        """The path behind the secret; None when the request was refused."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
        start = f"/{self.server.secret}/"
        path = self.path.split("?", 1)[0]
        if host not in ("127.0.0.1", "localhost") or not secrets.compare_digest(
            path[: len(start)].encode("utf-8", "replace"), start.encode()
        ):
            self._fail(HTTPStatus.FORBIDDEN, "open the address that xlan printed")
            return None
        return path[len(start) :]

    def _picture(self, number: int) -> None:
        findings = self.server.review.findings
        picture = findings[number].picture if number < len(findings) else None
        try:
            if picture is None:
                raise ImageError("no such picture")
            image = open_image(picture.source, min_side=_SIDE)
        except ImageError as error:
            self._fail(HTTPStatus.NOT_FOUND, str(error))
            return
        image.thumbnail((_SIDE, _SIDE))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=82)
        self._answer(HTTPStatus.OK, "image/jpeg", file.getvalue())

    def _json(self, status: HTTPStatus, value: dict[str, str]) -> None:
        self._answer(status, "application/json", json.dumps(value).encode())

    def _fail(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True
        self._json(status, {"error": message})

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, nonce: str = "") -> None:
        self.send_response(status)
        script = f"script-src 'nonce-{nonce}'; " if nonce else ""
        policy = f"default-src 'none'; {script}style-src 'unsafe-inline'; img-src 'self'; connect-src 'self'"
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy + "; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives
        """Do not log requests."""


_OWN_STYLE = """
textarea{width:100%;font:inherit;color:inherit;background:var(--paper);border:1px solid var(--line);border-radius:6px;
padding:8px;resize:vertical}label{display:block;font-size:.85rem;color:var(--soft)}
.do{display:flex;flex-wrap:wrap;gap:8px;margin:10px 0 0}
button{font:inherit;padding:6px 14px;border-radius:6px;border:1px solid var(--line);background:var(--paper);
color:inherit;cursor:pointer}button.yes{background:var(--mark);border-color:var(--mark);color:var(--paper)}
button:disabled{opacity:.5;cursor:default}.result{margin:8px 0 0;font-weight:600;min-height:1.5em}
nav{display:flex;gap:16px;margin:24px 0 0}
"""
_SCRIPT = """
for (const form of document.querySelectorAll("form")) {
  const buttons = form.querySelectorAll("button"), words = form.querySelector("textarea");
  const result = form.querySelector(".result");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    buttons.forEach((one) => { one.disabled = true; });
    const action = event.submitter.value;
    let answer = {error: "the server does not answer; is the command still running?"};
    try {
      const sent = {number: Number(form.dataset.number), action, text: words.value};
      const got = await fetch(document.body.dataset.root + "decide",
        {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(sent)});
      answer = await got.json();
    } catch (error) { /* said below */ }
    if (answer.error) {
      result.textContent = answer.error;
      buttons.forEach((one) => { one.disabled = false; });
    } else {
      result.textContent = action === "accept" ? "Accepted." : action === "reject" ? "Rejected." : "Decorative.";
      words.disabled = true;
    }
  });
}
"""


def review_page(review: Review, number: int, secret: str, nonce: str) -> str:
    """One page of the review as HTML."""
    pages = max(1, -(-len(review.findings) // PER_PAGE))
    number = min(number, pages)
    first = (number - 1) * PER_PAGE
    cards = [
        _card(first + at, one, review.decisions.get(first + at), secret)
        for at, one in enumerate(review.findings[first : first + PER_PAGE])
    ]
    links = [f'<a href="/{secret}/page/{n}">{name}</a>' for n, name in ((number - 1, "previous"), (number + 1, "next"))]
    shown = [link for link, there in zip(links, (number > 1, number < pages), strict=True) if there]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>Alternative texts – xlan</title>\n"
        f'<style>{STYLE}{_OWN_STYLE}</style></head>\n<body data-root="/{secret}/"><main>\n'
        f'<h1>Alternative texts</h1><p class="soft">{len(review.findings):,} images, page {number} of {pages}. '
        "Decisions are written into the documents at once.</p>"
        f'<div class="cards">{"".join(cards)}</div><nav aria-label="pages">{"".join(shown)}</nav>\n'
        f'</main><script nonce="{nonce}">{_SCRIPT}</script></body></html>\n'
    )


def _card(number: int, one: Finding, decided: str | None, secret: str) -> str:
    proposed = one.alt or "" if one.state == "marked" else one.suggestion
    picture = f'<img src="/{secret}/picture/{number}" alt="" loading="lazy">' if one.picture is not None else ""
    facts = [f"{text(one.source)}"]
    if one.suggestion:
        facts.append(f"confidence {100 * one.confidence:.0f} %")
    if one.note:
        facts.append(text(one.note))
    facts.append(
        {"marked": "written by xlan", "file name": f"now: {text(one.alt or '')}"}.get(one.state, "no text yet")
    )
    closed = " disabled" if decided is not None or one.state == "computed" else ""
    buttons = [("accept", "Accept", ' class="yes"'), ("reject", "Reject", "")]
    buttons += [("decorative", "Decorative", "")] if one.can_be_decorative else []
    drawn = "".join(f'<button value="{value}"{extra}{closed}>{name}</button>' for value, name, extra in buttons)
    return (
        f'<figure>{picture}<figcaption><form data-number="{number}">'
        f'<label for="t{number}">Alternative text</label>'
        f'<textarea id="t{number}" rows="3" maxlength="{MAX_TEXT}"{closed}>{text(decided or proposed)}</textarea>'
        f'<div class="do">{drawn}</div><p class="result" role="status">{"Decided." if decided is not None else ""}</p>'
        f'<p class="facts">{text(_place(one))}<br>{" · ".join(facts)}</p></form></figcaption></figure>'
    )


def _place(one: Finding) -> str:
    return f"{Path(one.document).name}, line {one.line}"
