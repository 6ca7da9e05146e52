"""Engines of the rollout service, one subpackage each."""
