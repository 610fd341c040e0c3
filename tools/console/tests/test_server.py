"""The web server of the console."""

from odradek.tools.console.server import listen, make_console, make_server
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import Address


def test_requests_that_wait_for_a_thread_are_no_warnings(caplog):
    console = make_console(Connection([Address("127.0.0.1", 1)], {}), ConsoleSettings())
    with listen(Address("127.0.0.1", 0)) as listening:
        server = make_server(console, listening)
        server.task_dispatcher.set_thread_count(0)
        server.task_dispatcher.add_task(None)
        server.task_dispatcher.queue.clear()
        server.task_dispatcher.shutdown()
        server.close()
    assert not [record for record in caplog.records if record.name == "waitress.queue"]
