"""The OpenAPI document, and the same as a page for people that loads nothing from elsewhere."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from xlan.caption_json import RECORD_VERSION
from xlan.pages.layout import text
from xlan.serving.problems import KINDS, MEDIA_TYPE, Problem
from xlan.serving.schemas import Options, ProblemAnswer
from xlan.serving.uploads import MAX_IMAGES

# A red dot of one pixel, so that the examples can be sent as they are.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"

EXAMPLE_ANSWER: dict[str, Any] = {
    "version": RECORD_VERSION,
    "caption": "a dog on the grass",
    "confidence": 0.62,
    "score": -2.87,
    "words": [
        {
            "text": "a",
            "probability": 0.91,
            "confidence": None,
            "runners_up": [],
            "spatial": None,
            "channel": None,
            "looked_at": None,
        }
    ],
    "others": [{"caption": "a dog in a field", "confidence": 0.55, "score": -3.6}],
    "boxes": None,
    "things": [],
    "image": {"width": 640, "height": 480},
    "model": "default",
    "seconds": {"queue": 0.012, "model": 0.094},
}
_EXAMPLE_PROBLEM = Problem("not-a-picture", "image: is not a picture but a PDF document").content()
_EXAMPLE_RESULTS = [{"answer": EXAMPLE_ANSWER, "problem": None}, {"answer": None, "problem": _EXAMPLE_PROBLEM}]
# By operation, as are the commands of the page; `{url}` is the address of the server.
EXAMPLE_SEARCH: dict[str, Any] = {
    "query": "a dog on the beech",
    "unknown": [{"word": "beech", "nearest": ["beach", "bench"]}],
    "photos": 4210,
    "seconds": 0.61,
    "found": [
        {
            "photo": "3f1b0c5a9d27e84416f0ab21",
            "name": "2024/summer/IMG_2041.jpg",
            "score": 9.4,
            "caption": "a dog running on the beach",
            "words": [{"word": "a", "score": 0.1}, {"word": "dog", "score": 4.2}],
        }
    ],
}
EXAMPLES = {"caption": EXAMPLE_ANSWER, "captions": {"results": _EXAMPLE_RESULTS}, "search": EXAMPLE_SEARCH}
CURL = {
    "caption": (
        "curl -F image=@photo.jpg -F beams=5 {url}/v1/captions",
        "curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' '{url}/v1/captions?beams=5'",
    ),
    "captions": ("curl -F image=@one.jpg -F image=@two.jpg {url}/v1/captions/batch",),
    "search": ("curl '{url}/v1/search?q=a+dog+on+the+beach&count=10'",),
    "photo": ("curl {url}/v1/photos/3f1b0c5a9d27e84416f0ab21 -o photo.jpg",),
    "model": ("curl {url}/v1/model",),
    "health": ("curl {url}/v1/health",),
    "metrics": ("curl {url}/metrics",),
}

_OPTIONS: dict[str, Any] = Options.model_json_schema()["properties"]
_FILE = {"type": "string", "contentMediaType": "application/octet-stream", "description": "The picture's file."}
_BASE64 = {
    "type": "string",
    "contentEncoding": "base64",
    "description": "The picture's file in base64, or a `data:` URL with it.",
}
_SEVERAL = {"type": "array", "minItems": 1, "maxItems": MAX_IMAGES}

QUERY_OPTIONS = [
    {"name": name, "in": "query", "required": False, "schema": schema, "description": schema["description"]}
    for name, schema in _OPTIONS.items()
]


SEARCH_OPTIONS = [
    {
        "name": "q",
        "in": "query",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": 500},
        "description": "A sentence that describes the photo.",
    },
    {
        "name": "count",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
        "description": "Most photos to return.",
    },
]


def _body_schema(name: str, image: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: image, **_OPTIONS},
        "required": [name],
        "additionalProperties": False,
    }


def _form(image: dict[str, Any]) -> dict[str, Any]:
    return {"schema": _body_schema("image", image), "encoding": {"must": {"style": "form", "explode": True}}}


CAPTION_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": _form(_FILE),
        "application/json": {
            "schema": _body_schema("image", _BASE64),
            "examples": {
                "search": {"summary": "Three beams", "value": {"image": DOT, "beams": 3}},
                "draw": {"summary": "Two samples", "value": {"image": DOT, "samples": 2, "seed": 1}},
                "explain": {
                    "summary": "Where it looked",
                    "value": {"image": f"data:image/png;base64,{DOT}", "explain": True},
                },
            },
        },
        "image/jpeg": {"schema": {**_FILE, "description": "The picture alone; options go in the query string."}},
    },
}
BATCH_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": _form({**_SEVERAL, "items": _FILE, "description": "The pictures' files: repeat it."}),
        "application/json": {
            "schema": _body_schema("images", {**_SEVERAL, "items": _BASE64, "description": "The pictures, as above."}),
            "examples": {"two": {"summary": "Two pictures", "value": {"images": [DOT, DOT]}}},
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


CAPTION_PROBLEMS = problems(400, 401, 403, 408, 413, 415, 421, 422, 431, 500, 503, 504)


def openapi_document(app: FastAPI, *, token: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document of an application; `token` says whether it wants one."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["ProblemAnswer"] = ProblemAnswer.model_json_schema()
    if token:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for operation in path.values():
            example = EXAMPLES.get(operation["operationId"])
            if example is not None:  # added here, since FastAPI would leave out the nulls
                operation["responses"]["200"]["content"]["application/json"]["example"] = example
            protected = "401" in operation["responses"]
            if protected and token:
                operation["security"] = [{"bearer": []}]
            elif protected:
                del operation["responses"]["401"]
    return document


def docs_page(document: dict[str, Any], url: str) -> str:
    """The document as HTML: every address of the server at `url` with a command, what it takes and what it answers."""
    body = [f"<h1>{text(document['info']['title'])} {text(document['info']['version'])}</h1>"]
    body.append(f'<p class="soft">{text(document["info"]["description"])}</p>')
    body.append('<p>For programs: <a href="/openapi.json">openapi.json</a>. For people: <a href="/">the page</a>.</p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body.append(f"<h2><code>{method.upper()} {text(path)}</code></h2><p>{text(operation['summary'])}</p>")
            body.append(_commands_html(operation, url))
            body.extend(_request_html(operation))
            body.extend(_answers_html(operation))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>xlan: the API</title><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="/static/app.css"></head>\n'
        f"<body><main>\n{''.join(body)}\n</main></body></html>\n"
    )


def _commands_html(operation: dict[str, Any], url: str) -> str:
    token = "curl -H 'Authorization: Bearer …' " if "security" in operation else "curl "
    lines = [line.format(url=url).replace("curl ", token, 1) for line in CURL[operation["operationId"]]]
    return _pre("\n".join(lines), "Example command")


def _request_html(operation: dict[str, Any]) -> list[str]:
    content = operation.get("requestBody", {}).get("content", {})
    if not content:
        return []
    kinds = ", ".join(f"<code>{text(kind)}</code>" for kind in content)
    html = [f"<p>Takes {kinds}:</p><ul>"]
    fields: dict[str, Any] = {}
    for kind in ("multipart/form-data", "application/json"):
        fields = {**content[kind]["schema"]["properties"], **fields}
    for name, field in fields.items():
        allowed = _allowed(field)
        default = f" Default {text(json.dumps(field['default']))}." if "default" in field else ""
        html.append(f"<li><code>{text(name)}</code>{allowed}: {_prose(field['description'])}{default}</li>")
    return [*html, "</ul><p>Options may also stand in the query string.</p>"]


def _allowed(schema: dict[str, Any]) -> str:
    """Type and range of a field, as in " (number, 0.05 to 10)"."""
    field = next((part for part in schema.get("anyOf", []) if part.get("type") != "null"), schema)
    parts = [{"array": "list", "string": "text", "boolean": "true or false"}.get(field["type"], field["type"])]
    if "minimum" in field:
        parts.append(f"{field['minimum']:g} to {field['maximum']:g}")
    if "maxItems" in field:
        parts.append(f"at most {field['maxItems']}")
    return f' <span class="soft">({text(", ".join(parts))})</span>'


def _prose(description: str) -> str:
    """A description as HTML, what stands between backticks as code."""
    parts = text(description).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _answers_html(operation: dict[str, Any]) -> list[str]:
    items = [
        f"<li><code>{text(status)}</code>: {text(answer['description'])}</li>"
        for status, answer in sorted(operation["responses"].items())
    ]
    example = operation["responses"]["200"].get("content", {}).get("application/json", {}).get("example")
    shown = "" if example is None else "<p>For example:</p>" + _pre(json.dumps(example, indent=1), "Example answer")
    return ["<p>Answers:</p><ul>", *items, "</ul>", shown]


def _pre(content: str, label: str) -> str:
    return f'<pre tabindex="0" role="region" aria-label="{text(label)}">{text(content)}</pre>'
