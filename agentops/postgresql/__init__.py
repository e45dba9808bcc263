"""Django's PostgreSQL backend, with a role that a pool can assume."""
