"""The web application: checks of each request, pages, errors."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from flask import Flask, Response, g, redirect, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from odradek import __version__
from odradek.tools.console import formats
from odradek.tools.console.assignments import shorten_assignment
from odradek.tools.console.cluster_pool import BusyError
from odradek.tools.console.console import EXTENSION, Console, get_console, get_cookie, render
from odradek.tools.console.inputs import DONE
from odradek.tools.console.pages import PAGES
from odradek.tools.console.security import (
    SECURITY_HEADERS,
    is_allowed_host,
    is_embedded_elsewhere,
    is_same_origin,
)
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.connection_errors import NoAddressError, NoResponseError, StepError
from odradek.tools.kafka.connection.profile import ProfileError

MAX_REQUEST_BYTES = 12 << 20
"""Larger than a record that brokers accept by default, in the encoding of forms."""

_MOST_LOGIN_BYTES = 64 << 10
"""The fields of a large form take 50 times its size in memory, which a visitor without a session must not occupy."""

_MOST_TOPIC_CHARACTERS = 249
_MOST_GROUP_CHARACTERS = 8000
_PUBLIC = frozenset({"static", "login.show", "login.log_in"})
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STATUS_OF_ERRORS: Mapping[str, int] = {
    "UNKNOWN_TOPIC_OR_PARTITION": 404,
    "INVALID_TOPIC_EXCEPTION": 404,
    "GROUP_ID_NOT_FOUND": 404,
    "SECURITY_DISABLED": 404,
    "UNSUPPORTED": 404,
    "OFFSET_OUT_OF_RANGE": 404,
    "BROKER_NOT_AVAILABLE": 404,
}

_TITLES_OF_ERRORS: Mapping[str, str] = {
    "SECURITY_DISABLED": "The cluster has no authorizer",
    "UNSUPPORTED": "The cluster does not have this",
    "NO_METRICS": "The metrics cannot be read",
}

Returned = str | AnyResponse | tuple[str, int]


def make_app(console: Console) -> Flask:
    """Return the application."""
    app = Flask("odradek.tools.console", static_folder="static", template_folder="templates")
    app.config.update(MAX_CONTENT_LENGTH=MAX_REQUEST_BYTES, MAX_FORM_MEMORY_SIZE=MAX_REQUEST_BYTES)
    app.extensions[EXTENSION] = console
    app.jinja_env.undefined = StrictUndefined
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.filters.update(
        number=formats.format_number,
        count_of=formats.format_count,
        bytes=formats.format_bytes,
        time=formats.format_time,
        duration=formats.format_duration,
        assignment=shorten_assignment,
        printable=formats.escape,
    )
    app.context_processor(_make_context)
    app.before_request(_check_request)
    app.after_request(_add_headers)
    for page in PAGES:
        app.register_blueprint(page)
    app.register_error_handler(NoResponseError, _show_unreachable)
    app.register_error_handler(RequestError, _show_refused)
    app.register_error_handler(ProfileError, _show_invalid_profile)
    app.register_error_handler(BusyError, _show_busy)
    app.register_error_handler(HTTPException, _show_http_error)
    return app


def _make_context() -> dict[str, Any]:
    console = get_console()
    return {
        "done": DONE.get(request.args.get("done", "")),
        "address": console.address,
        "has_pipelines": bool(console.settings.pipelines),
        "allows_changes": console.settings.allows_changes,
        "form_token": console.sessions.make_form_token(get_cookie()),
        "has_login": console.sessions.has_password,
        "is_logged_in": getattr(g, "is_logged_in", False),
        "now_ms": console.now_ms(),
        "version": __version__,
        "with_arguments": _with_arguments,
    }


def _with_arguments(**changes: object) -> str:
    """Return the query of the current address with other arguments; None removes one."""
    arguments = {**request.args.to_dict(), **changes}
    return "?" + urlencode({name: value for name, value in arguments.items() if value not in (None, "")})


def _check_request() -> Returned | None:
    """Refuse a request that the console does not serve; return None to serve it."""
    console = get_console()
    if not is_allowed_host(request.host, console.settings.host_names):
        message = f"This console is not served as {request.host}. Start it with --host-name to permit the name."
        return _show_error(403, "Unknown host name", message)
    is_change = request.method not in _READING_METHODS
    headers = dict(request.headers)
    if is_embedded_elsewhere(headers) or (is_change and not is_same_origin(headers, request.host)):
        return _show_error(403, "Cross-site request", "The request was sent by a page of another site.")
    cookie = get_cookie()
    g.is_logged_in = console.sessions.is_valid(cookie)
    if not g.is_logged_in:
        request.max_content_length = _MOST_LOGIN_BYTES
    if is_change and not console.sessions.is_form_token(request.form.get("token", ""), cookie):
        message = "The form is not of this session. Load the page again and repeat the change."
        return _show_error(403, "Expired form", message)
    if request.endpoint in _PUBLIC:
        return None
    if g.is_logged_in:
        return _check_names()
    if request.method == "GET" and request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate":
        return redirect("/login?" + urlencode({"next": request.full_path.rstrip("?")}), 303)
    return _show_error(401, "Login required", "Load the page again and log in.")


def _check_names() -> Returned | None:
    """Refuse names that are longer than those of topics and groups, which requests to brokers cannot contain."""
    topic = (request.view_args or {}).get("name", "")
    if len(topic) > _MOST_TOPIC_CHARACTERS or len(request.args.get("name", "")) > _MOST_GROUP_CHARACTERS:
        return _show_error(404, "Not found", "The name is too long.")
    return None


def _add_headers(response: Response) -> Response:
    response.headers.update(SECURITY_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    if request.endpoint == "static":
        response.headers["Cache-Control"] = "max-age=3600"
    return response


def _show_error(status: int, title: str, message: str) -> tuple[str, int]:
    return render("error.html", title=title, message=message, failures=[]), status


def _show_unreachable(error: NoResponseError) -> tuple[str, int]:
    failures = error.failures if isinstance(error, NoAddressError) else [error]
    steps = [one for one in failures if isinstance(one, StepError)]
    return render("error.html", title="The cluster does not answer", message=str(error), failures=steps), 502


def _show_refused(error: RequestError) -> tuple[str, int]:
    status = 403 if error.code.endswith("AUTHORIZATION_FAILED") else _STATUS_OF_ERRORS.get(error.code, 502)
    return _show_error(status, _TITLES_OF_ERRORS.get(error.code, error.code), str(error))


def _show_invalid_profile(error: ProfileError) -> tuple[str, int]:
    return _show_error(502, "The connection cannot be configured", str(error))


def _show_busy(error: BusyError) -> tuple[str, int]:
    return _show_error(503, "Busy", f"{error}; load the page again in some seconds.")


def _show_http_error(error: HTTPException) -> Returned:
    if error.code is None or error.code < 400:
        return error.get_response()
    return _show_error(error.code, error.name, error.description or error.name)
