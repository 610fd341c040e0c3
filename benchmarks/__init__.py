"""Odradek and Apache Kafka 4.3.0 side by side, in one run, under the same load.

    python -m benchmarks                    all rows, 5 rounds; takes about half an hour
    python -m benchmarks --quick            the rows that have targets, 3 rounds, short windows; about ten minutes
    python -m benchmarks --only requests    rows by name or by a prefix of it; `--list` prints the names
    python -m benchmarks --baseline DIR     beside another checkout of Odradek
    python -m benchmarks.profile requests-8 the cost of one request of a row in Odradek, function by function
    python -m benchmarks.tools              the command line beside kcat, and the console
    python -m benchmarks.cluster            clusters of three brokers
    python -m benchmarks.scale pages        the console with few and with many topics; also `commands` and `scrapes`
    python -m benchmarks.pipelines          pipelines beside plain PySpark, and on Odradek beside Apache Kafka

docs/benchmarks.md explains the table.

rows.py has the rows and their targets, measure.py and restarts.py the measurement of each kind, loader.py,
consume_load.py, paced_load.py, transaction_load.py and wire.py the load, brokers.py the two brokers, turns.py the order
of the measurements, report.py the table. cluster/ is for clusters of three brokers, fairness/ for the delays of
other clients, scale/ for pages, commands and scrapes of metrics with many topics.
pipelines.py, pipeline_turns.py and pipeline_data.py are for the pipelines, tools.py for the command line and the
console. Of Odradek only odradek.testing and odradek.testing_cluster are imported, which start brokers, and
odradek.spark_it for the pipelines.
"""
