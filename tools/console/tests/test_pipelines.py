"""Pipelines in the console, from their files, while no broker answers."""

import pytest

from odradek.spark_it.definition.reader import load
from odradek.spark_it.state.lock import make_lock, write_lock
from odradek.spark_it.state.pid_lock import hold_lock
from odradek.spark_it.state.progress import Progress, write_progress
from odradek.tools.console.app import make_app
from odradek.tools.console.console import Console
from odradek.tools.console.pipelines import ShownPipeline, list_pipelines
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.connection_errors import CONNECTION, NoAddressError, StepError

FILE = """
bootstrap.servers = "10.0.0.1:9092"
name = "{name}"
source.orders = {{ connector = "topic", topics = "orders", value.format = "bytes" }}
sink = {{ connector = "topic", topic = "{sink}" }}
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("copy", "fresh"):
        (tmp_path / f"{name}.toml").write_text(FILE.format(name=name, sink="out"))
    (tmp_path / "wrong.toml").write_text("nam = 1")
    return tmp_path


def fail():
    raise NoAddressError([StepError("10.0.0.1:9092", CONNECTION, "refused", "is the broker running?")])


def get_page(*paths):
    console = Console(fail, "10.0.0.1:9092", ConsoleSettings(pipelines=paths))
    return make_app(console).test_client().get("/pipelines").get_data(as_text=True)


def test_states(folder):
    pipeline = load(folder / "copy.toml", {})
    write_lock(pipeline.state_folder, make_lock(pipeline, None, 1))
    counts = Progress(3, 0, 1100, 1090, 9, 1, 51234.5, "<b>sink is down</b>", 1000)
    write_progress(pipeline.state_folder, counts)
    with hold_lock(pipeline.state_folder):
        copy, fresh, wrong = list_pipelines([folder])
        page = get_page(folder)
    assert copy.state.is_running and copy.state.progress == counts and copy.reads_topics
    assert not fresh.state.has_run and not fresh.state.is_running
    assert wrong.state is None and "wrong.toml:1: unknown key nam, did you mean name?" in wrong.error
    for text in ("running", "1,100", "51,234", "&lt;b&gt;sink is down&lt;/b&gt;", "has never run", "cannot be read"):
        assert text in page
    assert "<b>sink" not in page and "The lag of the pipelines cannot be read" in page


def test_a_changed_file_and_a_damaged_lock(folder):
    pipeline = load(folder / "copy.toml", {})
    write_lock(pipeline.state_folder, make_lock(pipeline, None, 1))
    (folder / "copy.toml").write_text(FILE.format(name="copy", sink="there"))
    assert "the sink writes to another place" in get_page(folder / "copy.toml")
    (pipeline.state_folder / "pipeline.lock.toml").write_text("version = ")
    assert "cannot be parsed" in get_page(folder / "copy.toml")


@pytest.mark.parametrize(
    "text", ['{"batch": "x"}', '{"rows_per_second": Infinity, "batch": 1, "at_ms": 1}', "[" * 99_999]
)
def test_a_damaged_progress_file(folder, text):
    pipeline = load(folder / "copy.toml", {})
    write_lock(pipeline.state_folder, make_lock(pipeline, None, 1))
    (pipeline.state_folder / "progress.json").write_text(text)
    assert "stopped" in get_page(folder / "copy.toml")


def test_a_file_that_is_nested_too_deeply(folder):
    (folder / "deep.toml").write_text(f"a = {'[' * 50_000}{']' * 50_000}")
    assert "cannot be read" in get_page(folder / "deep.toml")


@pytest.mark.parametrize(
    ("servers", "address", "is_same"),
    [
        (("localhost:9092",), "127.0.0.1:9092", True),
        (("other:9092", "a:1"), "A:1,b:2", True),
        (("other:9092",), "127.0.0.1:9092", False),
    ],
)
def test_the_cluster_of_a_pipeline(servers, address, is_same):
    assert ShownPipeline("x.toml", servers=servers).is_of_cluster(address) is is_same


def test_a_file_that_has_disappeared(folder):
    assert "gone.toml: No such file or directory" in get_page(folder / "gone.toml")


def test_without_pipelines():
    page = get_page()
    assert "--pipeline" in page and '<a href="/pipelines"' not in page
