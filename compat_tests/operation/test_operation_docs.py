"""The commands of the pages on monitoring and on migration, run as written; addresses and directories are replaced."""

import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import odradek
from compat_tests import limits
from compat_tests.apache_kafka.broker import ApacheKafkaBroker
from compat_tests.clients import load
from compat_tests.clients.common import ConsumerOptions, Message, ProducerOptions, read, wait_until
from compat_tests.pages import PageShell, read_examples, read_page, set_default_cluster
from compat_tests.processes import lasting_ports

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

MONITORING = Path(odradek.__file__).parent.parent / "docs" / "monitoring"
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CLIENT = load("confluent")


@pytest.fixture
def make_shell(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], PageShell]]:
    made: list[PageShell] = []

    def make(addresses: dict[str, str]) -> PageShell:
        made.append(PageShell(tmp_path, addresses, log_pattern="*.log"))
        return made[-1]

    yield make
    for shell in made:
        for name in ("broker.pid", "prometheus.pid"):
            shell.kill(name)


def read_inner_examples(name: str) -> list[str]:
    """Return the indented blocks in the steps of a page."""
    return re.findall(r"(?<=\n\n)(?:        .*\n)+", read_page(name))


def fill(bootstrap_servers: str) -> None:
    """Create the topics of the page on migration, write two records to each, and commit one of them."""
    with load("kafka_python").Admin(bootstrap_servers) as admin:
        admin.create_topic("orders", 1, configs={"retention.ms": "-1"})
        admin.create_topic("plain", 1)
    with CLIENT.Producer(bootstrap_servers, ProducerOptions()) as producer:
        for topic in ("orders", "plain"):
            producer.produce(topic, [Message(b"one"), Message(b"two")])
    with CLIENT.Consumer(bootstrap_servers, ConsumerOptions(group="billing")) as consumer:
        consumer.assign([("orders", 0)])
        consumer.commit({("orders", 0): (1, "")})


def assert_lines_are_like(page: str, log: str) -> None:
    """Compare log lines in a page with those of a broker, up to their values."""
    for line in page.splitlines():
        level, _, text = line.partition(" ")
        assert re.search(rf" {level} {re.escape(re.split('=[0-9]', text)[0])}=", log), log


def read_all(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    with CLIENT.Consumer(bootstrap_servers, ConsumerOptions()) as consumer:
        consumer.assign([(topic, 0)])
        return [record.value for record in read(consumer, 2)]


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_the_steps_to_prometheus_and_its_alerts(make_shell):
    metrics, prometheus, broker = lasting_ports(3)
    shell = make_shell({":9404": f":{metrics}", ":9090": f":{prometheus}"})
    listener, look, configuration, run = map(textwrap.dedent, read_inner_examples("monitoring.md"))
    properties = f"{listener}listeners=PLAINTEXT://127.0.0.1:{broker}\nlog.dirs=data\n"
    (shell.directory / "server.properties").write_text(properties.replace("9404", str(metrics)))
    shell.start_broker("odradek start server.properties")
    assert "kafka_server_" in shell.run(look)
    # Quantiles exist for the requests that were received.
    shell.run(f"odradek topic list --bootstrap-server 127.0.0.1:{broker}")

    shutil.copy(MONITORING / "alerts.yml", shell.directory)
    text = configuration.replace(":9404", f":{metrics}").replace("15s", "1s")
    (shell.directory / "prometheus.yml").write_text(text)
    check, start = run.strip().splitlines()
    assert "SUCCESS: " in shell.run(check)
    address = f"127.0.0.1:{prometheus}"
    start += f" --web.listen-address={address} --storage.tsdb.path=tsdb"
    shell.run(f"{start} > prometheus.log 2>&1 & echo $! > prometheus.pid")

    def ask(path: str) -> Any:
        with urlopen(f"http://{address}/api/v1/{path}", timeout=limits.CONDITION_S) as answer:
            return json.load(answer)["data"]

    def is_scraped() -> bool:
        try:
            return [target["health"] for target in ask("targets")["activeTargets"]] == ["up"]
        except OSError:
            return False

    wait_until(is_scraped, what="Prometheus scrapes the broker")
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    assert rules and "err" not in {rule["health"] for rule in rules}
    asked = set(re.findall(r"`((?:kafka|odradek)_\w+|up)`", read_page("monitoring.md")))
    names = set(ask("label/__name__/values"))
    assert len(asked) > 5
    assert asked - names == set()


@pytest.mark.usefixtures("kafka_jars")
def test_a_broker_of_kafka_is_replaced_and_returns(make_shell, monkeypatch, tmp_path):
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup.mkdir()
    with ApacheKafkaBroker(AUTHORIZER, directory=tmp_path) as kafka:
        servers = kafka.bootstrap_servers
        fill(servers)
        kafka.stop()
        set_default_cluster(tmp_path, monkeypatch, servers)
        shell = make_shell({"/var/lib/kafka/data": str(data), "/backup/": f"{backup}/", "/etc/kafka/": f"{tmp_path}/"})
        copy_and_verify, start, log, alter = read_examples("migration.md")
        assert " 0 errors, " in shell.run(copy_and_verify)
        [(first, last)] = re.findall(r"refuses to start: `(.+?), \.\.\. (.+?)`", read_page("migration.md"))
        refused = shell.run(f"{start.partition(' --override')[0]} || test $? = 1")
        assert re.search(f"{first}, .+ {last}", refused)
        shell.start_broker(start)
        assert_lines_are_like(log, (tmp_path / "broker.log").read_text())
        assert '"-1"' in shell.run("odradek config describe topic plain --json")
        shell.run(alter)
        assert '"-1"' not in shell.run("odradek config describe topic plain --json")
        comparison = read_page("migration.md").partition("Compare with what Kafka had: ")[2].partition(". Then")[0]
        shown = shell.run("\n".join(re.findall("`(.+?)`", comparison)))
        assert re.search(r"^billing +Empty +0 +orders +1 +1$", shown, re.MULTILINE)
        assert read_all(servers, "plain") == [b"one", b"two"]

        shell.stop_broker()
        shutil.rmtree(data)
        (backup / "kafka-data").rename(data)
        kafka.start()
        assert read_all(servers, "plain") == [b"one", b"two"]
