"""The works. Each takes the bench and returns its figures."""
