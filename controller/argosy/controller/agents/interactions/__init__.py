"""Simulated users."""

from __future__ import annotations

from argosy.controller.agents.interactions.base import Interaction

__all__ = ["Interaction"]
