"""The command `odradek doctor`."""

from typing import Annotated, Final

import typer

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.session import Session
from odradek.tools.cli.terminal.output import JsonValue, Row, Table, count

EXIT_PROBLEMS: Final = 1
_KEYS: Final = ("state", "subject", "check", "fact", "fix")

commands = Commands("doctor", "Check a running cluster and its machines.")


@commands.only_command(has_json=True)
def doctor(
    session: Session,
    show_all: Annotated[bool, typer.Option("--all", help="Show the checks that found nothing to fix, too.")] = False,
) -> int:
    """Check a running cluster, and the machines of the brokers that run here; show what to fix.

    Exit code: 0 without problems, 1 with any, 3 if no broker answers. Warnings are no problems.
    """
    from odradek.tools.doctor.diagnosis import connect_briefly, diagnose
    from odradek.tools.doctor.findings import State, sort_findings
    from odradek.tools.kafka.cluster import Cluster
    from odradek.tools.kafka.connection.profile import make_security

    security = make_security(session.connection)
    with Cluster(session.connection, connect=connect_briefly) as cluster:
        findings = sort_findings(list(diagnose(cluster, security)))
    counts = {state: sum(each.state is state for each in findings) for state in State}
    code = EXIT_PROBLEMS if counts[State.PROBLEM] else 0
    if session.output.is_json:
        rows = Table(_KEYS, [tuple(each) for each in findings])
        document: dict[str, JsonValue] = {
            "healthy": not code,
            **{f"{state}_count": count for state, count in counts.items()},
            "findings": rows.as_json(),
        }
        session.output.write_json(document)
        return code
    shown: list[Row] = [tuple(each) for each in findings if show_all or each.state is not State.OK]
    if shown:
        session.output.write_table(Table(_KEYS, shown, is_marked=lambda row: row[0] == State.PROBLEM))
        session.output.write_line("")
    summary = f"{count(counts[State.PROBLEM], 'problem')}, {count(counts[State.WARNING], 'warning')}"
    rest = f"{counts[State.UNCHECKED]} unchecked, {counts[State.OK]} ok{'' if show_all else ' (--all shows them)'}"
    session.output.write_line(f"{summary}, {rest}")
    return code
