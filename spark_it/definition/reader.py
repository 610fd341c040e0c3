"""Reader of a pipeline file. All mistakes are reported at once, with their line numbers."""

import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time
from pathlib import Path as FilePath
from typing import Any, TypeVar

from odradek.properties import HIDDEN, Kind, Property, PropertyError, nearest
from odradek.spark_it.definition.durations import is_instant
from odradek.spark_it.definition.expansion import ExpansionError, expand
from odradek.spark_it.definition.problems import PipelineError, Problem
from odradek.spark_it.definition.settings import (
    NAME,
    PYTHON,
    ErrorSettings,
    ExpectationSettings,
    PipelineSettings,
    Settings,
    TestSettings,
    TransformSettings,
    is_python_name,
)
from odradek.spark_it.definition.sink_keys import SINKS, Sink
from odradek.spark_it.definition.source_keys import SOURCES, Source, is_overlap
from odradek.spark_it.definition.spec import Case, Expectation, Pipeline, Row
from odradek.spark_it.definition.static_checks import find_name_problems, find_problems
from odradek.spark_it.definition.toml_lines import Path, scan_lines

SettingsT = TypeVar("SettingsT", bound=Settings)
SECTIONS = ("source", "transform", "expect", "sink", "errors", "test")
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


def load(path: FilePath, environment: Mapping[str, str]) -> Pipeline:
    """Read a pipeline from a file. Raises PipelineError, and OSError when the file cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PipelineError(str(path), [Problem(1, f"not UTF-8: {error.reason}")]) from None
    return parse(text, environment, file=str(path), folder=FilePath(os.path.normpath(path.absolute())).parent)


def parse(text: str, environment: Mapping[str, str], *, file: str, folder: FilePath) -> Pipeline:
    """Parse a pipeline; `file` is its name in messages. Raises PipelineError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PipelineError(file, [_make_syntax_problem(str(error), text)]) from None
    reader = _PipelineReader(text, environment, file, folder)
    pipeline = reader.read_pipeline(document)
    problems = reader.problems
    if not problems:
        problems = find_problems(pipeline)
    elif reader.has_all_names:
        problems += find_name_problems(pipeline)
    if problems:
        raise PipelineError(file, problems)
    return pipeline


def _make_syntax_problem(message: str, text: str) -> Problem:
    found = _AT_LINE.search(message)
    line = int(found[1]) if found else text.rstrip("\n").count("\n") + 1
    what = message[: found.start()] if found else message.removesuffix(" (at end of document)")
    if what == "Cannot overwrite a value":
        what = "a key is defined twice, or extends a key that has a value, as topics.regex extends topics"
    return Problem(line, f"not TOML: {what[:1].lower()}{what[1:]}{'' if found else ', at the end of the file'}")


