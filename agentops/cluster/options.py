"""What a cluster is started with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Size and manner of one cluster."""

    queues: tuple[str, ...] = ("default",)
    processes: int = 2
    """Worker processes."""
    slots: int = 16
    """Runs that one worker process executes at a time."""
    grace_s: float = 30.0
    """Seconds that running steps and tasks get to finish when the cluster is asked to stop."""
