"""Which code a worker executes, for people: what a failure happened in, and where it no longer should."""

from functools import cache
from importlib import metadata

from django.conf import settings

#: Longer ones are cut: a version is something to recognise.
LONGEST = 100


@cache
def version() -> str:
    """AGENTOPS_CODE_VERSION, else name and version of the installed distributions that bring AGENTOPS_APPS; "" for neither."""
    named: str = settings.AGENTOPS_CODE_VERSION
    return (named or ", ".join(_installed(settings.AGENTOPS_APPS)))[:LONGEST]


def _installed(apps: list[str]) -> list[str]:
    if not apps:
        return []
    bringing = metadata.packages_distributions()
    names = {name for app in apps for name in bringing.get(app.partition(".")[0], ())}
    return [f"{name} {metadata.version(name)}" for name in sorted(names)]
