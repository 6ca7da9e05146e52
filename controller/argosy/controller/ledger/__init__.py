"""The ledger accounts for every sample: drawn, dispatched, completed, scored, and then trained at step s, used as a
baseline, or dropped and why (docs/ledger.md).

`Ledger` is the live books of one controller term; what a step finished goes to an immutable, checksummed segment in
the run folder, from which a successor on another machine can go on.
"""

from argosy.controller.ledger.books import Ledger
from argosy.controller.ledger.closing import LedgerError
from argosy.controller.ledger.entry import FINAL_STATES, OPEN_STATES, Entry
from argosy.controller.ledger.segments import LedgerCut, load_segment, read_segment, rewind, segment_path, steps_in

__all__ = [
    "FINAL_STATES",
    "OPEN_STATES",
    "Entry",
    "Ledger",
    "LedgerCut",
    "LedgerError",
    "load_segment",
    "read_segment",
    "rewind",
    "segment_path",
    "steps_in",
]
