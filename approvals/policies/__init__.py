"""Approval policies: of which calls people are asked, whom, how many, for how long, and what follows silence."""
