"""`manage.py benchmark`: how fast the engine is, beside the limit of the same PostgreSQL server.

Each work is a module of `works`; `workflows.py` is what they execute. No app of an installation: the command names it in
AGENTOPS_APPS of the workers that it starts, and everything happens in a scratch database that is dropped at the end.
"""
