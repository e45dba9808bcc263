"""When the person in front of this browser last proved who they are, and how they prove it again.

A session says when its password was given: the database's clock, so that a decision can compare. A decision that needs a younger
sign-in is refused (`NotFresh`); the browser is then sent here with what was typed kept in the session, and comes back to it.
"""

from datetime import datetime, timedelta
from typing import Any, cast

from django import forms
from django.contrib.auth import authenticate
from django.contrib.auth.models import AbstractBaseUser, User
from django.contrib.auth.signals import user_logged_in
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.decorators.http import require_http_methods

from agentops import guesses, sign_in_history
from runs import clock
from runs.errors import NotFresh

_AT, _TYPED = "signed_in_at", "typed_before_signing_in"
#: Of what was typed, per field; a reason has 2,000 characters.
MOST_TYPED = 5_000
#: What was typed is offered again for so long; looking at a page does not write that it was.
TYPED_FOR = timedelta(minutes=10)


def remember(sender: object, request: HttpRequest | None, user: AbstractBaseUser, **kwargs: Any) -> None:
    """Keep the time of this sign-in in its session."""
    if request is not None and hasattr(request, "session"):
        request.session[_AT] = clock.now().isoformat()


def connect() -> None:
    user_logged_in.connect(remember, dispatch_uid="agentops.sign_ins")


def signed_in_at(request: HttpRequest) -> datetime | None:
    """When the password was last given in this session; None where nobody knows."""
    kept = request.session.get(_AT)
    return datetime.fromisoformat(kept) if kept else None


def ask_again(request: HttpRequest, error: NotFresh) -> HttpResponse:
    """Keep what was typed, and lead to the page that asks for the password and then back to the page of the form."""
    back = _safe(request, request.POST.get("back", "") or _page_of(request))
    typed = {
        name: value[:MOST_TYPED] for name, value in request.POST.items() if name != "csrfmiddlewaretoken"
    }
    request.session[_TYPED] = {"page": back, "typed": typed, "until": (clock.now() + TYPED_FOR).isoformat()}
    query = urlencode({"next": back, "minutes": str(error.minutes)})
    return redirect(f"{reverse('sign_in_again')}?{query}")


def _page_of(request: HttpRequest) -> str:
    """The page that holds the form: the address without its last part, such as decide/."""
    return request.path.rstrip("/").rpartition("/")[0] + "/"


def typed_before(request: HttpRequest) -> dict[str, str]:
    """What was typed on this page shortly before the password was asked for."""
    kept = request.session.get(_TYPED)
    if not kept or kept["page"].partition("?")[0] != request.path:
        return {}
    if datetime.fromisoformat(kept["until"]) < clock.now():
        return {}
    return cast("dict[str, str]", kept["typed"])


class AgainForm(forms.Form):
    """The password of whoever is signed in."""

    password = forms.CharField(
        strip=False, widget=forms.PasswordInput({"autocomplete": "current-password", "autofocus": True})
    )

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data, label_suffix="")
        self.request = request

    def clean_password(self) -> str:
        user = cast(User, self.request.user)
        given: str = self.cleaned_data["password"]
        tries = guesses.Guesses.of(self.request, user.get_username())
        # Counted before the password is looked at, as at the sign-in itself.
        if not tries.count():
            sign_in_history.failed(user.get_username(), user)
            raise ValidationError("Too many attempts. Wait five minutes, then try again.", code="too_many")
        found = authenticate(self.request, username=user.get_username(), password=given)
        if found is None or found.pk != user.pk:
            sign_in_history.failed(user.get_username(), user)
            raise ValidationError("This is not your password.")
        tries.forget()
        return given


@require_http_methods(["GET", "HEAD", "POST"])
def again(request: HttpRequest) -> HttpResponse:
    """Ask for the password of whoever is signed in, and lead back to `next`."""
    back = _safe(request, request.POST.get("next", "") or request.GET.get("next", ""))
    form = AgainForm(request, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        sign_in_history.signed_in_again(cast(User, request.user))
        request.session[_AT] = clock.now().isoformat()
        request.session.cycle_key()
        return redirect(back)
    minutes = request.GET.get("minutes", "")
    context = {
        "form": form,
        "next": back,
        "minutes": minutes if minutes.isascii() and minutes.isdigit() and len(minutes) < 5 else "",
    }
    return render(
        request, "registration/again.html", context, status=422 if request.method == "POST" else 200
    )


def _safe(request: HttpRequest, address: str) -> str:
    """`address` if it leads to this site, else the home page."""
    allowed = url_has_allowed_host_and_scheme(
        address, {request.get_host()}, require_https=request.is_secure()
    )
    return address if allowed and address else resolve_url("home")
