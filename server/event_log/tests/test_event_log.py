"""Log lines as text and as JSON, their destination, and the messages of the whole project as JSON."""

import ast
import io
import json
import logging
import math
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import odradek
from odradek.broker_log import BrokerLog
from odradek.properties import PropertyError
from odradek.replication.controller.admin.broker_loggers import KAFKA_LOGGERS
from odradek.server.config import BrokerConfig
from odradek.server.event_log.json_lines import RESERVED_FIELDS, TEXT_FIELDS, is_number, parse_template
from odradek.server.event_log.setup import configure_logging
from odradek.testing import OdradekBroker

ROOT = Path(odradek.__file__).resolve().parent.parent
LINE = re.compile(r'\{"time": "\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "level": "[A-Z]+", "logger": "[\w.]+", .*\}')


@pytest.fixture(autouse=True)
def root_logger():
    """The root logger, restored after the test."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.raiseExceptions
    yield root
    root.handlers[:], root.level, logging.raiseExceptions = before


@pytest.fixture
def events(root_logger):
    """Log an event as JSON; return the object without its time.

    The event goes to the handler only: pytest-xdist cannot pass on a captured one with a lone surrogate.
    """
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    [handler] = root_logger.handlers

    def log(template, *arguments, name="odradek.x", level=logging.INFO, exc_info=None):
        stream.seek(0)
        stream.truncate()
        handler.handle(logging.LogRecord(name, level, "", 0, template, arguments, exc_info))
        line = stream.getvalue()
        assert line.endswith("\n") and LINE.fullmatch(line[:-1]) and line.isascii()
        event = json.loads(line)
        del event["time"]
        return event

    return log


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_in_the_journal_have_their_priority(root_logger, tmp_path, monkeypatch, log_format):
    with (tmp_path / "journal").open("w+") as stream:
        file = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{file.st_dev}:{file.st_ino}")
        configure_logging("debug", stream, log_format)
        logger = logging.getLogger("odradek.x")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
            logger.log(level, "event")
        try:
            raise ValueError
        except ValueError:
            logger.exception("failed")
        stream.seek(0)
        lines = stream.read().splitlines()
    assert [line[:3] for line in lines[:5]] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    assert all(line.startswith("<3>") for line in lines[5:]) and ("ValueError" in lines[-1])


def test_lines_elsewhere_have_no_priority(root_logger, tmp_path, monkeypatch):
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    with (tmp_path / "log").open("w+") as stream:
        configure_logging("info", stream)
        logging.getLogger("odradek.x").info("event")
        stream.seek(0)
        assert stream.read().endswith(" INFO x event\n") and not stream.read().startswith("<")
    configure_logging("info", io.StringIO())


def test_an_event_is_an_object_with_the_pairs_as_fields(events):
    event = events("started address=%s start_ms=%d", "127.0.0.1:1", 12.7, name="odradek.server.broker")
    assert event == {
        "level": "INFO",
        "logger": "server.broker",
        "message": "started",
        "address": "127.0.0.1:1",
        "start_ms": 12,
    }
    assert events("failed", name="kazoo.client", level=logging.ERROR) == {
        "level": "ERROR",
        "logger": "kazoo.client",
        "message": "failed",
    }


@pytest.mark.parametrize(
    ("template", "arguments", "expected"),
    [
        ("a=%s b=%d c=%.0f d=%g", ("x", -3, 2.6, 0.5), {"message": "", "a": "x", "b": -3, "c": 3, "d": 0.5}),
        ("%s failed a=%d: %s", ("it", 1, "why"), {"message": "it failed: why", "a": 1}),
        ("ready a=%s; see %s", ("x", "docs"), {"message": "ready; see docs", "a": "x"}),
        ("at 100%% a=%s", ("x",), {"message": "at 100%", "a": "x"}),
        ("path=%s-%d b=%d..%d", ("t", 1, 2, 3), {"message": "", "path": "t-1", "b": "2..3"}),
        ('moved reason="starts at %d" n=%d', (5, 6), {"message": "moved", "reason": "starts at 5", "n": 6}),
        ("open waits_for=socket n=%d", (1,), {"message": "open", "waits_for": "socket", "n": 1}),
        ("zookeeper.connect=%s session=%#x", ("h", 17), {"message": "", "zookeeper.connect": "h", "session": "0x11"}),
        ("user=%r item=%r", ("it's", 5), {"message": "", "user": "it's", "item": "5"}),
        ("principal=%s", (json.dumps('User:"a"\n'),), {"message": "", "principal": 'User:"a"\n'}),
        ("principal=%s", ('"not JSON""',), {"message": "", "principal": '"not JSON""'}),
        ("n=%f m=%g", (math.nan, -math.inf), {"message": "", "n": "nan", "m": "-inf"}),
        ("n=%g m=%g o=%d", (1e20, 1e-7, 2**63), {"message": "", "n": 1e20, "m": 1e-7, "o": 2**63}),
        ("broker=%d replicas=%d", (1, 2), {"message": "", "broker": "1", "replicas": "2"}),
        ("level=%s time=%d message=%s", ("a", 1, "b"), {"message": "", "level_": "a", "time_": 1, "message_": "b"}),
        ("no pairs: %s", ("a=b c=d",), {"message": "no pairs: a=b c=d"}),
        ("no arguments a=b", (), {"message": "no arguments a=b"}),
        ("%(a)s b=%(b)d", ({"a": "x", "b": 1},), {"message": "x b=1"}),
        ("width a=%*d b=%s", (3, 1, "x"), {"message": "width a=  1 b=x"}),
        (ValueError("a=1 %s"), (), {"message": "a=1 %s"}),
    ],
)
def test_pairs_come_from_the_template(events, template, arguments, expected):
    event = events(template, *arguments)
    assert {name: value for name, value in event.items() if name not in ("level", "logger")} == expected


def test_a_value_cannot_add_a_field_or_a_line(events):
    value = 'a\nb level=ERROR x="y" \x1b[0m \x85\u2028"}'
    event = events("failed client=%s", value)
    assert (event["client"], event["level"], "x" in event) == (value, "INFO", False)


def test_bytes_that_are_not_utf_8_are_escaped(events):
    name = b"caf\xc3\xa9 \xff".decode("utf-8", "surrogateescape")
    event = events("%s user=%s item=%r", name, name, name, name="odradek.x")
    assert {event["message"], event["user"], event["item"]} == {"café \\udcff"}


def test_a_traceback_is_a_field(events):
    try:
        raise ValueError("first\nsecond \udcff")
    except ValueError:
        event = events("failed n=%d", 1, exc_info=sys.exc_info())
    assert event["traceback"].startswith("Traceback (most recent call last):\n")
    assert event["traceback"].endswith("ValueError: first\nsecond \\udcff")
    assert event["message"] == "failed"


def test_control_characters_of_eight_bits_do_not_end_a_line_of_text():
    stream = io.StringIO()
    configure_logging("info", stream)
    logging.getLogger("odradek.x").warning("client=%s", "a\x85b\x9bc\u2028d\u2029é")
    assert stream.getvalue().endswith("client=a\\x85b\\x9bc\\u2028d\\u2029é\n")


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", "é\\udcff"), ("ascii", "\\xe9\\udcff")])
def test_a_character_that_the_output_lacks_does_not_lose_the_line(root_logger, encoding, expected):
    raw = io.BytesIO()
    configure_logging("info", io.TextIOWrapper(raw, encoding=encoding))
    [handler] = root_logger.handlers
    handler.handle(logging.LogRecord("odradek.x", logging.INFO, "", 0, "user=%s", ("é\udcff",), None))
    assert raw.getvalue().decode(encoding).endswith(f" user={expected}\n")


def find_templates():
    """The templates of all messages of the broker, with their places."""
    for package in ("log", "replication", "coordinator", "server"):
        for path in (ROOT / package).rglob("*.py"):
            if "tests" in path.parts:
                continue
            for call in ast.walk(ast.parse(path.read_text())):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                if ast.unparse(call.func.value) != "logger" or len(call.args) < 2:
                    continue
                for argument in call.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield f"{path.relative_to(ROOT)}:{call.lineno}", argument.value
                        break


def test_each_field_has_one_type_in_all_messages():
    kinds = defaultdict(lambda: defaultdict(list))
    for place, text in find_templates():
        template = parse_template(text)
        assert template is not None, f"{place}: a template with names of arguments"
        names = [name for name, _ in template.pairs]
        assert len(set(names)) == len(names), f"{place}: a name is repeated"
        assert not set(names) & set(RESERVED_FIELDS), f"{place}: a name of the line's own fields"
        for name, part in template.pairs:
            kinds[name][is_number(part.template)].append(place)
    assert len(kinds) > 100
    mixed = {name: dict(places) for name, places in kinds.items() if len(places) > 1}
    assert set(mixed) == TEXT_FIELDS, {name: mixed.get(name) for name in set(mixed) ^ TEXT_FIELDS}


def test_the_format_is_a_property():
    assert BrokerConfig({}).log_format == "text"
    with pytest.raises(PropertyError, match=r"log\.format: must be one of: text, json"):
        BrokerConfig({"log.format": "xml"})


def test_the_lines_of_a_broker_are_json():
    with OdradekBroker({"log.format": "json", "unknown.property": "x"}) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{broker.port}"
        assert broker.stop() == 0
        lines = [json.loads(line) for line in broker.log_text().splitlines()]
    assert [line["level"] for line in lines if "unknown.property" in line["message"]] == ["WARNING"]
    [started] = [line for line in lines if line["message"] == "odradek started"]
    assert started["address"] == broker.bootstrap_servers
    assert isinstance(started["start_ms"], int)
    assert lines[-1]["message"] == "odradek stopped"


@pytest.mark.parametrize("line", ["TIME {} x a", '{{"time": "T", "level": "{}"}}'])
def test_only_the_lines_below_the_level_of_a_broker_are_hidden(line):
    log = BrokerLog("error")
    assert log.process_level == "info"
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    shown = [level for level in levels if log.selects(line.format(level).encode())]
    assert shown == ["DEBUG", "ERROR", "CRITICAL"]
    assert all(BrokerLog("info").selects(line.format(level).encode()) for level in ("DEBUG", "INFO"))


@pytest.mark.parametrize(
    "line",
    [
        b"2025-03-01T12:00:00.123Z INFO server.membership.live_brokers live brokers ids=1,12\n",
        b'{"time": "T", "level": "INFO", "logger": "m", "message": "live brokers", "ids": "1,12"}\n',
    ],
)
def test_the_line_of_the_live_brokers_is_found(line):
    log = BrokerLog("error")
    log.selects(b'2025-03-01T12:00:00.123Z WARNING request slow request client_id="live brokers ids=7"\n')
    assert log.live_brokers == frozenset()
    log.selects(line)
    assert log.live_brokers == {1, 12}


def test_the_page_lists_the_names_of_kafkas_loggers():
    page = (ROOT / "docs" / "logging.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (`.*`) \|", page, re.MULTILINE)
    listed = {kafka: own for own, names in rows for kafka in re.findall(r"`(\S+)`", names)}
    assert listed == {kafka: name.removeprefix("odradek.") for kafka, name in KAFKA_LOGGERS.items()}
