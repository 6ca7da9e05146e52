"""Collective transfers of weights that vLLM's first worker receives, by vLLM's own weight-transfer calls."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from argosy.types.errors import DeadlineError, UnavailableError

_LOOK_S = (0.002, 0.05)
"""Between two looks at whether all is there: at first, and at most. Each takes a turn of vLLM's scheduler."""
_STOP_S = 1.0


async def receive_in_worker(llm: Any, command: dict[str, Any], deadline_s: float) -> dict[str, Any]:
    """Have the first worker join the command's group and fill its memory. Samples go on meanwhile.

    Raises:
        DeadlineError: `deadline_s` seconds have passed, also where vLLM itself does not answer.
        UnavailableError: the sender or vLLM's process died.
    """
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
    from vllm.v1.engine.exceptions import EngineDeadError

    answer: dict[str, Any] | None = None
    try:
        async with asyncio.timeout(deadline_s):
            await llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info={"command": command}))
            pause_s, most_s = _LOOK_S
            while answer is None:
                await asyncio.sleep(pause_s)
                pause_s = min(most_s, pause_s * 1.5)
                answer = (await llm.collective_rpc("argosy_received"))[0]
    except TimeoutError as error:
        raise DeadlineError(f"vLLM's worker has not received the weights within {deadline_s:g} s") from error
    except EngineDeadError as error:
        raise UnavailableError(f"vLLM has died while its worker received weights: {error}") from error
    finally:
        if answer is None and not llm.errored:
            with contextlib.suppress(Exception):  # what is being raised says more
                await asyncio.wait_for(llm.collective_rpc("argosy_stop_receiving"), _STOP_S)
    if "error" in answer:
        raise UnavailableError(f"a weight transfer to vLLM's worker failed: {answer['error']}")
    return answer
