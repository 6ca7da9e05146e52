"""An agent that a run trains: arithmetic with a calculator. Only `work` knows of Argosy: it takes tasks, tells rewards.

python agent.py RUN_FOLDER [EPISODES_AT_ONCE]
"""

import asyncio
import json
import operator
import re
import sys
from pathlib import Path
from typing import Any

import httpx
from openai import APIError, AsyncOpenAI

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
CALCULATOR: Any = {
    "name": "calculator",
    "description": "Value of an expression such as 3 - 5.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
TOOLS: Any = [{"type": "function", "function": CALCULATOR}]


def calculate(arguments: str) -> str:
    """What the model is told; a mistake is told too, so that it can do better."""
    try:
        found = re.fullmatch(r"\s*(-?\d{1,9})\s*([-+*])\s*(-?\d{1,9})\s*", json.loads(arguments)["expression"])
    except (ValueError, KeyError, TypeError):
        found = None
    return str(OPERATORS[found[2]](int(found[1]), int(found[3]))) if found else "error: want two numbers with + - or *"


async def episode(client: AsyncOpenAI, task: dict[str, Any]) -> float:
    """Answer one task in at most three turns; 1 if the last number said is the right one."""
    messages: list[Any] = list(task["messages"])
    said = ""
    for _ in range(3):
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=64)
        message: Any = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        said = message.content or ""
        for call in message.tool_calls or []:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(call.function.arguments)})
        if not message.tool_calls:
            break
    return float(re.findall(r"-?\d+", said)[-1:] == [str(task["ground_truth"])])


async def work(root: str, http: httpx.AsyncClient, client: AsyncOpenAI) -> None:
    """Episodes one after the other until the run wants no more."""
    while (taken := await http.post(f"{root}/tasks/next")).status_code != 410:
        if taken.status_code != 200:  # 204: none may begin now; 429: too many wait
            await asyncio.sleep(0.1)
            continue
        session = taken.json()
        try:
            reward = await episode(client.with_options(base_url=session["base_url"]), session["task"])
        except APIError as error:  # such as a conversation that got too long: nothing of it is trained
            print(session["id"], error, file=sys.stderr)
            await http.delete(f"{root}/sessions/{session['id']}")
        else:
            await http.post(f"{root}/sessions/{session['id']}/reward", json={"reward": reward})


async def main(run_folder: str, at_once: int) -> None:
    """Work until the run is over."""
    root = json.loads((Path(run_folder) / "openai.json").read_text())["base_url"]
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http, AsyncOpenAI(base_url=root, api_key="-") as client:
        await asyncio.gather(*(work(root, http, client) for _ in range(at_once)), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int((sys.argv[2:] or ["32"])[0])))
