"""Odradek and Apache Kafka 4.3.0 side by side, in one run, under the same load.

    python -m benchmarks                    all rows, 5 rounds; takes about half an hour
    python -m benchmarks --quick            the rows that have targets, 3 rounds, short windows; about ten minutes
    python -m benchmarks --only requests    rows by name or by the start of it; `--list` names them
    python -m benchmarks --baseline DIR     beside another checkout of Odradek
    python -m benchmarks.profile requests-8 what one request of a row costs in Odradek, function by function
    python -m benchmarks.pipelines          pipelines beside plain PySpark, and on Odradek beside Apache Kafka

docs/benchmarks.md says how to read the table.

rows.py holds the rows and their targets, measure.py and restarts.py how each kind is measured, loader.py,
transaction_load.py and wire.py the load, brokers.py the two brokers, report.py the table. Of the broker only
odradek.testing is imported, which starts one. pipelines.py, pipeline_turns.py and pipeline_data.py are the pipelines'.
"""
