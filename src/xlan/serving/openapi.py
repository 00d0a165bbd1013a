"""The OpenAPI document, and the same as a page that asks nobody for anything."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from xlan.pages.layout import text
from xlan.serving.problems import KINDS, MEDIA_TYPE, Problem
from xlan.serving.schemas import Options, ProblemAnswer

# A red dot of one pixel, so that the examples can be sent as they stand.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"


def _body_schema(image: dict[str, Any]) -> dict[str, Any]:
    options = Options.model_json_schema()
    return {
        "type": "object",
        "properties": {"image": image, **options["properties"]},
        "required": ["image"],
        "additionalProperties": False,
    }


CAPTION_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": _body_schema(
                {"type": "string", "contentMediaType": "application/octet-stream", "description": "The picture's file."}
            ),
            "encoding": {"must": {"style": "form", "explode": True}},
        },
        "application/json": {
            "schema": _body_schema(
                {"type": "string", "contentEncoding": "base64", "description": "The picture's file in base64."}
            ),
            "examples": {
                "search": {"summary": "Three beams", "value": {"image": DOT, "beams": 3}},
                "draw": {"summary": "Two samples", "value": {"image": DOT, "samples": 2, "seed": 1}},
                "explain": {"summary": "Where it looked", "value": {"image": DOT, "explain": True}},
            },
        },
    },
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documentation of these statuses: the problem schema and an example of each."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        kinds = [name for name, (number, _) in KINDS.items() if number == status]
        examples = {name: {"value": Problem(name, "what to do about it").content()} for name in kinds}
        found[status] = {
            "description": "; ".join(KINDS[name][1] for name in kinds),
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemAnswer"}, "examples": examples}},
        }
    for status, name in ((503, "Retry-After"), (401, "WWW-Authenticate")):
        if status in found:
            found[status]["headers"] = {name: {"schema": {"type": "string"}, "required": True}}
    return found


def openapi_document(app: FastAPI, *, token: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an application; `token` says whether it wants one."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["ProblemAnswer"] = ProblemAnswer.model_json_schema()
    if token:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for operation in path.values():
            protected = "401" in operation["responses"]
            if protected and token:
                operation["security"] = [{"bearer": []}]
            elif protected:
                del operation["responses"]["401"]
    return document


def docs_page(document: dict[str, Any]) -> str:
    """The document as HTML: every address with what it takes and answers."""
    body = [f"<h1>{text(document['info']['title'])} {text(document['info']['version'])}</h1>"]
    body.append(f'<p class="soft">{text(document["info"]["description"])}</p>')
    body.append('<p>For programs: <a href="/openapi.json">openapi.json</a>. The page: <a href="/">/</a>.</p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body.append(f"<h2><code>{method.upper()} {text(path)}</code></h2><p>{text(operation['summary'])}</p>")
            body.extend(_request_html(operation))
            body.extend(_answers_html(operation))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>xlan: the API</title><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/static/app.css"></head>\n'
        f"<body><main>\n{''.join(body)}\n</main></body></html>\n"
    )


def _request_html(operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return []
    kinds = " or ".join(f"<code>{text(kind)}</code>" for kind in content)
    html = [f"<p>Takes {kinds}:</p><ul>"]
    form = next(iter(content.values()))["schema"]
    for name, field in form["properties"].items():
        default = f" Without it: {text(json.dumps(field['default']))}." if "default" in field else ""
        html.append(f"<li><code>{text(name)}</code>: {_prose(field['description'])}{default}</li>")
    return [*html, "</ul>"]


def _prose(description: str) -> str:
    """A description as HTML, what stands between backticks as code."""
    parts = text(description).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _answers_html(operation: dict[str, Any]) -> list[str]:
    items = [
        f"<li><code>{text(status)}</code>: {text(answer['description'])}</li>"
        for status, answer in sorted(operation["responses"].items())
    ]
    return ["<p>Answers:</p><ul>", *items, "</ul>"]
