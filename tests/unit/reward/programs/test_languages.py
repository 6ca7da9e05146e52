"""Other languages, with the same isolation; and what is said where one isn't there."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from argosy.reward.verifiers.code import CodeVerifier
from argosy.sandbox import languages
from argosy.types.records import Failed, Scored

Run = Callable[..., Scored]
ADD = {"inputs": ["1 2\n", "5 6\n"], "outputs": ["3\n", "11\n"]}
ALL = ("python", "cpp", "javascript", "bash")
RIGHT = {
    "cpp": "#include <iostream>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b; }",
    "javascript": "const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number)\nconsole.log(a + b)",
    "bash": "read a b\necho $((a + b))",
}
ESCAPES = {
    "cpp": """#include <cstdio>
#include <sys/socket.h>
#include <sys/ptrace.h>
#include <fstream>
int main() {
  std::ofstream out("/usr/x"); std::ifstream in("/etc/shadow");
  printf("%d %d %d %d", socket(AF_INET, SOCK_STREAM, 0), (int)ptrace(PTRACE_TRACEME, 0, 0, 0), out.good(), in.good());
}""",
    "javascript": """
const fs = require('fs')
const attempts = [() => fs.writeFileSync('/usr/x', ''), () => fs.readFileSync('/etc/shadow')]
const tried = attempts.map(f => { try { f(); return 1 } catch { return 0 } })
const socket = require('net').connect(22, '127.0.0.1')
socket.on('error', () => console.log(-1, -1, ...tried)).on('connect', () => console.log('in'))
""",
    "bash": "x=0; y=0; (echo > /usr/x) 2>/dev/null && x=1; (cat /etc/shadow) 2>/dev/null && y=1; "
    "(exec 3<>/dev/tcp/127.0.0.1/22) 2>/dev/null && echo in; echo -1 -1 $x $y",
}
BY_NAME = {
    "cpp": """#include <cstdio>
#include <fstream>
int main() {
  long a, b; std::ifstream in("/dev/stdin"); in >> a;
  if (!freopen("/proc/self/fd/0", "r", stdin) || !freopen("/dev/stdout", "w", stdout)) return 1;
  b = 0; (void)!scanf("%ld", &b); printf("%ld", a);
}""",
    "javascript": "const fs = require('fs')\nfs.writeFileSync('/dev/stdout', fs.readFileSync('/dev/stdin', 'utf8'))",
    "bash": "x=$(cat /dev/stdin)\necho note >/dev/stderr\necho $x >/dev/stdout",
}
CHILDREN = {
    "javascript": "console.log(require('child_process').execSync('cat', {stdio: ['inherit', 'pipe', 2]}).toString())",
    "bash": "for i in {1..100}; do /bin/true & done\nwait\ncat",
}
"""Node and bash hear of their children by SIGCHLD, which other programs may not change."""
TAGS = {"cpp": "cpp", "javascript": "js", "bash": "sh"}


def fenced(language: str, code: str) -> str:
    return f"```{TAGS[language]}\n{code}\n```"


@pytest.fixture(params=["cpp", "javascript", "bash"])
def language(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    for command in languages.LANGUAGES[name].needs:
        if shutil.which(command, path="/usr/local/bin:/usr/bin:/bin") is None:
            pytest.skip(f"{command} isn't installed")
    return name


def test_right_and_isolated(run: Run, language: str) -> None:
    options = {"languages": ALL, "sample_timeout_s": 60.0, "test_timeout_s": 20.0}
    assert run(fenced(language, RIGHT[language]), ADD | {"language": language}, **options).score == 1.0
    escapes = {"inputs": [""], "outputs": ["-1 -1 0 0"]}
    outcome = run(fenced(language, ESCAPES[language]), escapes, extra={"language": TAGS[language]}, **options)
    assert outcome.score == 1.0, outcome


def test_input_and_output_by_name(run: Run, language: str) -> None:
    """Whoever made the pipes: a service that is root makes them as root."""
    options = {"languages": ALL, "sample_timeout_s": 60.0, "test_timeout_s": 20.0}
    outcome = run(
        fenced(language, BY_NAME[language]), {"inputs": ["7"], "outputs": ["7"], "language": language}, **options
    )
    assert outcome.score == 1.0, outcome


@pytest.mark.parametrize("language", CHILDREN, indirect=True)
def test_programs_of_children(run: Run, language: str) -> None:
    """Without the signal Node waits for ever, and bash for seconds."""
    options = {"languages": ALL, "sample_timeout_s": 2.0, "test_timeout_s": 2.0}
    tests = {"inputs": ["7"], "outputs": ["7"], "language": language}
    assert run(fenced(language, CHILDREN[language]), tests, **options).score == 1.0


def test_what_does_not_compile(run: Run) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ isn't installed")
    outcome = run(
        "```cpp\nint main() { return x; }\n```", ADD | {"language": "c++"}, languages=ALL, sample_timeout_s=60.0
    )
    assert (outcome.score, outcome.parts["reason"]) == (0.0, "compile_error")
    assert "x" in str(outcome.parts["note"])


def test_a_language_that_is_not_allowed_or_not_there(
    make_verifier: Callable[..., CodeVerifier], monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = make_verifier()
    outcome = allowed.verify(fenced("cpp", RIGHT["cpp"]), ADD | {"language": "cpp"}, {})
    assert isinstance(outcome, Failed)
    assert (outcome.reason, "argosy.reward.sandbox.languages" in outcome.message) == ("language_unavailable", True)
    monkeypatch.setattr(shutil, "which", lambda *_a, **_k: None)
    outcome = make_verifier(languages=ALL).verify(fenced("cpp", RIGHT["cpp"]), ADD | {"language": "cpp"}, {})
    assert isinstance(outcome, Failed)
    assert (outcome.reason, "needs g++, which isn't installed" in outcome.message) == ("language_unavailable", True)
    calls = {"fn_name": "f", "inputs": [[1]], "outputs": [1], "language": "bash"}
    outcome = make_verifier(languages=ALL).verify(fenced("bash", RIGHT["bash"]), calls, {})
    assert isinstance(outcome, Failed)
    assert "call-based tests are for Python" in outcome.message
