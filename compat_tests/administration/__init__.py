"""Administration of a broker by Apache Kafka's tools, compared with Apache Kafka."""
