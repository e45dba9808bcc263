"""Support bundles: a run written down for others, and executed again from what was written."""
