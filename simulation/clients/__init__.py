"""Simulated producers and consumers. They behave as Kafka's own clients do, and note what they did in a History."""
