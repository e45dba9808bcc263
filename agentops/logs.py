"""Logging: structlog renders the lines of this project and of all libraries alike, to standard error."""

import json
import re
from collections.abc import Iterable
from typing import Any

import structlog
from structlog.types import EventDict, Processor

# What every line of this process says about it, such as the id of a worker. Threads have structlog's context variables
# each for itself; this they share.
process_fields: dict[str, str] = {}


def _add_process_fields(logger: Any, method_name: str, event_dict: EventDict) -> EventDict:
    return {**process_fields, **event_dict}


#: Ends of names whose values no line shows. Not "tokens": those of models are counted.
_SECRET_NAME = re.compile(
    r"(^|[_-])(password|passwd|passphrase|secret|token|api_?key|authorization|cookie|credentials?|dsn)$",
    re.IGNORECASE,
)
HIDDEN = "[hidden]"
#: A shorter secret is looked for by its name alone: it might be a word that lines use anyway.
SHORTEST = 10


def _hide_by_name(logger: Any, method_name: str, event_dict: EventDict) -> EventDict:
    return {name: _hidden_in(name, value) for name, value in event_dict.items()}


def _hidden_in(name: Any, value: Any) -> Any:
    if isinstance(name, str) and _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _hidden_in(key, item) for key, item in value.items()}
    return value


class _HideValues:
    """Takes this installation's own secrets out of a rendered line, its traceback included, wherever they came from."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = {secret for secret in secrets if len(secret) >= SHORTEST}
        # A JSON renderer has escaped some characters.
        spelled = known | {json.dumps(secret)[1:-1] for secret in known}
        longest_first = sorted(spelled, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first))) if spelled else None

    def __call__(self, logger: Any, method_name: str, rendered: Any) -> Any:
        if self.pattern is None or not isinstance(rendered, str):
            return rendered
        return self.pattern.sub(HIDDEN, rendered)


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_process_fields,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _hide_by_name,
    ]


def configuration(*, level: str, as_json: bool, secrets: Iterable[str] = ()) -> dict[str, Any]:
    """Configure structlog and return the `LOGGING` dictionary that belongs to it.

    `as_json` gives one JSON object a line, for machines; otherwise lines for people. No line shows any of `secrets`.
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
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *renderers,
                    _HideValues(secrets),
                ],
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
