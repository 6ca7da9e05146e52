"""An OpenAI-compatible endpoint in front of the rollout fleet: agents in somebody else's code train by their base URL.

    routes.py      what is served at which path              server.py       the HTTP server inside the controller
    chat.py        one call: JSON or a stream of events      guards.py       key, body size, calls at once
    parameters.py  what a call may ask for                   answers.py      what goes back, in OpenAI's shapes
    calls.py       a call becomes a sample to generate       errors.py       OpenAI's error JSON
    messages.py    chat messages, compared and templated     streaming.py    text as it comes
    sessions.py    a trajectory: exact tokens, branches      tasks.py        groups of sessions, admitted and finished
    source.py      finished groups go to training

Nothing that a policy sampled is encoded again: a call that continues its session's conversation goes on from the very
token ids of it (case C3).
"""
