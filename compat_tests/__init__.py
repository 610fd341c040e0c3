"""Clients and tools that others wrote, run against real broker processes."""
