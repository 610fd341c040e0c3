"""The entry of the command line: lazy imports, unknown commands, exit codes."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import odradek
from odradek import __version__
from odradek.tools.cli.main import main
from odradek.tools.cli.reference import format_reference
from odradek.tools.cli.registry import COMMANDS

UNREACHABLE = "127.0.0.1:1"


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def list_imports(*arguments: str) -> set[str]:
    code = (
        "import atexit, sys\n"
        "from odradek.__main__ import main\n"
        "atexit.register(lambda: print('modules', *sys.modules))\n"
        "main()\n"
    )
    (line,) = [line for line in run(code, *arguments).stdout.splitlines() if line.startswith("modules ")]
    return set(line.split()[1:])


def test_a_start_imports_no_tools():
    imported = list_imports("start", "--override", "num.partitions=none")
    assert "odradek.server.config" in imported
    assert not {name for name in imported if name.split(".")[0] in ("typer", "rich", "confluent_kafka")}
    assert not {name for name in imported if name.startswith("odradek.tools")}


def test_a_command_imports_only_what_it_needs():
    imported = list_imports("topic", "list", "--bootstrap-server", UNREACHABLE)
    assert "odradek.tools.cli.cluster.topics" in imported
    slow = ("asyncio", "confluent_kafka", "pydantic", "rich", "twisted")
    assert not {name for name in imported if name.split(".")[0] in slow}
    assert not {name for name in imported if name.startswith("odradek.server.")}
    modules = {command.module for command in COMMANDS if not command.is_program}
    assert imported & modules == {"odradek.tools.cli.cluster.topics"}


def test_closed_files():
    close = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    command = [*close, sys.executable, "-m", "odradek"]
    for arguments, code in ((["config", "properties"], 0), (["topic", "list", "--bootstrap-server", UNREACHABLE], 3)):
        assert subprocess.run([*command, *arguments], timeout=60, check=False).returncode == code


def test_the_help_imports_no_command():
    modules = {command.module for command in COMMANDS if not command.is_program}
    assert not list_imports("--help") & modules


def test_the_help_lists_all_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command.name} " in out and command.help in " ".join(out.split())


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if not command.is_program], ids=lambda one: one.name
)
def test_each_group_has_help_for_each_command(capsys, command):
    commands = import_module(command.module).commands
    assert commands.name == command.name
    for one in commands.app.registered_commands:
        words = [command.name] if one.name == command.name else [command.name, one.name]
        assert main([*words, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"Usage: odradek {' '.join(words)} ") and "COMMAND [ARGS]" not in out
        assert one.callback.__doc__.splitlines()[0].rstrip(".") in " ".join(out.split())


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"odradek {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["topc"], 2, "there is no command topc; did you mean topic? (see odradek --help)"),
        (["xyzzy"], 2, "there is no command xyzzy (see odradek --help)"),
        (["topic", "lst"], 2, "there is no command lst; did you mean list? (see odradek topic --help)"),
        (["topic", "describe"], 2, "missing argument 'TOPIC' (see odradek topic describe --help)"),
        (["topic", "list", "--jason"], 2, "no such option: --jason (Possible options: --json) (see odradek topic list"),
        (["topic", "create", "a", "--partitions", "x"], 2, "invalid value for '--partitions' / '-p': 'x' is not a"),
        (["topic", "create", "a", "--config", "x"], 2, "invalid value for --config: x is not name=value (see"),
        (["topic", "list", "--bootstrap-server", "nowhere"], 2, "--bootstrap-server nowhere: nowhere is not host:port"),
        (["topic", "list", "--command-config", "/none"], 2, "--command-config /none: No such file or directory"),
        (
            ["topic", "list", "--bootstrap-server", UNREACHABLE],
            3,
            f"{UNREACHABLE} does not answer: connection: Connection refused (is the broker running",
        ),
        (
            ["topic", "list", "--bootstrap-server", "no-such-host.invalid:9092"],
            3,
            "no-such-host.invalid:9092 does not answer: name lookup: ",
        ),
    ],
)
def test_errors_are_one_line(capsys, monkeypatch, tmp_path, arguments, code, message):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"odradek: {message}"), err


def test_a_group_without_a_command_shows_its_help(capsys):
    assert main(["topic"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Usage: odradek topic ") and "describe" in err


def test_a_closed_pipe_is_no_error():
    code = (
        "import os, sys\n"
        "reading, writing = os.pipe()\n"
        "os.close(reading)\n"
        "os.dup2(writing, 1)\n"
        "from odradek.tools.cli.main import main\n"
        "sys.exit(main(['topic', '--help']))\n"
    )
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_completion_of_commands():
    def complete(words: str) -> str:
        environment = {
            "_ODRADEK_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        code = f"import os; os.environ.update({environment!r}); from odradek.__main__ import main; main()"
        return run(code).stdout

    assert complete("odradek top").split() == ["topic"]
    assert complete("odradek topic de").split() == ["describe", "delete"]


def test_the_pipeline_command_runs_the_program_of_pipelines():
    def run_pipeline(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("from odradek.__main__ import main; main()", "pipeline", *arguments)

    done = run_pipeline("--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: odradek pipeline ")
    done = run_pipeline("validate", "/no/such/file")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "odradek pipeline: cannot read /no/such/file: No such file or directory\n"


def test_certificates_are_made(capsys, tmp_path):
    assert main(["tls", "make-test-certificates", str(tmp_path / "c")]) == 0
    assert f"ssl.truststore.location={tmp_path}/c/ca.pem\n" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"ca.pem", "broker.pem", "client.pem"}
    before = (tmp_path / "c" / "broker.pem").read_bytes()
    assert main(["tls", "make-test-certificates", str(tmp_path / "c")]) == 2
    assert capsys.readouterr().err == f"odradek: {tmp_path}/c/ca.pem exists; --force overwrites it\n"
    assert (tmp_path / "c" / "broker.pem").read_bytes() == before
    assert main(["tls", "make-test-certificates", "--force", str(tmp_path / "c")]) == 0
    assert (tmp_path / "c" / "broker.pem").read_bytes() != before
    (tmp_path / "file").write_text("")
    assert main(["tls", "make-test-certificates", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.startswith(f"odradek: cannot write to {tmp_path / 'file'}: ")


def test_the_documentation_lists_the_commands():
    page = (Path(odradek.__file__).resolve().parent.parent / "docs" / "cli.md").read_text("utf-8")
    listed = page.partition("## Commands\n\n")[2]
    assert listed == format_reference(), "run: python -m odradek.tools.cli.reference"


def test_output_that_cannot_be_written_is_one_line():
    code = "import os, sys\nfrom odradek.tools.cli.main import main\nsys.exit(main(['config', 'properties']))\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "odradek: No space left on device"


def test_characters_that_the_terminal_lacks_are_escaped():
    code = (
        "from odradek.tools.cli import main\n"
        "from odradek.tools.cli.terminal.output import Output, Table\n"
        "main._run = lambda given: Output(is_json=False).show(Table(('group',), [('\\u7fa4',)]))\n"
        "main.main([])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "latin-1"}, check=False)
    assert (done.stdout, done.stderr) == (b"GROUP\n\\u7fa4\n", b"")
