"""A Prometheus server for tests, which scrapes brokers."""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from compat_tests import limits, processes
from odradek.server.tests.wire import until

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="Prometheus is not installed (Debian and Ubuntu: apt-get install prometheus)",
)

_SCRAPES = 2
"""Scrapes of each target before the first query: a rate needs two samples."""


class PrometheusServer:
    """A Prometheus process that scrapes targets, from entering the context to leaving it.

    job: the name of the scrape job
    targets: the labels of each target, by its address
    relabeling: a file of docs/monitoring with `metric_relabel_configs`; empty keeps the names
    """

    def __init__(
        self, directory: Path, job: str, targets: Mapping[str, Mapping[str, str]], relabeling: str = ""
    ) -> None:
        scrape_config = {
            "job_name": job,
            "static_configs": [{"targets": [target], "labels": labels} for target, labels in targets.items()],
        }
        # JSON is YAML; the lines of the file are those of one more key of the mapping.
        text = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        text += f"rule_files: [{json.dumps(str(ALERTS))}]\nscrape_configs:\n  -\n"
        text += "".join(f"    {key}: {json.dumps(value)}\n" for key, value in scrape_config.items())
        if relabeling:
            text += re.sub("(?m)^(?=.)", "    ", (MONITORING / relabeling).read_text())
        directory.mkdir(parents=True)
        config = directory / "prometheus.yml"
        config.write_text(text)
        subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
        port = processes.lasting_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._targets = len(targets)
        self._process = processes.start(
            [
                "prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
            ]
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def await_scrapes(self) -> None:
        """Return when all targets have been scraped several times from now on."""
        now_s = time.time()
        until(lambda: self._count_scrapes(now_s) >= _SCRAPES, what="Prometheus to scrape the brokers")

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the HTTP API."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=limits.CONDITION_S) as response:
            return json.load(response)["data"]

    def query(self, query: str) -> Any:
        """Return the result of a query."""
        return self.ask("query", query=query)["result"]

    def _count_scrapes(self, since_s: float) -> int:
        """Return the number of scrapes of the target that has the fewest."""
        try:
            found = self.query("up[1m]")
        except OSError:
            return 0
        if len(found) < self._targets:
            return 0
        return min(sum(time_s > since_s and up == "1" for time_s, up in target["values"]) for target in found)
