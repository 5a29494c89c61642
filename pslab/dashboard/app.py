"""The web application: the page's files, JSON, and one event stream for each viewer.

It only answers GET, and changes nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pslab.dashboard import access
from pslab.dashboard.observer import TooMany
from pslab.dashboard.playground.pool import Busy
from pslab.dashboard.playground.settings import PlaygroundError, choices
from pslab.dashboard.sources import PageSource

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Seconds between comments in an idle stream, which reveal a viewer that is gone.
HEARTBEAT = 10.0


@cache
def static_files() -> dict[str, tuple[str, bytes]]:
    """Return type and content of every file of the page, by name."""
    return dict(_files_in(files("pslab.dashboard").joinpath("static"), ""))


def _files_in(folder: Traversable, prefix: str) -> Iterator[tuple[str, tuple[str, bytes]]]:
    for item in folder.iterdir():
        suffix = "." + item.name.rpartition(".")[2]
        if item.is_dir():
            yield from _files_in(item, f"{prefix}{item.name}/")
        elif suffix in KINDS:
            yield f"{prefix}{item.name}", (KINDS[suffix], item.read_bytes())


def application(source: PageSource, *, names: frozenset[str] = frozenset(), token: str = "") -> ASGIApp:
    """Return the application. `names`: its host names beside addresses and localhost. `token`: empty for none."""
    pages = Pages(source)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if source.kind == "playground":
            source.pool.warm_up()
        yield
        if source.observer is not None:
            await source.observer.close()
        source.pool.close()

    routes = [
        Route("/", pages.index),
        Route("/static/{name:path}", pages.static),
        Route("/favicon.ico", pages.icon),
        Route("/api/about", pages.about),
        Route("/api/choices", pages.choices),
        Route("/api/recording", pages.recording),
        Route("/api/events", pages.events),
        Route("/api/play", pages.play),
    ]
    return RequestGuard(Starlette(routes=routes, lifespan=lifespan), names, token)


class RequestGuard:
    """Middleware that checks every request first and adds `access.HEADERS` to every response."""

    def __init__(self, app: ASGIApp, names: frozenset[str], token: str) -> None:
        self._app, self._names, self._token = app, names, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in access.HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, sending)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        problem = access.host_problem(headers.get("host", ""), self._names)
        if problem:
            return PlainTextResponse(problem, 421)
        if scope["path"].startswith("/api/") and access.foreign(headers):
            return PlainTextResponse("requests from other sites' pages are refused", 403)
        if not self._token:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not access.knows(self._token, given, headers.get("cookie", "")):
            return PlainTextResponse(
                "open the complete link that ps-lab dashboard printed: it contains a token", 401
            )
        if given and scope["path"] == "/":
            answer = RedirectResponse("/", 303)
            answer.set_cookie(access.COOKIE, self._token, httponly=True, samesite="strict")
            return answer
        return None


class Pages:
    """The endpoints."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._reading = asyncio.Lock()

    async def index(self, request: Request) -> Response:
        return _file("index.html")

    async def static(self, request: Request) -> Response:
        return _file(request.path_params["name"])

    async def icon(self, request: Request) -> Response:
        return _file("favicon.svg")

    async def about(self, request: Request) -> Response:
        return _json(json.dumps({"kind": self._source.kind, "title": self._source.title}))

    async def choices(self, request: Request) -> Response:
        return _json(json.dumps(choices()))

    async def recording(self, request: Request) -> Response:
        run = self._source.run
        if run is None:
            return PlainTextResponse("the page shows no run folder", 404)
        try:
            known = int(request.query_params.get("entries", "-1"))
            # One call at a time.
            async with self._reading:
                return _json(await asyncio.to_thread(run.text, known))
        except ValueError as error:
            return PlainTextResponse(str(error), 404)

    async def play(self, request: Request) -> Response:
        try:
            return _json(await self._source.pool.play(request.query_params.get("play", "")))
        except PlaygroundError as error:
            return _json(json.dumps({"error": str(error)}))
        except Busy as error:
            return PlainTextResponse(str(error), 503, {"Retry-After": "5"})

    async def events(self, request: Request) -> Response:
        observer = self._source.observer
        if observer is None:
            return PlainTextResponse("the page shows no live cluster", 404)
        messages = observer.messages()
        try:
            first = asyncio.ensure_future(anext(messages))
            await asyncio.wait({first}, timeout=0)
            if first.done() and first.exception() is not None:
                raise first.exception() or TooMany()
        except TooMany as error:
            return PlainTextResponse(str(error), 503, {"Retry-After": "10"})
        return StreamingResponse(_stream(messages, first), media_type="text/event-stream")


async def _stream(
    messages: AsyncIterator[tuple[str, str]], pending: asyncio.Future[tuple[str, str]]
) -> AsyncIterator[str]:
    """Yield server-sent events, and a comment when nothing happens for a while."""
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=HEARTBEAT)
            if not done:
                yield ": still here\n\n"
                continue
            kind, text = pending.result()
            yield f"event: {kind}\ndata: {text}\n\n"
            pending = asyncio.ensure_future(anext(messages))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await messages.aclose()  # type: ignore[attr-defined]


def _file(name: str) -> Response:
    found = static_files().get(name)
    if found is None:
        return PlainTextResponse("no such file", 404)
    kind, content = found
    return Response(content, media_type=kind)


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
