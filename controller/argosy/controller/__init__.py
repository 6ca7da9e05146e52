"""The controller: the loop, its stages, the ledger of samples, recovery. No torch here."""
