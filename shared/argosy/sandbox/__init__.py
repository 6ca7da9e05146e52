"""A sandbox for untrusted programs. What it holds against is in docs/sandbox.md.

    our process (trusted; a reward worker, the controller's Python tool)
      └─ keeper: its own network, mounts and read-only root; never runs untrusted code      `keeper`
           └─ cell: user, pid, mount and ipc namespaces of one run                           `cell`
                └─ pid 1: private /tmp and /proc, reaps, reports how the program ended
                     └─ the program: no capabilities, seccomp, limits                        `confine`, `guest`

`runner.Sandbox` is our side of it. It needs nothing but the standard library: the keeper starts without packages.
"""
