"""`argosy reward`: try the scorers, and check servers of rewards."""

from __future__ import annotations

import argparse
import importlib

SUBCOMMANDS: tuple[str, ...] = ("reward_try", "reward_check")
"""Modules of `argosy.cli` that each add one subcommand, in the order of `--help`."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command with its subcommands."""
    parser = subparsers.add_parser("reward", help="try scorers, and check a server of rewards")
    commands = parser.add_subparsers(dest="reward_command", required=True, metavar="COMMAND")
    for name in SUBCOMMANDS:
        importlib.import_module(f"argosy.cli.{name}").add_parser(commands)
