"""The orders example from end to end; its result is compared with one computed in plain Python.

Environment: ODRADEK_DEMO_BROKERS (127.0.0.1:9092); ODRADEK_DEMO_JDBC_URL, ODRADEK_DEMO_JDBC_USER and
ODRADEK_DEMO_JDBC_PASSWORD for an existing PostgreSQL, otherwise one is started for the duration of the demo.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from compat_tests.apache_kafka import jars
from odradek.spark_it.dead_letters.headers import EXCEPTION_MESSAGE
from odradek.spark_it.examples import orders_data
from odradek.spark_it.examples.__main__ import copy_example
from odradek.spark_it.examples.topics import ExampleBroker, ExampleError
from spark_it.tests.postgres import PostgreSQL, PostgreSQLError

TABLE = "example_revenue"
GROUP = "example-orders"
VARIABLE = "ODRADEK_DEMO_JDBC_URL"
WIDTH = 100
CLEAR = "\n\033[1m{}\033[0m" if sys.stdout.isatty() else "\n{}"


class DemoError(Exception):
    """Failure of the demo; `str()` includes what to do."""


class DemoDatabase(NamedTuple):
    url: str
    user: str
    password: str

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement. Raises DemoError."""
        address = self.url.removeprefix("jdbc:")
        named = {"user": self.user, "password": self.password}
        try:
            with psycopg.connect(address, connect_timeout=10, **{k: v for k, v in named.items() if v}) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise DemoError(f"{address}: {str(error).strip()}") from None


@contextlib.contextmanager
def database() -> Iterator[DemoDatabase]:
    """Return the database of the environment, otherwise start one. Raises DemoError."""
    url = os.environ.get(VARIABLE)
    if url:
        found = DemoDatabase(url, *(os.environ.get(f"ODRADEK_DEMO_JDBC_{name}", "") for name in ("USER", "PASSWORD")))
        found.rows(f"DROP TABLE IF EXISTS {TABLE}")
        yield found
        return
    try:
        with PostgreSQL() as server:
            print(f"PostgreSQL: started for the demo on port {server.port}, stopped at its end")
            yield DemoDatabase(server.jdbc_url, server.user, server.password)
    except PostgreSQLError as error:
        raise DemoError(f"{error}\nOr set an existing one: {VARIABLE}=jdbc:postgresql://host/database") from None


def prepare_file(folder: Path) -> Path:
    """Copy the example's file to a folder and set its connectors' jars. Raises JarsError, OSError."""
    jars.java()
    plugins = folder / "jars"
    plugins.mkdir()
    for jar in [*jars.spark_connector_jars(), *jars.postgresql_jars()]:
        (plugins / jar.name).symlink_to(jar)
    file = copy_example("orders", folder) / "orders.toml"
    file.write_text(f'plugin.path = "{plugins}"\n{file.read_text("utf-8")}', "utf-8")
    return file


def pipeline(command: str, file: Path, environment: dict[str, str], *options: str) -> None:
    """Run `odradek pipeline COMMAND`, which prints its progress. Raises DemoError."""
    print(f"$ odradek pipeline {command} orders.toml {' '.join(options)}".rstrip(), flush=True)
    called = [sys.executable, "-m", "odradek.spark_it", command, str(file), *options]
    if subprocess.run(called, env={**os.environ, **environment}).returncode != 0:
        raise DemoError(f"odradek pipeline {command} failed; see the lines above")


def show_table(database: DemoDatabase) -> None:
    query = f"SELECT country, sum(orders), sum(revenue), max(revenue) FROM {TABLE} GROUP BY country ORDER BY 3 DESC"
    print(f"{'country':>8}{'orders':>10}{'revenue':>16}{'best minute':>14}")
    for country, orders, revenue, best in database.rows(query):
        print(f"{country:>8}{orders:>10,}{revenue:>16,}{best:>14,}")


def compare(database: DemoDatabase, made: orders_data.Orders) -> None:
    """Compare the table with the expected rows and print the result. Raises DemoError if they differ."""
    found = {}
    for minute, country, orders, revenue in database.rows(f"SELECT minute, country, orders, revenue FROM {TABLE}"):
        minute = minute.astimezone(UTC) if minute.tzinfo else minute.replace(tzinfo=UTC)
        found[minute, country] = orders_data.Revenue(orders, revenue)
    expected = orders_data.compute_revenue(made.records)
    same = sum(found.get(at) == one for at, one in expected.items())
    if found != expected:
        raise DemoError(
            f"{same:,} of {len(expected):,} expected rows match; the table has {len(found):,} rows; please report it"
        )
    print(f"\nAll {same:,} rows, one for each minute and country, match the result computed in plain Python.")
    print(f"They include {made.late:,} late orders, and exclude {made.too_late:,} that are later than the watermark.")


def show_dead_letters(broker: ExampleBroker) -> None:
    """Print the number of dead letters for each reason, with an example."""
    by_reason: dict[str, list[bytes]] = defaultdict(list)
    for message in broker.read_records(orders_data.DEAD_LETTERS):
        headers = dict(message.headers() or ())
        by_reason[headers[EXCEPTION_MESSAGE].decode()].append(message.value())
    for reason, values in sorted(by_reason.items(), key=lambda one: -len(one[1])):
        print(f"{len(values):>5}  {reason[:WIDTH]}")
        print(f"       such as {values[0].decode()[:WIDTH]}")


def run() -> None:
    begun = time.monotonic()
    servers = os.environ.get("ODRADEK_DEMO_BROKERS", "127.0.0.1:9092")
    with tempfile.TemporaryDirectory(prefix="odradek-demo-") as name, contextlib.ExitStack() as stack:
        broker = ExampleBroker(servers)
        print(f"Broker:     {servers}")
        file = prepare_file(Path(name))
        shop = stack.enter_context(database())
        broker.recreate_topics({orders_data.TOPIC: orders_data.PARTITIONS, orders_data.DEAD_LETTERS: 1}, [GROUP])
        made = orders_data.make_orders()
        broker.produce(orders_data.TOPIC, made.records)
        print(f"Orders:     {len(made.records):,} of one hour in topic {orders_data.TOPIC}, {made.bad} of them invalid")
        print(CLEAR.format("Pipeline run"))
        environment = {
            "BROKERS": servers,
            "ORDERS_JDBC_URL": shop.url,
            "ORDERS_JDBC_USER": shop.user,
            "ORDERS_JDBC_PASSWORD": shop.password,
        }
        pipeline("run", file, environment, "--available-now")
        print(CLEAR.format(f"Revenue by country (table {TABLE})"))
        show_table(shop)
        compare(shop, made)
        print(CLEAR.format("Progress of the pipeline (also in kafka-consumer-groups)"))
        pipeline("status", file, environment)
        print(CLEAR.format(f"Dead letters (topic {orders_data.DEAD_LETTERS})"))
        show_dead_letters(broker)
    seconds = time.monotonic() - begun
    print(f"\n{seconds:.0f} s. The file: spark_it/examples/orders/orders.toml, more: docs/pipelines.md")


def main() -> int:
    try:
        run()
    except (DemoError, ExampleError, jars.JarsError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
