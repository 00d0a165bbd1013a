"""The addresses of the server.

POST /v1/captions        a picture in, a sentence out      GET /            the page
POST /v1/captions/batch  several pictures                  GET /static/…    its script and style
GET  /v1/model           which model, which limits         GET /docs        the API as a page
GET  /v1/health          ok, or stopping                   GET /openapi.json
GET  /metrics            for Prometheus                    GET /examples    pictures to try it with

With a library of photos also:

GET  /v1/search?q=…      photos that a sentence describes  GET /v1/photos/… one of them, small
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from xlan import __version__
from xlan.pages.layout import STYLE
from xlan.pipeline import Captioner
from xlan.search import PhotoSearch
from xlan.serving import examples
from xlan.serving.guard import Guard
from xlan.serving.library import LibraryService
from xlan.serving.metrics import CONTENT_TYPE
from xlan.serving.openapi import (
    BATCH_BODY,
    CAPTION_BODY,
    CAPTION_PROBLEMS,
    QUERY_OPTIONS,
    SEARCH_OPTIONS,
    docs_page,
    openapi_document,
    problems,
)
from xlan.serving.problems import Problem, from_status
from xlan.serving.schemas import BatchAnswer, CaptionAnswer, Health, ModelAnswer, SearchAnswer
from xlan.serving.service import Service
from xlan.serving.settings import ServeSettings

STATIC = Path(__file__).parent / "static"
STATIC_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
NO_CACHE = {"Cache-Control": "no-cache"}
BOX = b"<!-- library -->\n"  # where the search box goes in the page
PROTECTED = frozenset({"/v1/captions", "/v1/captions/batch", "/v1/model", "/metrics", "/v1/search", "/v1/photos"})
PAGES = frozenset({"/", "/docs", "/openapi.json", "/v1/health", "/static", "/examples"})


def create_app(
    captioner: Captioner, settings: ServeSettings | None = None, photos: PhotoSearch | None = None
) -> FastAPI:
    """The whole application around a model and, where there is one, a library; `app.state.service` is what answers.

    Raises:
        ModelError: the model does not caption pictures.
    """
    settings = settings or ServeSettings()
    service = Service(captioner, settings)
    library = None if photos is None else LibraryService(photos, service, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 - FastAPI's signature
        if library is not None:
            library.start()
        yield
        if library is not None:
            library.close()
        service.close()

    app = FastAPI(
        title="xlan",
        version=__version__,
        description="Captions pictures. They stay in memory and are dropped after the answer.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_exception_handler(HTTPException, _router_problem)
    _add_api(app, service)
    if library is not None:
        _add_library(app, library)
    _add_pages(app, searchable=library is not None)
    document = openapi_document(app, token=settings.token is not None)
    app.openapi = lambda: document  # type: ignore[method-assign]
    app.add_middleware(
        Guard,
        metrics=service.metrics,
        token=settings.token,
        protected=PROTECTED,
        routes=PROTECTED | PAGES,
        hosts=settings.hosts,
        stopping=lambda: service.stopping,
    )
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    # Answers are encoded here: FastAPI would validate thousands of our own numbers before it sends them.
    @app.post(
        "/v1/captions",
        operation_id="caption",
        summary="Caption a picture",
        response_model=CaptionAnswer,
        responses=CAPTION_PROBLEMS,
        openapi_extra={"requestBody": CAPTION_BODY, "parameters": QUERY_OPTIONS},
    )
    async def caption(request: Request) -> Any:
        return Response(await service.caption(request), media_type="application/json")

    @app.post(
        "/v1/captions/batch",
        operation_id="captions",
        summary="Caption several pictures",
        response_model=BatchAnswer,
        responses=CAPTION_PROBLEMS,
        openapi_extra={"requestBody": BATCH_BODY, "parameters": QUERY_OPTIONS},
    )
    async def captions(request: Request) -> Any:
        return Response(await service.caption(request, several=True), media_type="application/json")

    @app.get(
        "/v1/model",
        operation_id="model",
        summary="Which model answers, and what it refuses",
        response_model=ModelAnswer,
        responses=problems(401, 403, 421, 431, 500),
    )
    async def model() -> Any:
        return JSONResponse(service.describe())

    @app.get(
        "/v1/health",
        operation_id="health",
        summary="Whether requests are accepted",
        response_model=Health,
        responses=problems(403, 421, 431, 500),
    )
    async def health() -> Any:
        return JSONResponse({"status": "stopping" if service.stopping else "ok"})

    @app.get(
        "/metrics",
        operation_id="metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses=problems(401, 403, 421, 431, 500),
    )
    async def metrics() -> Any:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)


def _add_library(app: FastAPI, library: LibraryService) -> None:
    @app.get(
        "/v1/search",
        operation_id="search",
        summary="Find the photos of the library that a sentence describes",
        response_model=SearchAnswer,
        responses=problems(400, 401, 403, 421, 422, 431, 500, 503, 504),
        openapi_extra={"parameters": SEARCH_OPTIONS},
    )
    async def search(request: Request) -> Any:
        return Response(await library.search(request.query_params), media_type="application/json")

    @app.get(
        "/v1/photos/{photo}",
        operation_id="photo",
        summary="A photo of the library, at most 480 pixels wide and high",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, **problems(401, 403, 404, 421, 431, 500, 503, 504)},
    )
    async def photo(photo: str) -> Any:
        return Response(await library.photo(photo), media_type="image/jpeg")


def _add_pages(app: FastAPI, *, searchable: bool) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        page = _static("index.html")
        if searchable:
            box = (STATIC / "library.html").read_bytes()
            page = Response(bytes(page.body).replace(BOX, box), headers=NO_CACHE, media_type=STATIC_TYPES[".html"])
        return page

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_page(app.openapi(), str(request.base_url).rstrip("/")))

    @app.get("/examples", include_in_schema=False)
    async def example_names() -> Response:
        return JSONResponse(examples.names())

    @app.get("/examples/{name}", include_in_schema=False)
    def example(name: str) -> Response:  # not async: FastAPI runs it in a thread
        found = examples.picture(name)
        if found is None:
            raise from_status(404)
        return Response(found, headers={"Cache-Control": "max-age=3600"}, media_type="image/jpeg")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _static(name)


def _static(name: str) -> Response:
    """A file of the page, by its exact name: no path is built from what a client sent."""
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in STATIC_TYPES}
    if name not in files:
        raise from_status(404)
    content = files[name].read_bytes()
    if name == "app.css":  # one design for all our pages, then what only this one has
        content = STYLE.encode("utf-8") + content
    return Response(content, headers=NO_CACHE, media_type=STATIC_TYPES[files[name].suffix])


async def _router_problem(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    if isinstance(error, HTTPException):
        return from_status(error.status_code, error.headers).response()
    raise Problem("failure", "unexpected") from error
