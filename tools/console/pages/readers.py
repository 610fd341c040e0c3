"""Readers that fetch records, whether or not they commit offsets."""

from typing import Any

from flask import Blueprint

from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.paging import read_view, select
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.groups.readers import UNSUPPORTED, Reader, fetch_readers

readers = Blueprint("readers", __name__)

_COLUMNS = ("client", "topic", "partition", "lag", "fetched")
_TTL_S = 5.0


@readers.get("/readers")
def show_list() -> str:
    """List the readers."""
    console = get_console()
    urls = console.settings.metrics_urls
    try:
        found = console.read("readers", lambda cluster: fetch_readers(cluster, urls), _TTL_S)
    except RequestError as error:
        if error.code != UNSUPPORTED:
            raise
        return render("readers.html", shown=None, reason=str(error))
    keys: dict[str, Any] = {
        "client": lambda one: (one.client_id, one.topic, one.partition),
        "topic": lambda one: (one.topic, one.partition, one.client_id),
        "partition": lambda one: one.partition,
        "lag": lambda one: one.lag,
        "fetched": lambda one: one.fetched_s,
    }
    shown = select(found, read_view(get_arguments(), _COLUMNS), keys, _get_name)
    return render("readers.html", shown=shown, reason="")


def _get_name(one: Reader) -> str:
    return f"{one.client_id} {one.topic}"
