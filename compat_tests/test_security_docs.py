"""The commands of docs/security.md, run as written, in one directory; only the port is replaced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.pages import PageShell, read_blocks
from odradek.server.cluster_tools.zookeeper_server import find_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    (port,) = find_ports(1)
    shell = PageShell(tmp_path, {":9093": f":{port}"}, log_pattern="broker.log")
    yield shell
    shell.kill("broker.pid")


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
