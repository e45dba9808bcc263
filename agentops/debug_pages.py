"""What Django's own debug pages hide (AGENTOPS_DJANGO_DEBUG)."""

import re

from django.http import HttpRequest
from django.views.debug import SafeExceptionReporterFilter


class Filter(SafeExceptionReporterFilter):
    """As Django's, and the database's URL, which holds a password; for passwords in forms also while debugging."""

    hidden_settings = re.compile(
        "API|AUTH|TOKEN|KEY|SECRET|PASS|SIGNATURE|COOKIE|DATABASE_URL|DSN", re.IGNORECASE
    )

    def is_active(self, request: HttpRequest | None) -> bool:
        return True