class _PipelineReader:
    """Reader of TOML tables as the objects of a pipeline, which collects problems. Invalid values are left out."""

    def __init__(self, text: str, environment: Mapping[str, str], file: str, folder: FilePath) -> None:
        self.problems: list[Problem] = []
        self._lines = scan_lines(text)
        self._environment = environment
        self._file = file
        self._folder = folder
        # Values as they are written, if they have variables: messages do not contain the value of a variable, which
        # may be a password that is in the wrong place.
        self._unexpanded: dict[Path, str] = {}
        # True if every source and transform was read, so that references to them can be checked.
        self.has_all_names = False

    def read_pipeline(self, document: dict[str, Any]) -> Pipeline:
        document = self._expand(document, ())
        top = {key: value for key, value in document.items() if key not in SECTIONS}
        for name in [key for key, value in top.items() if isinstance(value, dict) and not _is_key_prefix(key)]:
            # One problem for a misspelt section, instead of one for each of its keys.
            self._add_problem((name,), _describe_unknown_key(name, {*PipelineSettings.declared(), *SECTIONS}))
            del top[name]
        pipeline = Pipeline(
            file=self._file,
            folder=self._folder,
            settings=self._read_settings(PipelineSettings, top, (), more_names=SECTIONS),
            sources=self._read_sources(document.get("source", {})),
            transforms=tuple(self._read_each(TransformSettings, "transform", document.get("transform", []))),
            expectations=tuple(self._read_expectations(document.get("expect", {}))),
            sink=self._read_sink(document.get("sink")),
            errors=self._read_settings(ErrorSettings, document.get("errors", {}), ("errors",)),
            cases=tuple(self._read_cases(document.get("test", []))),
            lines=self._lines,
        )
        declared_sources = document.get("source")
        self.has_all_names = isinstance(declared_sources, dict) and list(pipeline.sources) == list(declared_sources)
        self.has_all_names &= all(step.name and (step.sql or step.python) for step in pipeline.transforms)
        return pipeline

    def _add_problem(self, path: Path, message: str) -> None:
        section = path[0] if path and path[0] in SECTIONS else ""
        where = f"{section}.{path[1]}" if section in ("source", "expect") and len(path) > 1 else section
        self.problems.append(Problem(self._lines.find_line(path), f"{where}: {message}" if where else message))

    # Sections

    def _read_sources(self, table: Any) -> dict[str, Source]:
        sources: dict[str, Source] = {}
        if not isinstance(table, dict):
            self._add_problem(("source",), "write [source.NAME] for each source")
            return sources
        if not table:
            self._add_problem((), "there is no source; write [source.NAME]")
        for name, keys in table.items():
            path = ("source", name)
            if not isinstance(keys, dict):
                self._add_problem(path, "not a table; write [source.NAME] with a name for the source")
            elif not NAME.fullmatch(name):
                self._add_problem(path, f"{name} is not a valid name: a letter or '_', then letters, digits and '_'")
            else:
                sources[name] = self._read_connected(Source, SOURCES, keys, path)
        return sources

    def _read_sink(self, table: Any) -> Sink:
        if table is None:
            self._add_problem((), "there is no [sink]")
            return Sink()
        if not isinstance(table, dict):
            self._add_problem(("sink",), "write [sink]; a pipeline has one")
            return Sink()
        return self._read_connected(Sink, SINKS, table, ("sink",))

    def _read_connected(
        self, general: type[SettingsT], kinds: Mapping[str, type[SettingsT]], table: dict[str, Any], path: Path
    ) -> SettingsT:
        """Build a source or sink; key `connector` determines its class."""
        connector = table.get("connector")
        kind = _get_kind(connector) if isinstance(connector, str) else ""
        if kind in kinds and (kind != PYTHON or is_python_name(str(connector))):
            return self._read_settings(kinds[kind], table, path, kinds=kinds)
        written = self._unexpanded.get((*path, "connector"), connector)
        if connector is not None and not isinstance(connector, str):
            self._add_problem((*path, "connector"), f"connector is {_describe_type(connector)}; write a string")
        elif kind == PYTHON:
            self._add_problem((*path, "connector"), f"connector = {written}: write python:module.name")
        elif connector is None:
            self._add_problem(path, f"key connector is missing: {', '.join(kinds)}")
        else:
            near = nearest(kind, kinds)
            hint = f", did you mean {near}?" if near else f"; the connectors are {', '.join(kinds)}"
            self._add_problem((*path, "connector"), f"unknown connector {written}{hint}")
        # The connector is unknown, so a key is a mistake only if no connector has it.
        known = {key for one in kinds.values() for key in one.declared()}
        starts = tuple(prefix.start for one in kinds.values() for prefix in one.prefixes)
        for key, key_path, _ in _flatten(table, path):
            if key not in known and not key.startswith(starts):
                self._add_problem(key_path, _describe_unknown_key(key, known))
        return general()

    def _read_each(self, declared: type[SettingsT], section: str, tables: Any) -> Iterator[SettingsT]:
        for path, table in self._iter_tables(section, tables):
            yield self._read_settings(declared, table, path)

    def _iter_tables(self, section: str, tables: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._add_problem((section,), f"write [[{section}]] for each")
            return
        for index, table in enumerate(tables):
            yield (section, index), table

    def _read_expectations(self, table: Any) -> Iterator[Expectation]:
        if not isinstance(table, dict):
            self._add_problem(("expect",), "write [expect.NAME] with the name of a source or transform")
            return
        for target, expectations in table.items():
            if not isinstance(expectations, dict) or not all(isinstance(keys, dict) for keys in expectations.values()):
                self._add_problem(
                    ("expect", target), 'write name = { sql = "...", action = "..." } for each expectation'
                )
                continue
            for name, keys in expectations.items():
                settings = self._read_settings(ExpectationSettings, keys, ("expect", target, name))
                yield Expectation(target, name, settings)

    def _read_cases(self, tables: Any) -> Iterator[Case]:
        for path, table in self._iter_tables("test", tables):
            rest = {key: value for key, value in table.items() if key not in ("given", "expect")}
            settings = self._read_settings(TestSettings, rest, path, more_names=("given", "expect"))
            given = self._read_rows_by_name(table.get("given", {}), (*path, "given"))
            expect = table.get("expect", {})
            expect_path = (*path, "expect")
            expected: dict[str | None, tuple[Row, ...]] = {}
            if isinstance(expect, list):
                expected[None] = self._read_rows(expect, expect_path)
            else:
                expected.update(self._read_rows_by_name(expect, expect_path))
            yield Case(settings.name, given, expected, settings.dead_letters)

    def _read_rows_by_name(self, table: Any, path: Path) -> dict[str, tuple[Row, ...]]:
        if not isinstance(table, dict):
            self._add_problem(path, f"write {path[-1]}.NAME = [{{ column = value }}, ...]")
            return {}
        return {name: self._read_rows(rows, (*path, name)) for name, rows in table.items()}

    def _read_rows(self, rows: Any, path: Path) -> tuple[Row, ...]:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self._add_problem(path, "rows are written [{ column = value }, ...]")
            return ()
        return tuple(rows)

    # Tables

    def _read_settings(
        self,
        declared: type[SettingsT],
        table: Any,
        path: Path,
        *,
        kinds: Mapping[str, type[Settings]] | None = None,
        more_names: Iterable[str] = (),
    ) -> SettingsT:
        """Parse a table as `declared`. `kinds` are other classes, for hints about keys that belong to one of them."""
        if not isinstance(table, dict):
            self._add_problem(path, f"write [{'.'.join(map(str, path))}]")
            return declared()
        properties = declared.declared()
        texts: dict[str, str] = {}
        passed: dict[str, dict[str, str]] = {}
        given = set()
        for key, key_path, value in _flatten(table, path):
            given.add(key)
            prefix = next((one.start for one in declared.prefixes if key.startswith(one.start)), None)
            if key in properties:
                text = self._read_text(properties[key], value, key_path)
                if text is not None:
                    texts[key] = text
            elif prefix is not None:
                self._pass_on(passed.setdefault(prefix, {}), key.removeprefix(prefix), value, key_path)
            elif value != {} or not any(known.startswith(f"{key}.") for known in properties):
                self._add_problem(key_path, _describe_unknown_key(key, {*properties, *more_names}, kinds))
        for prop in declared.list_required():
            if prop.name not in given:
                allowed = f": {prop.allowed}" if prop.choices or prop.note else ""
                self._add_problem(path, f"key {prop.name} is missing{allowed}")
            elif texts.get(prop.name) == "":
                self._add_problem((*path, *prop.name.split(".")), f"{prop.name} must not be empty")
        settings = declared(texts)
        for prefix, values in passed.items():
            settings.passed[prefix].update(values)
        return settings

    def _read_text(self, prop: Property[Any], value: Any, path: Path) -> str | None:
        """Return the value as the text that the property parses; report a problem and return None for an invalid
        value."""
        text = _to_text(prop, value)
        if text is None:
            self._add_problem(path, f"{prop.name} is {_describe_type(value)}; write {_describe_expected(prop)}")
            return None
        try:
            prop.parse(text)
        except PropertyError as error:
            written = text
            if isinstance(value, list):
                written = ",".join(self._unexpanded.get((*path, index), one) for index, one in enumerate(value))
            elif isinstance(value, str):
                written = self._unexpanded.get(path, value)
            printed = HIDDEN if prop.sensitive else written if len(written) <= 100 else f"{written[:100]}..."
            self._add_problem(path, f"{prop.name} = {printed}: {error.allowed}")
            return None
        return text

    def _pass_on(self, passed: dict[str, str], key: str, value: Any, path: Path) -> None:
        if isinstance(value, bool):
            passed[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            passed[key] = str(value)
        else:
            self._add_problem(path, f"{_join_key(path)} is {_describe_type(value)}; write a string, number or boolean")

    def _expand(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: self._expand(below, (*path, key)) for key, below in value.items()}
        if isinstance(value, list):
            return [self._expand(below, (*path, index)) for index, below in enumerate(value)]
        if isinstance(value, str):
            try:
                expanded = expand(value, self._environment)
                if expanded != value:
                    self._unexpanded[path] = value
                return expanded
            except ExpansionError as error:
                self._add_problem(path, f"{_join_key(path)}: {error}")
        return value


def _get_kind(connector: str) -> str:
    return PYTHON if connector == PYTHON or connector.startswith(f"{PYTHON}:") else connector


def _is_key_prefix(name: str) -> bool:
    """Return whether a top-level key begins with `name.`."""
    starts = [*PipelineSettings.declared(), *(prefix.start for prefix in PipelineSettings.prefixes)]
    return any(start.startswith(f"{name}.") for start in starts)


def _join_key(path: Path) -> str:
    """Return the dotted key at a path, without its section."""
    begin = {"sink": 1, "errors": 1}.get(str(path[0]), 2) if path[0] in SECTIONS else 0
    return ".".join(map(str, path[begin:]))


def _flatten(table: dict[str, Any], path: Path) -> Iterator[tuple[str, Path, Any]]:
    """Yield dotted key, path and value of each value in a table. An empty table counts as a value."""

    def below(table: dict[str, Any], dotted: str, path: Path) -> Iterator[tuple[str, Path, Any]]:
        for key, value in table.items():
            if isinstance(value, dict) and value:
                yield from below(value, f"{dotted}{key}.", (*path, key))
            else:
                yield f"{dotted}{key}", (*path, key), value

    return below(table, "", path)


def _describe_unknown_key(key: str, known: Iterable[str], kinds: Mapping[str, type[Settings]] | None = None) -> str:
    others = [kind for kind, declared in (kinds or {}).items() if key in declared.declared()]
    if others:
        return f"unknown key {key}: it belongs to connector {' and '.join(others)}"
    known = list(known)
    after_section = key.partition(".")[2]
    near = nearest(key, known) or (after_section if after_section in known else None)
    return f"unknown key {key}" + (f", did you mean {near}?" if near else "")


def _to_text(prop: Property[Any], value: Any) -> str | None:
    """Return a TOML value as text, or None if its type is wrong for the property.

    A string is valid for every property, because a variable can only be written in a string.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower() if prop.kind is Kind.BOOLEAN else None
    if prop.kind is Kind.LIST:
        if isinstance(value, list) and all(isinstance(one, str) and "," not in one for one in value):
            return ",".join(value)
        return None
    if isinstance(value, int) and prop.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        return str(value)
    if isinstance(value, float) and prop.kind is Kind.DOUBLE:
        return str(value)
    if isinstance(value, int) and prop.check in (is_instant, is_overlap):
        return str(value)
    if isinstance(value, datetime | date) and prop.check is is_instant:
        return value.isoformat()
    return None


_KINDS = {Kind.BOOLEAN: "true or false", Kind.LIST: "a string or an array of strings", Kind.DOUBLE: "a number"}


def _describe_expected(prop: Property[Any]) -> str:
    return _KINDS.get(prop.kind, "an integer" if prop.kind in (Kind.INT, Kind.LONG) else "a string")


def _describe_type(value: Any) -> str:
    for kinds, name in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (list, "an array"),
        (dict, "a table"),
        ((date, time), "a date or time"),
    ):
        if isinstance(value, kinds):
            return name
    raise TypeError(type(value))
