"""A job that only a tool can do, for a model of 80,000 parameters.

The question is a sum of two digits. What scores is a call of the calculator with that very sum, and then its result as
the answer; a right guess without a call is worth nothing. The model has seen a few examples, most of which guess, so
it calls now and then, and often wrongly. A vocabulary of a few whole phrases makes a call six tokens long.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from support.toy import ToyJob

ROLES = ("<|user|>", "<|assistant|>", "<|tool|>")
END = "<|end|>"
CALL, DONE = '<tool_call>{"name": "calculator", "arguments": {"expression": "', '"}}</tool_call>'
SPECIAL = ("<|pad|>", "<|unk|>", *ROLES, END)
PLAIN = (*"0123456789", "+", "he", "llo", "hello")
SUMS = [(a, b) for a in range(1, 5) for b in range(1, 5)]
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REWARD = r"""
import re

CALL = re.compile(r'<tool_call>{"name": "calculator", "arguments": {"expression": "([^<]*?)"}}</tool_call>(.*)', re.S)

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    match = CALL.match(solution_str)
    right_call = match is not None and match[1] == extra_info["sum"]
    answered = right_call and match[2] == 2 * ground_truth  # what the tool said, and the answer
    return {"score": float(answered), "right_call": float(right_call)}
"""
TOOLS = """
tools:
  - class_name: argosy.controller.agents.tools.calculator.Calculator
"""
AGENTS = (
    "actor_rollout_ref.rollout.multi_turn.enable=True",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=2",
    "argosy.agents.tool_prompt=none",
)


def save_phrase_tokenizer(folder: Path) -> int:
    """Write the tokenizer; returns its size. `hello` is one token, which nothing but its text is encoded to."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate([*SPECIAL, *PLAIN])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern=Regex(r"hello|he|llo|\+|\d"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in (CALL, DONE)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", unk_token="<|unk|>", eos_token=END, model_max_length=512
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(fast)


def save_tool_model(folder: Path, seed: int = 0) -> Path:
    """A random Llama over those tokens."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=save_phrase_tokenizer(folder),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=SPECIAL.index(END),
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def show_examples(folder: Path, *, steps: int = 150, calling: float = 0.25, seed: int = 0) -> None:
    """Train the model a little on answers of which a share `calling` calls the tool; the others guess a digit."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoModelForCausalLM

    from argosy.text.tokenizer import load_tokenizer

    encode = load_tokenizer(folder).encode_rendered
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rng = random.Random(seed)
    for _ in range(steps):
        rows = []
        for _ in range(32):
            a, b = rng.choice(SUMS)
            said = f"{CALL}{a}+{b}{DONE}{END}<|tool|>{a + b}{END}<|assistant|>{a + b}{END}"
            ids = encode(f"<|user|>{a}+{b}{END}<|assistant|>")
            ids += encode(said if rng.random() < calling else f"{rng.randrange(10)}{END}")
            rows.append(ids + (0,) * (20 - len(ids)))
        batch = torch.tensor(rows)
        logits = model(batch[:, :-1]).logits
        targets = batch[:, 1:].clone()
        targets[:, :4] = 0  # the question
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.save_pretrained(folder)


def make_tool_job(folder: Path) -> ToyJob:
    """Model, data, reward function and tool file."""
    show_examples(save_tool_model(folder / "model"))
    (folder / "reward.py").write_text(REWARD)
    (folder / "tools.yaml").write_text(TOOLS)
    _write(folder / "train.jsonl", SUMS * 4)
    _write(folder / "val.jsonl", SUMS)
    return ToyJob(folder)


def _write(path: Path, sums: Sequence[tuple[int, int]]) -> None:
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{a}+{b}"}],
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index, "sum": f"{a}+{b}"},
        }
        for index, (a, b) in enumerate(sums)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
