"""DAPO's soft overlong punishment: an answer that nearly runs out of room loses reward, gradually.

Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", arXiv:2503.14476, eq. 13: with
L_max = max_resp_len and L_cache = buffer_len,

    R_length(y) = 0                                    where |y| ≤ L_max − L_cache
                  ((L_max − L_cache) − |y|) / L_cache    where L_max − L_cache < |y| ≤ L_max
                  −1                                   where L_max < |y|

times `penalty_factor`. verl leaves out the third case, so its penalty goes on falling below −penalty_factor; no answer
is longer than max_resp_len unless that key is set below the length that rollout allows, and then we follow the paper.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from argosy.types.errors import ConfigError


def overlong_penalty(
    lengths: npt.ArrayLike, max_resp_len: int, buffer_len: int, penalty_factor: float
) -> npt.NDArray[np.float64]:
    """What to add to the reward of responses of `lengths` [B] tokens, float64 [B], in [−penalty_factor, 0].

    Raises ConfigError when the buffer is not in 1…max_resp_len or the factor is negative.

    >>> overlong_penalty([70, 80, 90, 100], max_resp_len=100, buffer_len=20, penalty_factor=1.0).tolist()
    [0.0, 0.0, -0.5, -1.0]
    """
    if not 1 <= buffer_len <= max_resp_len:
        raise ConfigError(
            f"overlong_buffer_cfg.len: got {buffer_len}, must be between 1 and max_resp_len ({max_resp_len} tokens)"
        )
    if not penalty_factor >= 0:
        raise ConfigError(f"overlong_buffer_cfg.penalty_factor: got {penalty_factor}, must not be negative")
    excess = np.asarray(lengths, np.float64) - (max_resp_len - buffer_len)  # [B] tokens into the buffer
    return np.asarray(-penalty_factor * np.clip(excess / buffer_len, 0.0, 1.0) + 0.0, np.float64)
