"""OdradekBroker with a stand-in for the broker: start, failures, stop, restart and clean-up."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from odradek import testing
from odradek.broker_log import BrokerLog
from odradek.testing import BrokerFailedError, OdradekBroker

STAND_IN = textwrap.dedent(
    """
    import os, signal, socket, sys
    def read(name):
        return [a.partition("=")[2] for a in sys.argv if a.startswith(name + "=")][0]
    if "fail=yes" in sys.argv:
        sys.stderr.write("odradek: something is wrong\\n")
        sys.exit(2)
    if "hang=start" in sys.argv:
        signal.pause()
    is_quiet = sys.argv[sys.argv.index("--log-level") + 1] not in ("debug", "info")
    if "slow=yes" in sys.argv:
        print("reactor iteration was slow, and delayed all requests wall_ms=900 cpu_ms=700 x=", flush=True)
    if "hang=stop" not in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: (print("stopped", flush=True), os._exit(0)))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: (print("TIME INFO x a late line", flush=True), sockets[0].accept()))
    sockets = []
    for listener in read("listeners").split(","):
        host, _, port = listener.partition("://")[2].rpartition(":")
        one = socket.create_server((host, int(port)))
        sockets.append(one)
    os.makedirs(read("log.dirs"), exist_ok=True)
    addresses = ",".join("127.0.0.1:%d" % one.getsockname()[1] for one in sockets)
    print("TIME WARNING x the disk is slow\\n    a row of a traceback", flush=True)
    if not is_quiet:
        print("TIME INFO x odradek started address=%s data=/x version=0.1.0 start_ms=1" % addresses, flush=True)
    while True:
        signal.pause()
    """
)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setattr(testing, "_LAUNCHER", STAND_IN)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_broker_is_reachable_and_removed_at_the_end():
    with OdradekBroker() as broker:
        pid, directory = broker.pid, broker.directory
        assert broker.is_running
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        socket.create_connection(("127.0.0.1", broker.port), timeout=60).close()
        assert broker.data_dir.is_dir()
        assert "odradek started" in broker.log_text()
    assert not is_alive(pid)
    assert not directory.exists()
    assert "stopped" in broker.log_text()


def test_properties_reach_the_broker():
    broker = OdradekBroker({"num.partitions": "3", "group.initial.rebalance.delay.ms": "5"})
    assert broker.properties["num.partitions"] == "3"
    assert broker.properties["group.initial.rebalance.delay.ms"] == "5"
    assert broker.properties["log.dirs"] == str(broker.data_dir)
    broker.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_port_and_data(tmp_path, clean):
    with OdradekBroker(directory=tmp_path / "here") as broker:
        port, pid = broker.port, broker.pid
        (broker.data_dir / "kept").touch()
        broker.restart(clean=clean)
        assert (broker.port, broker.pid != pid) == (port, True)
        assert not is_alive(pid)
        assert (broker.data_dir / "kept").exists()
        assert ("stopped" in broker.log_text()) == clean
    assert (tmp_path / "here" / "data").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve no port")
def test_no_other_process_receives_the_port_of_a_broker_that_is_down():
    with OdradekBroker() as broker:
        port = broker.port
        broker.stop()
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert broker.start().port == port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_the_log_contains_lines_of_its_level():
    with OdradekBroker(log_level="warning") as broker:
        assert broker.addresses
        assert broker.log_text() == "TIME WARNING x the disk is slow\n    a row of a traceback\n"
    with OdradekBroker(log_level="debug") as broker:
        assert "odradek started" in broker.log_text()


def test_the_log_contains_a_line_that_precedes_a_response(monkeypatch):
    """Also if the thread that copies the output is late."""
    select_line = BrokerLog.selects

    def select_slowly(log, line):
        if b"late" in line:
            threading.Event().wait(0.2)
        return select_line(log, line)

    monkeypatch.setattr(BrokerLog, "selects", select_slowly)
    with OdradekBroker() as broker, socket.create_connection(("127.0.0.1", broker.port)) as connection:
        os.kill(broker.pid, signal.SIGUSR1)
        # The stand-in accepts the connection, and closes it.
        assert connection.recv(1) == b""
        assert "a late line" in broker.log_text()


def test_several_listeners():
    with OdradekBroker({"listeners": "A://127.0.0.1:0,B://127.0.0.1:0"}) as broker:
        assert len(broker.addresses) == 2
        before = broker.addresses
        assert broker.restart().addresses == before


def test_stop_returns_the_exit_code_and_is_repeatable():
    broker = OdradekBroker().start()
    assert broker.start() is broker
    assert broker.stop() == 0
    assert broker.stop() == 0
    assert not broker.is_running
    broker.close()


def test_an_iteration_above_the_limit_fails_the_test(monkeypatch):
    monkeypatch.setenv("ODRADEK_MOST_ITERATION_MS", "500")
    with pytest.raises(BrokerFailedError, match="cpu_ms=700"), OdradekBroker({"slow": "yes"}):
        pass
    monkeypatch.setenv("ODRADEK_MOST_ITERATION_MS", "700")
    with OdradekBroker({"slow": "yes"}):
        pass
    monkeypatch.delenv("ODRADEK_MOST_ITERATION_MS")
    with OdradekBroker({"slow": "yes"}):
        pass


def test_a_broker_that_does_not_start_is_reported_with_its_output():
    broker = OdradekBroker({"fail": "yes"})
    with pytest.raises(BrokerFailedError, match=r"did not start, exit code 2(.|\n)*something is wrong"):
        broker.__enter__()
    assert not broker.is_running
    assert not broker.directory.exists()


def test_a_broker_that_hangs_at_start_is_killed():
    with pytest.raises(BrokerFailedError, match=r"did not start within 0\.2 s"):
        OdradekBroker({"hang": "start"}, start_timeout_s=0.2).__enter__()


def test_a_broker_that_hangs_at_stop_is_killed():
    broker = OdradekBroker({"hang": "stop"}, stop_timeout_s=1).start()
    pid = broker.pid
    with pytest.raises(BrokerFailedError, match="of SIGTERM"):
        broker.stop()
    assert not is_alive(pid)
    broker.close()


HOLDER = """
import signal, sys
from odradek import testing
testing._LAUNCHER = {stand_in!r} if {plain} else testing._LAUNCHER.replace(
    "from odradek.__main__ import main\\nsys.exit(main())", {stand_in!r})
broker = testing.OdradekBroker(directory={directory!r}).start()
print(broker.pid, flush=True)
{then}
"""


def hold(directory, then, *, plain):
    source = HOLDER.format(stand_in=STAND_IN, plain=plain, directory=str(directory), then=then)
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def wait_until_gone(pid):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("needs pidfd")
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60)[0])
    finally:
        os.close(descriptor)


def test_a_broker_ends_with_a_test_process_that_does_not_stop_it(tmp_path):
    process, pid = hold(tmp_path, "sys.exit(3)", plain=True)
    assert process.wait(60) == 3
    process.stdout.close()
    assert wait_until_gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals a parent's death to its child")
def test_a_broker_ends_with_a_test_process_that_is_killed(tmp_path):
    process, pid = hold(tmp_path, "signal.pause()", plain=False)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    assert wait_until_gone(pid)


def test_the_import_is_light():
    code = "import sys; before = set(sys.modules); import odradek.pytest_plugin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", f"import pytest; {code}"], capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split()) == ["odradek", "odradek.pytest_plugin"]
