"""Sign-in, sign-out and password change.

Guessing is slowed down by counting failures in the cache, per account and address, and per address alone. The cache
belongs to one process, so with N web processes a guesser gets N times the figures below; a site that wants one count
configures a shared cache. Behind a proxy the address is the proxy's, unless it rewrites REMOTE_ADDR.
"""

import hashlib
from typing import Any, cast

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.urls import reverse_lazy

WINDOW_S = 300
"""Seconds for which failures are remembered, counted from the first."""
PER_ACCOUNT = 5
"""Failures of one account from one address within the window; not of the account alone, or anybody could lock it."""
PER_ADDRESS = 50
"""Failures from one address within the window, whatever the account."""


class Guesses:
    """Failed sign-ins of one account from one address."""

    def __init__(self, username: str, address: str) -> None:
        account = hashlib.sha256(f"{username.casefold()}\n{address}".encode(errors="replace")).hexdigest()
        self.account = f"sign-in:account:{account}"
        self.address = f"sign-in:address:{hashlib.sha256(address.encode()).hexdigest()}"

    def count(self) -> bool:
        """Count one try; return whether it is still allowed."""
        return self._add(self.account) <= PER_ACCOUNT and self._add(self.address) <= PER_ADDRESS

    def forget(self) -> None:
        """Take the try back: the password was right."""
        cache.delete(self.account)
        if cache.get(self.address):
            cache.decr(self.address)

    @staticmethod
    def _add(key: str) -> int:
        if cache.add(key, 1, WINDOW_S):
            return 1
        try:
            return cache.incr(key)
        except ValueError:  # it expired between the two calls
            cache.set(key, 1, WINDOW_S)
            return 1


class SignInForm(AuthenticationForm):
    """User name and password; unknown, wrong and switched-off accounts get one and the same answer."""

    error_messages = {
        "invalid_login": "User name and password do not match. Both are case-sensitive.",
        "inactive": "User name and password do not match. Both are case-sensitive.",
        "too_many": "Too many attempts. Wait five minutes, then try again.",
    }
    limited = False

    def clean(self) -> dict[str, Any]:
        username, request = self.cleaned_data.get("username"), self.request
        if username is None or request is None or not self.cleaned_data.get("password"):
            return super().clean()
        guesses = Guesses(username, request.META.get("REMOTE_ADDR", ""))
        # Counted before the password is looked at: guesses sent in parallel must not slip through.
        if not guesses.count():
            self.limited = True
            raise ValidationError(self.error_messages["too_many"], code="too_many")
        cleaned = super().clean()
        guesses.forget()
        return cleaned


class SignIn(views.LoginView):
    """The only page that an anonymous visitor sees."""

    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        response.status_code = 429 if cast(SignInForm, form).limited else 422
        return response


class ChangePassword(views.PasswordChangeView):
    """Change one's own password; the session of this browser goes on, all others end."""

    success_url = reverse_lazy("password_change_done")
