"""Process groups that are made for one transfer, in a process of their own that can be killed (ADR 19).

    parent (trainer, rollout server)                     worker: python -m argosy.weightsync.collective.worker
      Worker.call({"op": "open" | "send" | "receive"})  →  maps the parent's buffer, joins the group, moves buckets
      deadline, cancel                                  →  SIGKILL: nothing of the group is left

`worker` is the program, `joining` how its ends find each other, `groups` its process groups, `process` the parent's
handle on it.
"""
