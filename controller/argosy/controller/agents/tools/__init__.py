"""Tools: what they are (base), how files name them (load), and two that are there: calculator and Python."""

from __future__ import annotations

from argosy.controller.agents.tools.base import BaseTool, ToolResponse
from argosy.controller.agents.tools.calculator import Calculator

__all__ = ["BaseTool", "Calculator", "ToolResponse"]
