"""A sandbox for untrusted programs, and the verdict on them. What it holds against is in docs/sandbox.md.

    worker process (trusted, sees the expected outputs)
      └─ keeper: its own network, mounts and read-only root; never runs untrusted code      `keeper`
           └─ cell: user, pid, mount and ipc namespaces of one run                           `cell`
                └─ pid 1: private /tmp and /proc, reaps, reports how the program ended
                     └─ the program: no capabilities, seccomp, limits                        `confine`, `guest`

`runner` is the worker's side of it; `judge` compares what a program printed or claimed with what was expected.
"""
