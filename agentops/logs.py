"""Logging: structlog renders the lines of this project and of all libraries alike, to standard error."""

from typing import Any

import structlog
from structlog.types import EventDict, Processor

# What every line of this process says about it, such as the id of a worker. Threads have structlog's context variables
# each for itself; this they share.
process_fields: dict[str, str] = {}


def _add_process_fields(logger: Any, method_name: str, event_dict: EventDict) -> EventDict:
    return {**process_fields, **event_dict}


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_process_fields,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def configuration(*, level: str, as_json: bool) -> dict[str, Any]:
    """Configure structlog and return the `LOGGING` dictionary that belongs to it.

    `as_json` gives one JSON object a line, for machines; otherwise lines for people.
    """
    shared = _shared_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderers: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "structlog": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [structlog.stdlib.ExtraAdder(), *shared],
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
            },
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structlog"}},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "agentops": {"level": level},
            "runs": {"level": level},
            "approvals": {"level": level},
            "django": {"level": "WARNING"},
            "django-q": {"level": level},
        },
    }
