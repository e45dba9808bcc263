"""Typed readers for the settings that come from the environment.

Each reader takes the variable's name and names it in its error, so that a bad value is found at start and not at use.
An empty variable counts as unset.
"""

import importlib.util
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


class WrongSetting(ImproperlyConfigured):
    """A setting cannot be used; the message is one sentence that says what to do."""


TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"0", "false", "no", "off"})


def text(name: str, default: str = "", *, environ: Mapping[str, str] | None = None) -> str:
    """Return the variable's text without surrounding white space, or `default` when it is unset or empty."""
    source = os.environ if environ is None else environ
    return source.get(name, "").strip() or default


def flag(name: str, default: bool = False, *, environ: Mapping[str, str] | None = None) -> bool:
    """Return a yes/no variable; raises WrongSetting for any other word."""
    word = text(name, environ=environ).lower()
    if not word:
        return default
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise WrongSetting(f"{name} is {word!r}: set it to 1 (on) or 0 (off).")


def integer(
    name: str,
    default: int,
    *,
    minimum: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Return a whole number; raises WrongSetting when it is none, or smaller than `minimum`."""
    digits = text(name, environ=environ)
    if not digits:
        return default
    try:
        number = int(digits)
    except ValueError:
        raise WrongSetting(f"{name} is {digits!r}: set it to a whole number.") from None
    if minimum is not None and number < minimum:
        raise WrongSetting(f"{name} is {number}: set it to {minimum} or more.")
    return number


def integers(name: str, *, minimum: int, environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """Return "key=number" items separated by commas; raises WrongSetting for anything else, or a smaller number."""
    found: dict[str, int] = {}
    for item in items(name, environ=environ):
        key, _, digits = (part.strip() for part in item.partition("="))
        if not key or not digits.isdecimal() or len(digits) > 18 or int(digits) < minimum:
            raise WrongSetting(
                f"{name} holds {item!r}: write key=number, with a number of at least {minimum}."
            )
        found[key] = int(digits)
    return found


def number(
    name: str, default: float, *, minimum: float | None = None, environ: Mapping[str, str] | None = None
) -> float:
    """The value of `name` as a finite number. Raises WrongSetting when it is none, or below `minimum`."""
    value = text(name, environ=environ)
    if not value:
        return default
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise WrongSetting(f"{name} is {value!r}: set it to a number.")
    if minimum is not None and found < minimum:
        raise WrongSetting(f"{name} is {value}: set it to {minimum:g} or more.")
    return found


def items(name: str, default: tuple[str, ...] = (), *, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a comma-separated list, without empty entries."""
    entries = text(name, environ=environ)
    if not entries:
        return list(default)
    return [entry for part in entries.split(",") if (entry := part.strip())]


def apps(name: str, *, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a list of apps as in INSTALLED_APPS; raises WrongSetting for one that Python does not find."""
    found = items(name, environ=environ)
    for app in found:
        if not _is_module(app):
            raise WrongSetting(
                f"{name} names {app}, which Python does not find: correct it, or set PYTHONPATH."
            )
    return found


def _is_module(dotted: str) -> bool:
    """Whether there is such a module or package, or a class in one, by its name; what contains it is imported."""
    try:
        if importlib.util.find_spec(dotted) is not None:
            return True
    except ModuleNotFoundError as error:
        # Not one that an existing package fails to import.
        if error.name is None or not f"{dotted}.".startswith(f"{error.name}."):
            raise
    package, _, name = dotted.rpartition(".")
    return name[:1].isupper() and bool(package) and _is_module(package)


def secret(name: str, default: str = "", *, environ: Mapping[str, str] | None = None) -> str:
    """Return a secret from NAME, or from the file that NAME_FILE points to (the way containers hand secrets over).

    Raises WrongSetting when both are set, or when the file cannot be read or is empty.
    """
    value = text(name, environ=environ)
    file_name = text(f"{name}_FILE", environ=environ)
    if not file_name:
        return value or default
    if value:
        raise WrongSetting(f"{name} and {name}_FILE are both set: keep one of them.")
    try:
        value = Path(file_name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSetting(f"{name}_FILE points to {file_name}, which cannot be read: {error}.") from None
    if not value:
        raise WrongSetting(f"{name}_FILE points to {file_name}, which is empty.")
    return value


def database(url: str, *, variable: str = "DATABASE_URL") -> dict[str, Any]:
    """Turn a libpq connection URL (postgresql://user:password@host:port/name?option=value) into Django's form.

    A socket folder is given as `?host=/folder`; all other parameters are handed to libpq as they are.
    Raises WrongSetting for another scheme, a bad port or a missing database name.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise WrongSetting(f"{variable} must start with postgresql:// (PostgreSQL is the only database).")
    name = unquote(parts.path.removeprefix("/"))
    if not name:
        raise WrongSetting(f"{variable} names no database: end it with /NAME.")
    try:
        port = parts.port
    except ValueError:
        raise WrongSetting(f"{variable} has a port that is not a number from 0 to 65535.") from None
    options: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = options.pop("host", "") or unquote(parts.hostname or "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": options.pop("port", "") or (str(port) if port is not None else ""),
        "OPTIONS": options,
    }
