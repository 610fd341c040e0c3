"""Errors with `--json`: one object on standard error, nothing on standard output."""

import json
from contextlib import ExitStack

import pytest

from odradek.tools.cli.groups import Commands
from odradek.tools.cli.main import main
from odradek.tools.cli.session import CommandError, Session, make_outcome
from odradek.tools.cli.terminal.error_reports import wants_json
from odradek.tools.cli.terminal.output import Output
from odradek.tools.kafka.cluster import make_error
from odradek.tools.kafka.connection.connection_errors import CONNECTION, StepError
from odradek.tools.kafka.problems import Problem

UNREACHABLE = "127.0.0.1:1"
SERVER = ["--bootstrap-server", UNREACHABLE]


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def fail(capsys, *arguments, code):
    assert main([*arguments, "--json"]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert list(json.loads(err)) == ["error"]
    return json.loads(err)["error"]


@pytest.mark.parametrize(
    ("arguments", "similar"),
    [
        (["topic", "lst"], ["list"]),
        (["topc"], ["topic"]),
        (["topic", "list", "--bootstap-server", "a:1"], ["--bootstrap-server"]),
        (["config", "properties", "retention.mss"], ["retention.ms"]),
        (["topic", "describe"], []),
        (["topic", "list", "--bootstrap-server", "nowhere"], []),
        (["quota", "alter", "--user", "a"], []),
    ],
)
def test_a_usage_error(capsys, arguments, similar):
    error = fail(capsys, *arguments, code=2)
    assert error["code"] == "USAGE" and error["message"] and error.get("similar", []) == similar


def test_an_unknown_profile(capsys, tmp_path):
    (tmp_path / "odradek").mkdir()
    (tmp_path / "odradek" / "profiles.toml").write_text("[production]\n")
    error = fail(capsys, "topic", "list", "--profile", "prodution", code=2)
    assert (error["code"], error["similar"]) == ("USAGE", ["production"])


def test_no_response(capsys):
    error = fail(capsys, "topic", "list", *SERVER, code=3)
    assert (error["code"], error["address"], error["step"]) == ("NO_RESPONSE", UNREACHABLE, "connection")
    assert error["message"].startswith(f"{UNREACHABLE} does not answer: connection: Connection refused")
    error = fail(capsys, "topic", "list", "--bootstrap-server", "127.0.0.1:1,127.0.0.1:2", code=3)
    assert (error["address"], error["step"]) == (UNREACHABLE, "connection")


def test_an_error_of_a_command(capsys, monkeypatch):
    commands = Commands("x", "Test.")

    @commands.command("y")
    def run(session: Session) -> int:
        """Fail."""
        raise CommandError("first", "second \x1b", code="RESOURCE_NOT_FOUND", similar=["a"])

    monkeypatch.setattr("odradek.tools.cli.main.make_application", lambda: commands.app)
    assert fail(capsys, "y", code=1) == {
        "code": "RESOURCE_NOT_FOUND", "message": "first; second \x1b", "similar": ["a"],
    }  # fmt: skip
    assert main(["y"]) == 1
    assert capsys.readouterr().err == "odradek: first\nodradek: second \\x1b\n"


def report(capsys, is_json, call):
    assert call(Session(Output(is_json=is_json), ExitStack())) == 1
    out, err = capsys.readouterr()
    return out, err.splitlines()


def test_problems_have_the_code_of_their_error(capsys):
    refused = StepError("b:1", CONNECTION, "refused")
    problems = [Problem("groups of broker 1", refused), Problem("", make_error(3, None, "t-0")), *["other"] * 5]
    _, lines = report(capsys, True, lambda session: session.report_problems(problems))
    errors = [json.loads(line)["error"] for line in lines]
    assert errors[0] == {
        "code": "NO_RESPONSE", "message": f"groups of broker 1: {refused}", "address": "b:1", "step": CONNECTION,
    }  # fmt: skip
    assert errors[1] == {"code": "UNKNOWN_TOPIC_OR_PARTITION", "message": "t-0: UNKNOWN_TOPIC_OR_PARTITION"}
    assert errors[2:] == [{"code": "FAILED", "message": "other"}] * 5
    _, lines = report(capsys, False, lambda session: session.report_problems(problems[:6]))
    assert lines[0] == f"odradek: groups of broker 1: {refused}" and lines[5:] == ["odradek: 1 further error"]


def test_a_change_that_fails_for_one_resource(capsys):
    outcomes = [make_outcome("a", 0), make_outcome("b", 36, "exists")]
    out, lines = report(capsys, True, lambda session: session.finish("topic", "created", outcomes))
    expected = {"code": "TOPIC_ALREADY_EXISTS", "message": "topic b: TOPIC_ALREADY_EXISTS: exists"}
    assert [json.loads(line) for line in lines] == [{"error": expected}]
    assert json.loads(out)["results"][0] == {"topic": "a", "error": None}


def test_a_warning(capsys):
    Session(Output(is_json=True), ExitStack()).warn("w", ["a"])
    Session(Output(is_json=False), ExitStack()).warn("w", ["a"])
    assert capsys.readouterr().err == '{"warning": {"message": "w", "similar": ["a"]}}\nodradek: w\n'


def test_arguments_after_two_hyphens_are_no_options():
    assert wants_json(["topic", "list", "--json"])
    assert not wants_json(["topic", "create", "--", "--json"])


def test_the_properties_as_json(capsys):
    assert main(["config", "properties", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["scope"] for row in rows} == {"broker", "topic"}
    assert main(["config", "properties", "retention.ms", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert row.pop("documentation") and row.pop("allowed")
    assert row == {
        "name": "retention.ms", "scope": "topic", "type": "long", "default": "604800000", "update": None,
        "broker_defaults": ["log.retention.ms", "log.retention.minutes", "log.retention.hours"], "has_effect": True,
    }  # fmt: skip
