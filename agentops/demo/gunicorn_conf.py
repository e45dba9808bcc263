"""Settings of the demo's web server: `gunicorn -c python:agentops.demo.gunicorn_conf`."""

from typing import Any

from agentops.cluster.processes import die_with_parent

wsgi_app = "agentops.wsgi:application"
worker_class = "gthread"
threads = 8
graceful_timeout = 5
control_socket_disable = True


def post_fork(server: Any, worker: Any) -> None:
    """The kernel tells gunicorn's worker of its master's death; gunicorn itself would look only now and then."""
    die_with_parent(worker.ppid, may_start_thread=False)
