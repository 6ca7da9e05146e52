"""Traces and logs of a process."""
