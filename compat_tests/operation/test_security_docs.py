"""The commands of the pages on security, run as written; only the port is replaced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.pages import PageShell, read_blocks, read_examples
from compat_tests.processes import lasting_port

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    port = lasting_port()
    shell = PageShell(tmp_path, {":9093": f":{port}"}, log_pattern="broker.log")
    yield shell
    shell.kill("broker.pid")


def find_commands(name: str) -> list[str]:
    """Return the examples of a page that are commands."""
    return [example for example in read_examples(name) if example.startswith(("odradek ", "kcat "))]


def test_the_commands_lead_to_a_secured_broker(shell: PageShell) -> None:
    blocks = iter(read_blocks("security.md"))

    def run_next(word: str) -> str:
        block = next(blocks)
        assert word in block
        return shell.run(block)

    run_next("make-test-certificates")
    run_next("cat > server.properties")
    run_next("user create admin")
    run_next("user create alice")
    run_next("acl create")
    assert run_next("acl test").startswith("allowed")
    assert "odradek started" in run_next("odradek start")
    run_next("cat > alice.properties")
    run_next("topic create")
    run_next("echo hello")
    assert run_next("record consume") == "hello\n"
    assert list(blocks) == []
    log = (shell.directory / "broker.log").read_text()
    # The watchdog reports a machine that is too busy.
    warnings = [line for line in log.splitlines() if "WARN" in line and "server.network.watchdog" not in line]
    assert "-secret" not in log and not warnings, log


def test_the_examples_of_encryption_and_of_certificates_of_clients(shell: PageShell) -> None:
    first, client, with_authority, client_with_certificate, _ = find_commands("tls.md")
    shell.start_broker(first)
    assert " 1 brokers:" in shell.run(client)
    shell.stop_broker()
    shell.start_broker(with_authority)
    assert " 1 brokers:" in shell.run(client_with_certificate)


def test_the_examples_of_users_with_passwords(shell: PageShell) -> None:
    """Also the last example of the page on TLS, whose client is the user of this one, and delegation tokens."""
    first, users, tokens, _ = find_commands("authentication.md")
    certificates, create, start_broker = first.split("\n", 2)
    shell.run(certificates)
    shell.run(f"echo alice-secret | {create}")
    shell.start_broker(f"{start_broker.rstrip()} --override delegation.token.secret.key=token-secret")

    properties = read_examples("tls.md")[-1].replace("...", "alice-secret")
    for name in ("alice", "client"):
        (shell.directory / f"{name}.properties").write_text(properties)
    assert "controller        broker 1" in shell.run(find_commands("tls.md")[-1])
    create_token, list_tokens = tokens.splitlines()
    assert "owner       User:alice" in shell.run(create_token)
    assert "User:scheduler" in shell.run(list_tokens)

    (shell.directory / "bob.password").write_text("bob-secret\n")
    selection = "--bootstrap-server localhost:9093 --command-config alice.properties"
    create_user, list_users, alter, delete = users.splitlines()
    shell.run(f"{create_user} {selection}")
    assert "bob" in shell.run(f"{list_users} {selection}")
    shell.run(f"echo new-secret | {alter} {selection}")
    shell.run(f"{delete} {selection} --yes")
    assert "bob" not in shell.run(f"{list_users} {selection}")


def test_the_examples_of_access_control_lists(shell: PageShell) -> None:
    properties, changes, test, *_ = read_examples("authorization.md")
    (shell.directory / "server.properties").write_text(f"{properties}log.dirs=data\n")
    assert "User:alice" in shell.run(changes)
    command, denied = test.removeprefix("$ ").splitlines()
    assert shell.run(f"{command} || test $? = 1").strip() == denied
