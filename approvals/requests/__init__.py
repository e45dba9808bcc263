"""Requests: a verb that somebody wants to do and others approve first."""
