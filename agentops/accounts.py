"""Sign-in, sign-out and password change."""

from typing import Any, cast

from django.contrib.auth import views
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, SetPasswordForm
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse_lazy
from django.utils.crypto import constant_time_compare

from agentops import guesses, sign_in_history
from agentops.people.services import links, password_chosen


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
            sign_in_history.failed(username)
            raise ValidationError(self.error_messages["too_many"], code="too_many")
        try:
            cleaned = super().clean()
        except ValidationError:
            sign_in_history.failed(username)
            raise
        tries.forget()
        return cleaned


class SignIn(views.LoginView):
    """The only page that an anonymous visitor sees."""

    authentication_form = SignInForm
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        with transaction.atomic():
            response = super().form_valid(form)
            sign_in_history.signed_in(form.get_user())
        guesses.remember(self.request, response, form.cleaned_data["username"])
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_invalid(form)
        response.status_code = 429 if cast(SignInForm, form).limited else 422
        return response


class SignOut(views.LogoutView):
    """End the session of this browser."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if isinstance(request.user, User):
            sign_in_history.signed_out(request.user)
        response: HttpResponse = super().post(request, *args, **kwargs)
        return response


class ChangeForm(PasswordChangeForm):
    """The password until now, and a new one. Whoever finds a browser open guesses no faster here than at the sign-in."""

    def __init__(self, *args: Any, tries: guesses.Guesses, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tries = tries

    def clean_old_password(self) -> str:
        name = self.user.get_username()
        if not self.tries.count():
            sign_in_history.failed(name, self.user)
            raise ValidationError(SignInForm.error_messages["too_many"], code="too_many")
        try:
            given: str = super().clean_old_password()
        except ValidationError:
            sign_in_history.failed(name, self.user)
            raise
        self.tries.forget()
        return given


class ChangePassword(views.PasswordChangeView):
    """Change one's own password; the session of this browser goes on, all others end."""

    form_class = ChangeForm
    success_url = reverse_lazy("password_change_done")

    def get_form_kwargs(self) -> dict[str, Any]:
        tries = guesses.Guesses.of(self.request, self.request.user.get_username())
        return super().get_form_kwargs() | {"tries": tries}

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            # The whole row is written: it must not be the one from before somebody switched them off or made a link.
            person = User.objects.select_for_update(no_key=True).get(pk=form.user.pk)
            if not (person.is_active and constant_time_compare(person.password, form.user.password)):
                form.add_error(None, "Your account was changed in this moment. Sign in again.")
                return self.form_invalid(form)
            form.user = person
            password_chosen(person, "with the one before")
            return super().form_valid(form)


class FirstSignIn(views.PasswordResetConfirmView):
    """Choose a password by the link that an administrator passed on, and be signed in. A used or old link says so."""

    token_generator = links
    post_reset_login = True
    post_reset_login_backend = "agentops.backend.Backend"
    success_url = reverse_lazy("home")
    template_name = "registration/first_sign_in.html"

    def get_user(self, uidb64: str) -> User | None:
        """The person of the link; nobody, where they are switched off."""
        found = super().get_user(uidb64)
        return found if isinstance(found, User) and found.is_active else None

    def form_valid(self, form: SetPasswordForm[User]) -> HttpResponse:
        token = self.request.session[views.INTERNAL_RESET_SESSION_TOKEN]
        with transaction.atomic():
            # Of two browsers with one link, the second finds it used.
            person = User.objects.select_for_update(no_key=True).get(pk=form.user.pk)
            if not (person.is_active and links.check_token(person, token)):
                self.validlink = False
                return self.render_to_response(self.get_context_data(form=None))
            # What the form holds was read before the lock.
            form.user = person
            password_chosen(person)
            sign_in_history.signed_in(person, "by a sign-in link")
            return super().form_valid(form)

    def form_invalid(self, form: SetPasswordForm[User]) -> HttpResponse:
        response = super().form_invalid(form)
        response.status_code = 422
        return response
