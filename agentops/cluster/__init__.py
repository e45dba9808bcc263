"""The worker cluster: django-q2's Cluster and Sentinel, supervising processes that also execute runs.

    main ── sentinel ─┬─ worker (ordinary tasks in its main thread, runs in its other threads)
                      └─ worker …

Main waits, the sentinel starts, guards and reaps, the workers work. A task or a run goes from PostgreSQL to
the worker and its result back, without a pusher, a monitor or a queue in between: in django-q2's own cluster
a `kill -9` of any process that holds the lock of a shared queue stops the cluster for ever.
"""
