"""Bulks: one verb on many runs, as an object that outlives whoever started it. What it does is in `runs.services`."""
