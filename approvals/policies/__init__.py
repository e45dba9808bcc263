"""Approval policies: of which calls people are asked, whom, how many, for how long, and what follows silence."""

from approvals.policies.declared import policy

__all__ = ["policy"]
