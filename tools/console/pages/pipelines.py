"""Pipelines on this machine."""

from typing import Any, Final

from flask import Blueprint

from odradek.tools.console.cluster_pool import BusyError
from odradek.tools.console.console import Console, get_arguments, get_console, render
from odradek.tools.console.pages.groups import GroupLag, fetch_groups
from odradek.tools.console.paging import read_view, select
from odradek.tools.console.pipelines import ShownPipeline, list_pipelines
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError

pipelines = Blueprint("pipelines", __name__)

_COLUMNS = ("name", "state", "batch")
_NO_BATCH: Final = -1


@pipelines.get("/pipelines")
def show_list() -> str:
    """List the pipelines, with the lag of the groups of those on the page."""
    console = get_console()
    paths = console.settings.pipelines
    found = console.read_files("pipelines", lambda: list_pipelines(paths))
    keys: dict[str, Any] = {
        "name": lambda one: one.name,
        "state": lambda one: (one.state is None, one.state is not None and one.state.is_running, one.name),
        "batch": lambda one: _NO_BATCH if one.state is None or one.state.batch is None else one.state.batch,
    }
    shown = select(found, read_view(get_arguments(), _COLUMNS), keys, _get_name)
    names = tuple(one.name for one in shown.rows if one.reads_topics and one.is_of_cluster(console.address))
    lags, reason = _fetch_lags(console, names)
    problems = next((one.problems for one in lags.values()), ())
    return render("pipelines.html", shown=shown, lags=lags, reason=reason, problems=problems, paths=paths)


def _get_name(one: ShownPipeline) -> str:
    return f"{one.name} {one.file}"


def _fetch_lags(console: Console, names: tuple[str, ...]) -> tuple[dict[str, GroupLag], str]:
    """Return the groups of pipelines, or why there are none: the states do not depend on the cluster."""
    if not names:
        return {}, ""
    try:
        return console.read(("lags", names), lambda cluster: fetch_groups(cluster, names)), ""
    except (NoResponseError, RequestError, BusyError) as error:
        return {}, str(error)
