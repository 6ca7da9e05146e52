"""Agents: samples with several turns, tools and simulated users (docs/agents.md).

stage.py         the same calls as the rollout stage has; one sample after another is led by its loop
plan.py          from the configuration: which loops, tools and users there are; checked before any process starts
episode.py       one sample's conversation as token ids: what a loop works with
template.py      the chat template's tokens for what follows a turn, without encoding the turn again
loops/           single turn, tools; the base class of your own
parsers/         how models write calls
tools/           the base class, tool files, bounded calls; calculator and Python
interactions/    simulated users
"""
