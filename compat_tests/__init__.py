"""Third-party clients and tools, run against real broker processes."""
