"""Files, folders and data of the examples, without Spark."""

import pytest

from odradek.spark_it.definition.guarantees import Level, find_stateful_reason
from odradek.spark_it.definition.reader import load
from odradek.spark_it.definition.source_keys import FilesSource
from odradek.spark_it.examples import edits_data, orders_data, sensors_data
from odradek.spark_it.examples.__main__ import EXAMPLES, copy_example
from odradek.spark_it.examples.topics import ExampleError
from odradek.spark_it.validation.report import validate


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_file_is_valid_and_exactly_once(name, tmp_path):
    files = sorted(copy_example(name, tmp_path).glob("*.toml"))
    assert {file.name for file in files} >= set(EXAMPLES[name].files)
    for file in files:
        assert validate(load(file, {})).level is Level.EXACTLY_ONCE


def test_a_folder_is_copied_once_and_the_output_of_runs_is_deleted(tmp_path):
    folder = copy_example("sensors", tmp_path)
    changed = folder / "files_to_topic.toml"
    changed.write_text(changed.read_text("utf-8") + "# mine\n", "utf-8")
    for left in ("readings", "pipelines/example-sensor-table/checkpoint", "pipelines/other", "warehouse/example"):
        (folder / left).mkdir(parents=True)
    assert copy_example("sensors", tmp_path) == folder
    assert changed.read_text("utf-8").endswith("# mine\n")
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_dir()}
    assert there == {"pipelines", "pipelines/other", "warehouse"}


def test_a_folder_that_is_not_the_example_is_not_changed(tmp_path):
    (tmp_path / "orders" / "pipelines" / "example-orders").mkdir(parents=True)
    with pytest.raises(ExampleError, match="is not the example"):
        copy_example("orders", tmp_path)
    assert (tmp_path / "orders" / "pipelines" / "example-orders").is_dir()


def test_the_second_file_of_the_sensors_has_one_more_column_and_the_same_state(tmp_path):
    folder = copy_example("sensors", tmp_path)
    first, second = (load(folder / name, {}) for name in ("files_to_topic.toml", "files_to_topic_2.toml"))
    assert first.name == second.name and first.state_folder == second.state_folder
    before, after = first.sources["readings"], second.sources["readings"]
    assert isinstance(before, FilesSource) and isinstance(after, FilesSource)
    assert after.schema == f"{before.schema}, humidity DOUBLE"
    assert first.sink.get_texts("identity_keys") == second.sink.get_texts("identity_keys")
    assert find_stateful_reason(first) is find_stateful_reason(second) is None


def test_data_is_the_same_in_every_run():
    assert orders_data.make_orders(1000) == orders_data.make_orders(1000)
    assert edits_data.make_edits(600) == edits_data.make_edits(600)
    assert sensors_data.make_readings(1) == sensors_data.make_readings(1)
    assert orders_data.make_orders(1000, seed=6) != orders_data.make_orders(1000)


def test_late_orders_count_and_those_too_late_do_not():
    made = orders_data.make_orders()
    orders = [order for _, value in made.records if (order := orders_data.parse_order(value)) is not None]
    assert len(made.records) - len(orders) == made.bad
    newest, behind = orders_data.BEGIN, []
    for order in orders:
        newest = max(newest, order["placed"])
        behind.append(newest - order["placed"])
    late = [time for time in behind if time]
    assert sum(time > orders_data.WATERMARK for time in late) == made.too_late
    assert not [time for time in late if orders_data.LATEST < time <= 6 * orders_data.WATERMARK]
    counted = sum(of.orders for of in orders_data.compute_revenue(made.records).values())
    assert counted == sum(time <= orders_data.WATERMARK for time in behind) < len(orders)
