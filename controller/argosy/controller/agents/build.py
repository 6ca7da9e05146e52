"""From the configuration to an agent stage."""

from __future__ import annotations

from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.parsers import parser
from argosy.controller.agents.plan import AgentPlan, LoopSpec, check_template, plan_of
from argosy.controller.agents.setting import AgentSetting
from argosy.controller.agents.stage import AgentStage
from argosy.controller.context import RunContext
from argosy.controller.data.tokenizer import tokenizer_of
from argosy.controller.stages.rollout import RolloutStage
from argosy.types.errors import ConfigError


def build_agents(ctx: RunContext, rollout: RolloutStage) -> AgentStage | None:
    """None where the configuration has no agents. Raises ConfigError; call `close` on it at the end."""
    plan = plan_of(ctx.config)
    if plan is None:
        return None
    template = check_template(plan, ctx.config, tokenizer_of(ctx.config))
    turns = ctx.config.actor_rollout_ref.rollout.multi_turn
    setting = AgentSetting(
        turns,
        ctx.config.argosy.agents,
        template,
        parser(turns.format),
        {name: spec.build() for name, spec in plan.tools.items()},
        plan.interactions,
    )
    return AgentStage(ctx, rollout, setting, _loops(plan, setting), plan.default)


def _loops(plan: AgentPlan, setting: AgentSetting) -> dict[str, AgentLoop]:
    return {name: _loop(name, spec, setting) for name, spec in plan.loops.items()}


def _loop(name: str, spec: LoopSpec, setting: AgentSetting) -> AgentLoop:
    try:
        return spec.kind(setting, **spec.options)
    except Exception as error:
        raise ConfigError(f"the agent loop {name} can't be made: {type(error).__name__}: {error}") from error
