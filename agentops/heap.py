"""What a process keeps until it ends: code, models, routes, templates.

Python's collector of cycles reads every object that it knows, again and again, and finds nothing among these: with those of a web
process it stops all threads for about 80 ms, and in the children of a fork it makes the pages that they share their own.
"""

import gc
from pathlib import Path

from django.conf import settings


def keep() -> None:
    """Take what there is now out of the collector's sight: once, when all is loaded, and before a fork if there is one."""
    gc.collect()
    gc.freeze()


def keep_pages() -> None:
    """Load what the first visitor of each page would have to wait for, routes and templates, and keep it."""
    # Not with this module: workers have no use for them.
    from django.template.loader import get_template
    from django.urls import get_resolver

    get_resolver().url_patterns  # noqa: B018 (loads the views)
    folder: Path = settings.BASE_DIR / "templates"
    for path in sorted(folder.rglob("*.html")):
        get_template(str(path.relative_to(folder)))
    keep()
