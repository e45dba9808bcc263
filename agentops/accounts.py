"""Sign-in, sign-out and password change."""

from typing import Any, cast

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.http import HttpResponse
from django.urls import reverse_lazy

from agentops import guesses


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
        tries = guesses.Guesses.of(request, username)
        # Counted before the password is looked at: guesses sent in parallel must not slip through.
        if not tries.count():
            self.limited = True
            raise ValidationError(self.error_messages["too_many"], code="too_many")
        cleaned = super().clean()
        tries.forget()
        return cleaned


class SignIn(views.LoginView):
    """The only page that an anonymous visitor sees."""

    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        guesses.remember(self.request, response, form.cleaned_data["username"])
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        response.status_code = 429 if cast(SignInForm, form).limited else 422
        return response


class ChangePassword(views.PasswordChangeView):
    """Change one's own password; the session of this browser goes on, all others end."""

    success_url = reverse_lazy("password_change_done")
