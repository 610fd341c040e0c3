"""Broker processes that are killed repeatedly under load, and the conditions that their logs must meet afterwards."""
