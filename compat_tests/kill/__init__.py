"""Broker processes killed again and again under load, and what must hold of their logs afterwards."""
