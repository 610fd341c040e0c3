"""Apache Kafka itself: its jars, its broker and its command line tools, for tests and comparisons."""
