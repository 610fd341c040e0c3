"""ACLs, users and quotas."""

from typing import Any

from flask import Blueprint

from odradek.replication.metadata.acls.bindings import AclBinding, AclFilter
from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.paging import read_view, select
from odradek.tools.kafka.security.acls import find_acls
from odradek.tools.kafka.security.quotas import fetch_quotas
from odradek.tools.kafka.security.scram_users import fetch_users

access = Blueprint("access", __name__)

_ACL_COLUMNS = ("resource", "principal", "permission", "operation")


@access.get("/acls")
def show_acls() -> str:
    """List the ACLs."""
    found = get_console().read("acls", lambda cluster: find_acls(cluster, [AclFilter()]))
    keys: dict[str, Any] = {
        "resource": lambda one: str(one.pattern),
        "principal": lambda one: one.entry.principal,
        "permission": lambda one: one.entry.permission.name,
        "operation": lambda one: one.entry.operation.title,
    }
    return render("acls.html", shown=select(found, read_view(get_arguments(), _ACL_COLUMNS), keys, _describe_acl))


def _describe_acl(one: AclBinding) -> str:
    return str(one)


@access.get("/users")
def show_users() -> str:
    """List the SCRAM users."""
    found = get_console().read("users", fetch_users)
    keys: dict[str, Any] = {"name": lambda row: row[0]}
    view = read_view(get_arguments(), ("name",))
    return render("users.html", shown=select(list(found.items()), view, keys, lambda row: row[0]))


@access.get("/quotas")
def show_quotas() -> str:
    """List the quotas."""
    found = get_console().read("quotas", fetch_quotas)
    rows = [
        (", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in entity), values)
        for entity, values in found.items()
    ]
    keys: dict[str, Any] = {"name": lambda row: row[0]}
    view = read_view(get_arguments(), ("name",))
    return render("quotas.html", shown=select(rows, view, keys, lambda row: row[0]))
