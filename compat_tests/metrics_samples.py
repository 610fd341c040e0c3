"""Metrics as Prometheus reads them."""

import re
import urllib.error
import urllib.request
from collections import defaultdict
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from compat_tests import limits


class Scrape(NamedTuple):
    """The samples of one scrape: values by name and by labels, and the type of each name."""

    values: dict[str, dict[tuple[tuple[str, str], ...], float]]
    types: dict[str, str]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of one sample. Raises KeyError if there is none."""
        return self.values[name][tuple(sorted(labels.items()))]

    def label_names(self, name: str) -> set[frozenset[str]]:
        """Return the sets of labels that the samples of a name have."""
        return {frozenset(key for key, _ in labels) for labels in self.values[name]}


def scrape(url: str) -> Scrape:
    """Return the metrics that an HTTP server shows."""
    with urllib.request.urlopen(url, timeout=limits.CONDITION_S) as response:
        return parse(response.read().decode())


def parse(text: str) -> Scrape:
    """Return the metrics in a text."""
    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    types = {}
    names = set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The parser appends a suffix to the names of counters without it.
            name = sample.name if sample.name in names else sample.name.removesuffix("_total")
            types[name] = family.type
            values[name][tuple(sorted(sample.labels.items()))] = sample.value
    return Scrape(dict(values), types)


def get_status(url: str) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
