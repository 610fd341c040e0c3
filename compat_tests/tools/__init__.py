"""The command line of Odradek against real brokers, compared with Apache Kafka's own tools."""
