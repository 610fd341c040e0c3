"""A cluster of Apache Kafka (KRaft) as a context manager: one controller, and brokers 1 to `size`."""

import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from compat_tests import processes
from compat_tests.apache_kafka.broker import QUICK_JVM, ApacheKafkaBroker

CONTROLLER_ID = 100
CONTROLLER_HEAP = "256m"


class ApacheKafkaNode(ApacheKafkaBroker):
    """One process of a cluster, which is either a broker or the controller."""

    def __init__(self, node_id: int, properties: Mapping[str, str], *, heap: str, jvm_options: Sequence[str]) -> None:
        super().__init__({**properties, "node.id": str(node_id)}, heap=heap, jvm_options=jvm_options)
        self._node_id = node_id

    def _format(self) -> None:
        super()._format()
        # All nodes have copies of one formatted directory, and each needs ids of its own.
        file = self.data_dir / "meta.properties"
        lines = [line for line in file.read_text().splitlines() if not line.startswith(("node.id", "directory.id"))]
        directory_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        file.write_text("\n".join([*lines, f"node.id={self._node_id}", f"directory.id={directory_id}", ""]))


class ApacheKafkaCluster:
    """Processes of one controller and `size` brokers, started on entering the context and stopped on leaving it.

    properties: of all brokers, by Kafka's names
    brokers: by id
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        size: int = 3,
        heap: str = "512m",
        jvm_options: Sequence[str] = QUICK_JVM,
    ) -> None:
        # No outgoing connection gets one of these ports while a broker is down.
        controller_port, *ports = [processes.lasting_port() for _ in range(size + 1)]
        common = {"controller.quorum.voters": f"{CONTROLLER_ID}@127.0.0.1:{controller_port}", **(properties or {})}
        own = {"process.roles": "controller", "listeners": f"CONTROLLER://127.0.0.1:{controller_port}"}
        self.controller = ApacheKafkaNode(
            CONTROLLER_ID, {**common, **own}, heap=CONTROLLER_HEAP, jvm_options=jvm_options
        )
        self.controller.port = controller_port
        self.brokers: dict[int, ApacheKafkaNode] = {}
        for broker_id, port in enumerate(ports, 1):
            own = {"process.roles": "broker", "listeners": f"PLAINTEXT://127.0.0.1:{port}"}
            broker = ApacheKafkaNode(broker_id, {**common, **own}, heap=heap, jvm_options=jvm_options)
            broker.port = port
            self.brokers[broker_id] = broker
        self._started = ExitStack()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # One after the other in this thread: a process ends with the thread that started it.
            for node in (self.controller, *self.brokers.values()):
                stack.enter_context(node)
            self._started = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.close()

    def kill(self, broker_id: int) -> None:
        """Kill a broker (SIGKILL), as in a crash."""
        self.brokers[broker_id].kill()

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly (SIGTERM)."""
        self.brokers[broker_id].stop()

    def start_broker(self, broker_id: int) -> None:
        """Start a broker that is not running."""
        self.brokers[broker_id].start()
