"""`python -m odradek.spark_it.examples NAME`: copies an example to the current folder and generates its data."""

import argparse
import importlib.resources
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from odradek.spark_it.examples import edits_data, orders_data, sensors_data
from odradek.spark_it.examples.topics import ExampleBroker, ExampleError


class Example(NamedTuple):
    """`files` are the pipelines in the order in which they run; `outputs` are the paths that they and `fill` write,
    which are deleted before data is generated again. `fill` generates the data and returns a description of it."""

    files: tuple[str, ...]
    outputs: tuple[str, ...]
    fill: Callable[[ExampleBroker, Path], str]


def _fill_orders(broker: ExampleBroker, folder: Path) -> str:
    broker.recreate_topics({orders_data.TOPIC: orders_data.PARTITIONS, orders_data.DEAD_LETTERS: 1}, ["example-orders"])
    made = orders_data.make_orders()
    broker.produce(orders_data.TOPIC, made.records)
    return (
        f"{len(made.records):,} orders in topic {orders_data.TOPIC}: {made.late} late, {made.too_late} too late, "
        f"{made.bad} invalid"
    )


def _fill_page_edits(broker: ExampleBroker, folder: Path) -> str:
    topics = {edits_data.TOPIC: edits_data.PARTITIONS, edits_data.SESSIONS: 2, edits_data.DEAD_LETTERS: 1}
    broker.recreate_topics(topics, ["example-page-edits", "example-page-edits:batches"])
    made = edits_data.make_edits()
    broker.produce(edits_data.TOPIC, made.records)
    return f"{len(made.records):,} edits in topic {edits_data.TOPIC}: {made.by_bots:,} by bots, {made.bad} invalid"


def _fill_sensors(broker: ExampleBroker, folder: Path) -> str:
    broker.recreate_topics(
        {sensors_data.TOPIC: sensors_data.PARTITIONS, sensors_data.DEAD_LETTERS: 1},
        ["example-sensor-files:batches", "example-sensor-table"],
    )
    made = sensors_data.make_readings()
    for half, name in ((made.first, sensors_data.READ_FOLDER), (made.second, sensors_data.LATER_FOLDER)):
        half.write(folder / name)
    return f"{len(made.first.readings) + len(made.second.readings):,} readings in files below {folder}"


EXAMPLES = {
    "orders": Example(("orders.toml",), ("pipelines/example-orders",), _fill_orders),
    "page_edits": Example(("page_edits.toml",), ("pipelines/example-page-edits",), _fill_page_edits),
    "sensors": Example(
        ("files_to_topic.toml", "topic_to_table.toml"),
        (
            sensors_data.READ_FOLDER,
            sensors_data.LATER_FOLDER,
            "pipelines/example-sensor-files",
            "pipelines/example-sensor-table",
            "warehouse/example",
        ),
        _fill_sensors,
    ),
}


def copy_example(name: str, into: Path) -> Path:
    """Copy the folder of an example if it does not exist, delete the output of earlier runs, and return the folder.

    Raises ExampleError if another folder has the name, OSError.
    """
    folder, example = into / name, EXAMPLES[name]
    if not folder.exists():
        folder.mkdir(parents=True)
        for shipped in (importlib.resources.files(__package__) / name).iterdir():
            if shipped.name.endswith((".toml", ".py")):
                (folder / shipped.name).write_text(shipped.read_text("utf-8"), "utf-8")
    if not all((folder / file).is_file() for file in example.files):
        raise ExampleError(f"{folder} exists and is not the example; choose another folder with --into")
    for left in example.outputs:
        shutil.rmtree(folder / left, ignore_errors=True)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m odradek.spark_it.examples", description="Copy an example to this folder and generate its data."
    )
    parser.add_argument("name", choices=EXAMPLES)
    parser.add_argument("--brokers", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="folder that will contain the example's folder"
    )
    options = parser.parse_args()
    example = EXAMPLES[options.name]
    try:
        broker = ExampleBroker(options.brokers)
        folder = copy_example(options.name, options.into)
        print(example.fill(broker, folder))
    except (ExampleError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for file in example.files:
        print(f"  odradek pipeline run {folder / file} --available-now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
