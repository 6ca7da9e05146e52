"""Who is in the fleet, who leads a run, and the run's small shared state.

`Membership` is the interface; `EtcdMembership` keeps it in etcd (real leases), `MemoryMembership` in one process.
"""

from argosy.membership.interface import Leadership, Membership, Registration, StateValue

__all__ = ["Leadership", "Membership", "Registration", "StateValue"]
