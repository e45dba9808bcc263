"""`python -m agentops.sandbox`, which `manage.py sandbox` is as well.

It loads no app of Django, so that it starts at once, whatever the state of the other apps and the database.
"""

import json
import os
import signal
import sys
import threading
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from agentops import env
from agentops.sandbox.faults import Rates, UnknownFault, rates_from
from agentops.sandbox.ledger import LedgerUnusable
from agentops.sandbox.server import CannotStart, Options, Sandbox
from agentops.sandbox.webhooks import BadTarget

_PROJECT = Path(__file__).resolve().parents[2]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 65536):
        raise ArgumentTypeError(f"{text} is no port: give a number from 0 (any) to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= 86400:
        raise ArgumentTypeError(f"{text} is no number of seconds from 0 to 86400")
    return seconds


def _rates(text: str) -> tuple[Rates, ...]:
    try:
        plans = json.loads(text)
        return tuple(rates_from(plan) for plan in (plans if isinstance(plans, list) else [plans]))
    except UnknownFault as error:
        raise ArgumentTypeError(str(error)) from error
    except (ValueError, AttributeError) as error:
        raise ArgumentTypeError('give JSON such as {"503": 0.1, "timeout_after": 0.05, "seed": 7}') from error


def add_arguments(parser: ArgumentParser) -> None:
    """Describe the options to a parser."""
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine to listen on")
    parser.add_argument("--port", type=_port, default=8025, help="HTTP port (0 = any)")
    parser.add_argument("--smtp-port", type=_port, default=8026, help="SMTP port (0 = any)")
    parser.add_argument(
        "--data", type=Path, help="folder of the ledger (default: sandbox in the data folder)"
    )
    parser.add_argument("--webhook-url", help="where webhooks go; kept until another is given")
    parser.add_argument(
        "--webhook-secret",
        help="signs webhooks; AGENTOPS_WEBHOOK_SECRET keeps it out of the list of processes",
    )
    parser.add_argument(
        "--settle-delay", type=_seconds, default=2.0, help="seconds from a refund to its webhook"
    )
    parser.add_argument(
        "--faults", type=_rates, default=(), help="JSON: {fault: probability, endpoint?, seed?}"
    )


def serve(options: Namespace) -> None:
    """Print one line of JSON (urls, data folder, process id), then serve until SIGTERM or Ctrl-C.

    Raises CannotStart, LedgerUnusable or BadTarget, each with one sentence.
    """
    data_dir = Path(env.text("AGENTOPS_DATA_DIR", str(_PROJECT / ".data"))).expanduser()
    sandbox = Sandbox(
        Options(
            data=(options.data or data_dir / "sandbox").absolute(),
            host=options.host,
            port=options.port,
            smtp_port=options.smtp_port,
            webhook_url=options.webhook_url,
            webhook_secret=options.webhook_secret or env.secret("AGENTOPS_WEBHOOK_SECRET"),
            settle_delay_s=options.settle_delay,
            rates=options.faults,
        )
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    sandbox.start()
    facts = {"url": sandbox.url, "smtp": sandbox.smtp, "data": str(sandbox.data), "pid": os.getpid()}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    stop.wait()
    sandbox.stop()


def main(arguments: list[str]) -> int:
    """Run with command-line arguments; returns the exit code."""
    parser = ArgumentParser(
        "sandbox", description="An invented provider over HTTP and SMTP (docs/sandbox.md)."
    )
    add_arguments(parser)
    try:
        serve(parser.parse_args(arguments))
    except (CannotStart, LedgerUnusable, BadTarget, ImproperlyConfigured) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
