"""Odradek: a Kafka broker in Python that Kafka's own clients, tools and Spark use unchanged."""

__version__ = "0.1.0"
