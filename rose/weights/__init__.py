"""From files to parameters: checkpoints, loading and the ledger that accounts for every tensor."""
