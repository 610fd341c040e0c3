"""Alert rules, evaluated by promtool on made-up series."""

import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[1] / "docs" / "monitoring" / "alerts.yml"

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian and Ubuntu: apt-get install prometheus)"
)


def evaluate(tmp_path: Path, tests: str) -> None:
    """Run the unit tests of rules."""
    file = tmp_path / "tests.yml"
    file.write_text(f"rule_files: [{RULES}]\nevaluation_interval: 1m\ntests:\n{tests}")
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_reader_that_stopped_but_none_that_read_once(tmp_path):
    evaluate(
        tmp_path,
        """
  - interval: 1m
    input_series:
      - series: 'odradek_reader_lag{client_id="regular", topic="t", partition="0"}'
        values: '0+0x60 5+0x120'
      - series: 'odradek_reader_last_fetch_timestamp_seconds{client_id="regular", topic="t", partition="0"}'
        values: '0+60x60 3600+0x120'
      - series: 'odradek_reader_lag{client_id="once", topic="t", partition="0"}'
        values: '5+0x180'
      - series: 'odradek_reader_last_fetch_timestamp_seconds{client_id="once", topic="t", partition="0"}'
        values: '60+0x180'
    alert_rule_test:
      - eval_time: 1h30m
        alertname: KafkaReaderStopped
        exp_alerts: []
      - eval_time: 2h30m
        alertname: KafkaReaderStopped
        exp_alerts:
          - exp_labels: {severity: warning, client_id: regular, topic: t, partition: "0"}
            exp_annotations:
              summary: "regular has not read t-0 for an hour; 5 records wait."
              action: "Look whether the reader, for example a Spark query, still runs."
""",
    )
