"""Records of a topic: lists, single records, downloads and the live tail."""

import re
import time
from collections.abc import Mapping
from typing import Final

from flask import Blueprint, Response, jsonify, request

from odradek.protocol.batches.record_reader import Record
from odradek.tools.console.console import get_arguments, get_console, render
from odradek.tools.console.inputs import MOST_OFFSET, MOST_PARTITION, InputError
from odradek.tools.console.records.decoding import WHOLE_CHARACTERS, show_record
from odradek.tools.console.records.fetching import READ_UNCOMMITTED, fetch_records
from odradek.tools.console.records.scanning import Positions, Ranges, Scan, Scanner
from odradek.tools.kafka.cluster import Cluster, RequestError
from odradek.tools.kafka.times import parse_duration_ms, parse_time_ms
from odradek.tools.kafka.topics.offsets import LATEST, READ_COMMITTED, fetch_log_ranges, fetch_offsets, find_leaders
from odradek.tools.logs.decoding import decoder_of

records = Blueprint("records", __name__)

_PARTS: Final = {"key": "the key", "value": "the value"}
_RANGES_TTL_S: Final = 0.5
_MOST_TIME_CHARACTERS: Final = 60
_POSITION: Final = re.compile(r"(\d{1,9}):(\d{1,18})")


@records.get("/topics/<name>/records")
def show_list(name: str) -> str:
    """List records around a position."""
    arguments = get_arguments()
    ranges = _read_ranges(name)
    scan, error = None, None
    started = time.monotonic()
    try:
        partitions = _select_partitions(arguments.get("partition", ""), ranges)
        scan = _scan(name, arguments, ranges, partitions)
    except InputError as invalid:
        error = str(invalid)
    return render(
        "records.html",
        name=name,
        ranges=ranges,
        scan=scan,
        error=error,
        arguments=arguments,
        elapsed_ms=int((time.monotonic() - started) * 1000),
        format_positions=format_positions,
        has_older=scan is not None and any(offset > ranges.first[one] for one, offset in scan.before.items()),
        has_newer=scan is not None and any(offset < ranges.end[one] for one, offset in scan.after.items()),
    )


def _scan(name: str, arguments: Mapping[str, str], ranges: Ranges, partitions: list[int]) -> Scan:
    """Return the records that the arguments of an address select. Raises InputError."""
    needle = arguments.get("filter", "").encode()
    at, before, after = arguments.get("at", "").strip(), arguments.get("before"), arguments.get("after")
    position = arguments.get("position", "newest")

    def work(cluster: Cluster) -> Scan:
        scanner = Scanner(cluster, name, ranges, needle, time.monotonic, get_console().schemas.find(name))
        if before is not None:
            return scanner.scan_backward(parse_positions(before, ranges))
        if after is not None:
            return scanner.scan_forward(parse_positions(after, ranges))
        if position == "oldest":
            return scanner.scan_forward({one: ranges.first[one] for one in partitions})
        if position == "offset":
            return scanner.scan_forward(dict.fromkeys(partitions, _parse_offset(at)))
        if position == "time":
            return scanner.scan_forward(*_find_time(cluster, name, ranges, partitions, at))
        return scanner.scan_backward({one: ranges.end[one] for one in partitions})

    console = get_console()
    return console.search(work) if needle else console.read_now(work)


@records.get("/topics/<name>/records/<int:partition>/<int:offset>")
def show_one(name: str, partition: int, offset: int) -> str:
    """Show one record."""
    record, is_transactional = _find_record(name, partition, offset)
    schemas = get_console().schemas.find(name)
    shown = show_record(partition, record, WHOLE_CHARACTERS, is_transactional, schemas, decoder_of(name))
    return render("record.html", name=name, record=shown)


@records.get("/topics/<name>/records/<int:partition>/<int:offset>/<any(key, value):part>")
def download(name: str, partition: int, offset: int, part: str) -> Response:
    """Send the bytes of a key or value as a file."""
    record, _ = _find_record(name, partition, offset)
    data = record.key if part == "key" else record.value
    if data is None:
        raise RequestError("UNKNOWN_TOPIC_OR_PARTITION", f"{_PARTS[part]} of the record is null")
    response = Response(data, mimetype="application/octet-stream")
    response.headers.set("Content-Disposition", "attachment", filename=f"{name}-{partition}-{offset}.{part}")
    return response


@records.get("/topics/<name>/tail")
def show_tail(name: str) -> str:
    """Show new records as they arrive."""
    arguments = get_arguments()
    ranges = _read_ranges(name)
    try:
        partitions = _select_partitions(arguments.get("partition", ""), ranges)
        error = None
    except InputError as invalid:
        partitions, error = [], str(invalid)
    start = format_positions({one: ranges.end[one] for one in partitions})
    return render("tail.html", name=name, ranges=ranges, start=start, arguments=arguments, error=error)


