"""Parents and child runs."""
