"""`manage.py chaos`: a load of runs in real processes, real faults, and a judge that compares two ledgers (docs/chaos.md).

What happened is read from the outside world's own ledger, what should have happened from the operations in the database;
nothing that the engine says about itself decides.
"""
