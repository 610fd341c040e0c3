"""The reference in docs/pipelines.md, from the declarations."""

from collections.abc import Iterable, Iterator

from odradek.properties import Property
from odradek.spark_it.definition.guarantees import HOW, HOW_BY_KIND, TransactionKind
from odradek.spark_it.definition.settings import (
    ErrorSettings,
    ExpectationSettings,
    PipelineSettings,
    RecordFormat,
    Settings,
    TestSettings,
    TransformSettings,
)
from odradek.spark_it.definition.sink_keys import SINKS, ConsoleSink, PythonSink, Sink, TopicSink
from odradek.spark_it.definition.source_keys import SOURCES, Source, TopicSource

BEGIN = "<!-- Written by `python -m odradek.spark_it reference` from the declarations; do not edit. -->"
END = "<!-- The end of what is written by it. -->"


def markdown() -> str:
    """Return the reference between its comments."""
    lines = [BEGIN, ""]
    lines += _section(PipelineSettings, "###")
    lines += _section(Source, "###", title="Every source: `[source.NAME]`")
    for kind in SOURCES.values():
        lines += _section(kind, "####", without=(Source, RecordFormat))
    lines += _section(RecordFormat, "###", title="Formats of topics", doc="Of topic sources and topic sinks.")
    lines += _section(TransformSettings, "###", title="Transforms: `[[transform]]`")
    lines += _section(ExpectationSettings, "###", title="Expectations: `[expect.X]`")
    lines += _section(Sink, "###", title="Every sink: `[sink]`")
    for sink in SINKS.values():
        lines += _section(sink, "####", without=(Sink, RecordFormat))
    lines += _section(ErrorSettings, "###", title="Errors: `[errors]`")
    lines += _section(TestSettings, "###", title="Tests: `[[test]]`")
    lines += ["### Guarantees", "", *_guarantees(), ""]
    return "\n".join([*lines, END]) + "\n"


def into(page: str) -> str:
    """Return a page with the text between the comments replaced. Raises ValueError if a comment is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no place for the reference: the lines {BEGIN} and {END}")
    return before + markdown().removesuffix("\n") + after


def _section(
    declared: type[Settings],
    level: str,
    *,
    title: str = "",
    doc: str = "",
    without: tuple[type[Settings], ...] = (),
) -> list[str]:
    left_out = {name for other in without for name in other.declared()}
    required = {prop.name for prop in declared.all_required()}
    properties = [prop for name, prop in declared.declared().items() if name not in left_out]
    about = " ".join((doc or declared.__doc__ or "").split())
    lines = [f"{level} {title or declared.title}", "", about, ""]
    if issubclass(declared, TopicSource | TopicSink):
        lines += ["Takes the keys of [formats of topics](#formats-of-topics) as well.", ""]
    rows = [*_rows(properties, required)]
    rows += [(f"`{prefix.start}*`", prefix.holds, "", "", prefix.doc) for prefix in declared.prefixes]
    if not rows:
        return lines
    lines += ["| Key | Type | Default | Allowed | What it is for |", "|---|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [*lines, ""]


def _rows(properties: Iterable[Property[object]], required: set[str]) -> Iterator[tuple[str, str, str, str, str]]:
    for prop in properties:
        default = "required" if prop.name in required else _default(prop)
        allowed = "" if prop.allowed == "not empty" else prop.allowed
        yield f"`{prop.name}`", prop.kind.name.lower(), default, allowed, prop.doc


def _default(prop: Property[object]) -> str:
    text = None if prop.default in (None, ()) else prop.format(prop.default)
    return f"`{text}`" if text else ""


def _guarantees() -> Iterator[str]:
    yield "| Sink | A row shows | How | Dead letters |"
    yield "|---|---|---|---|"
    yield (
        f"| topic, each row by itself, from one topic | exactly once | {HOW_BY_KIND[TransactionKind.OFFSETS]} "
        f"({TransactionKind.OFFSETS.value}) | exactly once, in the same transaction |"
    )
    yield (
        "| topic otherwise | exactly once, if SQL gives the same for the same rows "
        f"| {HOW_BY_KIND[TransactionKind.BATCHES]} ({TransactionKind.BATCHES.value}) "
        "| exactly once, in the same transaction |"
    )
    for name, sink in SINKS.items():
        if sink in HOW:
            level = "at least once" if issubclass(sink, ConsoleSink | PythonSink) else "exactly once"
            yield f"| {name} | {level} | {HOW[sink]} | at least once |"
