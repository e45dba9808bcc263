"""The outside world for demo, tests and chaos: a provider with a ledger of its own.

Nothing here imports Django's models or its database, so that killing PostgreSQL never touches what the
outside world remembers. `docs/sandbox.md` documents requests and answers.
"""
