"""Case H2: a value arrives unchanged, or the message shows how to quote it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.config import load
from argosy.config.arguments import parse_argument
from argosy.config.convert import get_value
from argosy.types.errors import ConfigError

PATH = "actor_rollout_ref.model.path"
FILES = "data.train_files"
LR = "actor_rollout_ref.actor.optim.lr"


def value_of(override: str) -> Any:
    return get_value(load([override]), override.partition("=")[0].lstrip("+"))


@pytest.mark.parametrize(
    "text",
    [
        "/tmp/a=b/step=3",
        "/a path/with spaces",
        "/a#b",
        "#1",
        "a:b",
        "C:\\models\\x=1",
        "-foo",
        "--foo=bar",
        "-1",
        "1e-6",
        "007",
        "1_000",
        "true",
        "inf",
        "~/models",
        "a(b)",
        "choice(a=1)",
        "a[0]",
        "x{y}",
        "naïve/模型",
        "a!b;c&d<e>f^g",
        "it's",
        'say "hi"=',
        "ends with \\",
        "=",
        "*.parquet",
        "user@host",
        "",
        "two\nlines",
    ],
)
def test_h2_text_arrives_unchanged(text: str) -> None:
    assert value_of(f"{PATH}={text}") == text


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20))
@settings(max_examples=300, deadline=None)
def test_h2_any_text_arrives_unchanged_or_the_message_names_the_key(text: str) -> None:
    """Hydra's own grammar takes outer blanks away and gives backslashes and `${` a meaning: not generated here."""
    if text != text.strip() or "\\" in text or "${" in text:
        return
    try:
        argument = parse_argument(f"{PATH}={text}")
    except ConfigError as error:
        message = error.message
    else:
        again = OverridesParser.create().parse_override(f"{PATH}={argument.value_text}").value()
        assert argument.value == again
        if isinstance(again, str):
            assert again == (text[1:-1] if text[0] in "\"'" else text)
            return
        message = f"{PATH}: null, a list or a mapping, which the field's type refuses"
        assert text[0] in "[{" or text.lower() == "null"
    assert PATH in message


@pytest.mark.parametrize("text", ["a,b", "[a", "{a", "${b", '"a', "None", "a, b=c", "1e-6", "null", "#,="])
def test_h2_quoted_text_arrives_unchanged(text: str) -> None:
    quoted = text.replace('"', '\\"').replace("${", "\\${")
    assert value_of(f'{PATH}="{quoted}"') == text


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("trainer.experiment_name=a,b", """'trainer.experiment_name="a,b"'"""),
        ("data.train_files=a,b", "data.train_files=[a,b]"),
        ("data.train_files=[a=b]", """'data.train_files=["a=b","""),
        ('trainer.experiment_name="open', """'trainer.experiment_name="open"'"""),
        (f"{PATH}=None", "Write null for no value"),
        (f"{FILES}=[a,None]", "Write null for no value"),
        (f"{PATH}=[a,b]", "wants text"),
        (f"{LR}='1e-6'", "leave out the quotes"),
        (f"{FILES}=[1,b]", """quote it to make it text: '"1"'"""),
        ("--trainer.nnodes=1", "trainer.nnodes=…"),
        ("-x", "without leading dashes"),
        ("trainer.nnodes", "trainer.nnodes=…"),
        ("trainer.nnodes =1", "no spaces"),
        ("=1", "wants key=value"),
        ("data.seed=choice(1,2)", "got several values"),
        ("data.seed=range(1,3)", "got several values"),
        ("algorithm@x=1", "config groups"),
        ("algorithm/a=b", "config groups"),
        ("data.seed=???", "data.seed"),
        (f"{PATH}=${{nope.x}}", "nope.x"),
        (f"{PATH}=${{oc.env:ARGOSY_NO_SUCH_VARIABLE}}", "ARGOSY_NO_SUCH_VARIABLE"),
    ],
)
def test_h2_message_shows_what_to_write(override: str, shown: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([override])
    assert shown in caught.value.message
    assert "antlr" not in caught.value.message.lower()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (f"{FILES}=[a.parquet,b.parquet]", ("a.parquet", "b.parquet")),
        (f"{FILES}=['a.parquet', \"b,c.parquet\"]", ("a.parquet", "b,c.parquet")),
        (f"{FILES}=/tmp/a=b.parquet", ("/tmp/a=b.parquet",)),
        (f"{FILES}=[]", ()),
        ("trainer.logger=['console','wandb']", ("console", "wandb")),
        ("trainer.logger=console", ("console",)),
        ("data.seed=null", None),
        ("data.seed=NULL", None),
        ("+data.seed=3", 3),
        ("++data.seed=3", 3),
        (f"{LR}=1e-6", 1e-6),
        (f"{LR}=5", 5.0),
        ("data.train_batch_size=8.0", 8),
        ("data.shuffle=False", False),
        ("data.shuffle=TRUE", True),
        ("actor_rollout_ref.actor.optim.betas=[0.9,0.95]", (0.9, 0.95)),
        ("data.apply_chat_template_kwargs={enable_thinking: false}", {"enable_thinking": False}),
    ],
)
def test_h2_typed_values(override: str, expected: object) -> None:
    value = value_of(override)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (f"{LR}=abc", "a number, got the text 'abc'"),
        (f"{LR}=null", "a number, got null"),
        (f"{LR}=true", "a number, got true"),
        ("data.train_batch_size=8.5", "a whole number, got 8.5"),
        ("data.train_batch_size=8k", "a whole number, got the text '8k'"),
        ("data.shuffle=0", "true or false, got 0"),
        ("data.shuffle=yes", "true or false, got the text 'yes'"),
        (f"{PATH}=null", "text, got null"),
        (f"{FILES}=null", "a list such as [a,b], got null"),
        ("custom_reward_function.reward_kwargs=3", "a mapping such as {name: value}, got 3"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "2 values, got 1"),
    ],
)
def test_h2_wrong_type_is_refused_with_the_full_path(override: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load([override])
    assert caught.value.message.startswith(f"{override.partition('=')[0]}: wants {wanted}")


def test_h2_free_mappings_take_any_key() -> None:
    config = load(
        [
            "+custom_reward_function.reward_kwargs.weight=1e-6",
            "custom_reward_function.reward_kwargs.names=[a]",
            "+reward.custom_reward_function.reward_kwargs.deep.er=text",
        ]
    )
    assert config.custom_reward_function.reward_kwargs == {"weight": 1e-6, "names": ["a"], "deep": {"er": "text"}}


def test_h2_through_a_real_shell() -> None:
    """What the documentation says to type, typed."""
    program = (
        "import sys, json\n"
        "from argosy.config import load\n"
        "c = load(sys.argv[1:])\n"
        "print(json.dumps([c.actor_rollout_ref.model.path, c.trainer.experiment_name, list(c.data.train_files),"
        " c.actor_rollout_ref.actor.optim.lr, c.trainer.default_local_dir]))"
    )
    typed = (
        """actor_rollout_ref.model.path=/tmp/a=b/step=3 'trainer.experiment_name="a,b"' """
        """'data.train_files=["a=b.parquet",c.parquet]' actor_rollout_ref.actor.optim.lr="1e-6" """
        """'trainer.default_local_dir=/data/my runs/#1'"""
    )
    command = f"{sys.executable} -c '{program}' {typed}"
    answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(answer.stdout) == [
        "/tmp/a=b/step=3",
        "a,b",
        ["a=b.parquet", "c.parquet"],
        1e-6,
        "/data/my runs/#1",
    ]
