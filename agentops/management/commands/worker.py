"""`manage.py worker`: executes runs and ordinary django-q2 tasks."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

import structlog
from django.conf import settings
from django.core.checks import Tags
from django.core.management.base import BaseCommand, CommandParser
from django.db import OperationalError, connection

if TYPE_CHECKING:
    from agentops.cluster.options import ClusterOptions

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = (
        "Executes runs and ordinary tasks until it is stopped. SIGTERM or Ctrl-C drains: nothing new is claimed, "
        "running steps get the grace time. Exits with 1 when it ended unasked, for a supervisor to act on."
    )

    # All that a worker depends on; the others would import every page of the console.
    requires_system_checks = (Tags.models, Tags.security, "workflows")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            type=_queue_name,
            help="take work from this queue; may be given more than once "
            "(default: AGENTOPS_WORKER_QUEUES, separated by commas, or the queue named default)",
        )
        parser.add_argument(
            "--processes",
            type=_positive,
            metavar="N",
            default=settings.AGENTOPS_WORKER_PROCESSES,
            help="worker processes (default: AGENTOPS_WORKER_PROCESSES, or 2; now %(default)s)",
        )
        parser.add_argument(
            "--slots",
            type=_positive,
            metavar="M",
            default=settings.AGENTOPS_WORKER_SLOTS,
            help="runs that a process executes at a time (default: AGENTOPS_WORKER_SLOTS, or 16; now %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        # Only now: they import django-q2's configuration and the engine, which `--help` can do without.
        from agentops.cluster.cluster import WorkerCluster
        from agentops.cluster.options import ClusterOptions
        from runs.engine import code, leases
        from runs.engine.worker import RunWorker

        queues = options["queues"] or settings.AGENTOPS_WORKER_QUEUES
        cluster_options = ClusterOptions(
            queues=tuple(dict.fromkeys(queues)),
            processes=options["processes"],
            slots=options["slots"],
            grace_s=settings.AGENTOPS_GRACE_SECONDS,
        )
        _warm_up_database()
        code.version()  # looks through what is installed: once, and not in each process that is forked
        cluster = WorkerCluster(cluster_options, make_run_execution=RunWorker, leases=leases)
        cluster.start()
        if cluster.wait_until_ready():
            self.stdout.write(ready_line(cluster_options))
            self.stdout.flush()
        sys.exit(cluster.wait_until_ended())


def _queue_name(text: str) -> str:
    if not (name := text.strip()):
        raise argparse.ArgumentTypeError("a queue needs a name")
    return name


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small: 1 or more")
    return number


def _warm_up_database() -> None:
    """Connect once in this process: it starts an embedded server, which belongs to main rather than to a child."""
    try:
        connection.ensure_connection()
    except OperationalError as error:
        log.warning("the database does not answer yet; workers go on trying", error=str(error).strip())
    finally:
        connection.close()


def ready_line(options: "ClusterOptions") -> str:
    """What the command prints when all its processes are ready for work."""
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    slots = "1 slot" if options.slots == 1 else f"{options.slots} slots"
    return f"worker ready: {processes} × {slots}, queues {', '.join(options.queues)}"