@records.get("/topics/<name>/tail/records")
def show_new(name: str) -> Response:
    """Return the rows of new records, and the positions after them, for the script of the tail."""
    console = get_console()
    needle = request.args.get("filter", "").encode()
    ranges = _read_ranges(name)
    positions = parse_positions(request.args.get("after", ""), ranges)

    def work(cluster: Cluster) -> Scan:
        return Scanner(cluster, name, ranges, needle, time.monotonic, console.schemas.find(name)).scan_forward(
            positions
        )

    scan = console.search(work) if needle else console.read_now(work)
    rows = render("record_rows.html", name=name, records=list(reversed(scan.records)))
    return jsonify(rows=rows, count=len(scan.records), after=format_positions(scan.after))


def _read_ranges(name: str) -> Ranges:
    """Return the ranges of a topic, of committed records with the argument `committed`."""
    isolation_level = READ_COMMITTED if request.args.get("committed") == "1" else READ_UNCOMMITTED
    key = ("ranges", name, isolation_level)
    return get_console().read(key, lambda cluster: fetch_ranges(cluster, name, isolation_level), _RANGES_TTL_S)


def fetch_ranges(cluster: Cluster, name: str, isolation_level: int = READ_UNCOMMITTED) -> Ranges:
    """Return leaders and offsets of a topic. Raises RequestError if it does not exist."""
    leaders = find_leaders(cluster, [name])
    problems = [f"partition {partition} has no leader" for (_, partition), leader in leaders.items() if leader < 0]
    first, end = fetch_log_ranges(cluster, leaders, problems)
    if not problems:
        problems += [f"partition {partition}: its leader has moved" for _, partition in leaders.keys() - end.keys()]
    if isolation_level == READ_COMMITTED:
        found = fetch_offsets(cluster, dict.fromkeys(end, LATEST), leaders, READ_COMMITTED, problems)
        end = {key: one.offset for key, one in found.items()}
    online = sorted(partition for _, partition in first.keys() & end.keys())
    return Ranges(
        {one: leaders[name, one] for one in online},
        {one: first[name, one] for one in online},
        {one: end[name, one] for one in online},
        isolation_level,
        problems,
    )


def format_positions(positions: Positions) -> str:
    """Return positions as a text in an address: `0:15,1:22`."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse_positions(text: str, ranges: Ranges) -> dict[int, int]:
    """Return the positions in an address, without those of partitions that do not exist."""
    found = {int(partition): int(offset) for partition, offset in _POSITION.findall(text)}
    return {partition: offset for partition, offset in found.items() if partition in ranges.end}


def parse_time(text: str) -> int:
    """Return the milliseconds of a time, or of a duration before now. Raises InputError."""
    try:
        time_ms = parse_time_ms(text[:_MOST_TIME_CHARACTERS])
    except ValueError as error:
        try:
            time_ms = get_console().now_ms() - parse_duration_ms(text[:_MOST_TIME_CHARACTERS])
        except ValueError:
            raise InputError(f"{error}, or a duration before now such as 90m or 2h") from None
    # Special positions of ListOffsets are negative.
    return min(max(time_ms, 0), MOST_OFFSET)


def _select_partitions(text: str, ranges: Ranges) -> list[int]:
    if not text:
        return sorted(ranges.end)
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) in ranges.end):
        raise InputError(f"there is no partition {text} that has a leader")
    return [int(text)]


def _parse_offset(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InputError(f"{text or 'an empty text'} is not an offset")
    return int(text)


def _find_time(
    cluster: Cluster, name: str, ranges: Ranges, partitions: list[int], text: str
) -> tuple[dict[int, int], dict[int, int]]:
    """Return the first offsets at or after a time, and the timestamps of the records there."""
    time_ms = parse_time(text)
    keys = {(name, one): ranges.leaders[one] for one in partitions}
    found = fetch_offsets(cluster, dict.fromkeys(keys, time_ms), keys)
    positions = {
        partition: one.offset if one.offset >= 0 else ranges.end[partition] for (_, partition), one in found.items()
    }
    return positions, {partition: one.timestamp_ms for (_, partition), one in found.items()}


def _find_record(name: str, partition: int, offset: int) -> tuple[Record, bool]:
    """Return a record, and whether it is part of a transaction. Raises RequestError if it does not exist."""

    def work(cluster: Cluster) -> tuple[Record, bool] | None:
        leaders = find_leaders(cluster, [name])
        if leaders.get((name, partition), -1) < 0:
            return None
        fetched = fetch_records(cluster, name, {partition: offset}, {partition: leaders[name, partition]})
        for one in fetched.values():
            for batch in one.iter_batches():
                try:
                    for record in one.iter_records(batch):
                        return (record, batch.header.is_transactional) if record.offset == offset else None
                except ValueError as error:
                    message = f"the batch at offset {batch.header.base_offset} cannot be decoded: {error}"
                    raise RequestError("CORRUPT_MESSAGE", f"{name}-{partition}: {message}") from None
        return None

    is_possible = partition <= MOST_PARTITION and offset <= MOST_OFFSET
    found = get_console().read_now(work) if is_possible else None
    if found is None:
        raise RequestError("OFFSET_OUT_OF_RANGE", f"{name}-{partition} has no record with offset {offset}")
    return found
