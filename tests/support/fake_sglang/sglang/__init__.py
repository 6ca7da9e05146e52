"""Stands in for the package sglang in tests: `launch_server` speaks the server's protocol, without a model."""
