"""Tests of client telemetry."""
