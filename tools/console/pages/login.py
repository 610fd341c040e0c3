"""Login and logout."""

from flask import Blueprint, redirect, request
from werkzeug.wrappers import Response

from odradek.tools.console.console import get_console, get_cookie, render
from odradek.tools.console.security import SESSION_S, is_local_path

login = Blueprint("login", __name__)

_TOO_MANY = "Too many wrong passwords. Wait a minute."


@login.get("/login")
def show() -> str:
    """Show the form."""
    return render("login.html", error=None, next=request.args.get("next", "/"))


@login.post("/login")
def log_in() -> Response | tuple[str, int]:
    """Begin a session."""
    console, address = get_console(), request.remote_addr or ""
    target = request.form.get("next", "/")
    if console.attempts.are_exhausted(address):
        return render("login.html", error=_TOO_MANY, next=target), 429
    cookie = console.sessions.log_in(request.form.get("password", ""))
    if cookie is None:
        console.attempts.add_failure(address)
        return render("login.html", error="The password is wrong.", next=target), 403
    response = redirect(target if is_local_path(target) else "/", 303)
    response.set_cookie(
        console.cookie_name,
        cookie,
        max_age=int(SESSION_S),
        httponly=True,
        samesite="Strict",
        # A proxy that terminates TLS sets this header; a browser that sends it only protects its own cookie.
        secure=request.headers.get("X-Forwarded-Proto") == "https",
    )
    return response


@login.post("/logout")
def log_out() -> Response:
    """End the session."""
    console = get_console()
    console.sessions.log_out(get_cookie())
    response = redirect("/login", 303)
    response.delete_cookie(console.cookie_name, httponly=True, samesite="Strict")
    return response
