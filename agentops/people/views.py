"""Pages of people: the matrix, what one of them can do, who can do something, and the verbs that change it."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from agentops.console.filters import Choice, Filter, link
from agentops.console.numbers import number_of
from agentops.people import holding, reading, services
from agentops.people.forms import AddGroupForm, AddPersonForm, GrantForm, ReasonForm, WhoForm
from agentops.people.reading import Preview, Story
from agentops.people.services import Whom
from runs import access, clock
from runs.errors import NotFound, VerbError
from runs.lifecycle import Actor
from runs.models import AuditEvent, Grant
from runs.views.acting import actor

may_manage = access.required("runs.manage_people")
form_methods = require_http_methods(["GET", "HEAD", "POST"])

#: Changes that a person's page shows.
HISTORY = 10


# --- look ----------------------------------------------------------------------------------------------------------------


@require_safe
@may_manage
def index(request: HttpRequest) -> HttpResponse:
    """People × capabilities."""
    state = "off" if request.GET.get("state") == "off" else "active"
    found = reading.people(request.GET, state)
    page = reading.by_name(found, request.GET, key="username")
    context = {
        "kind": "people",
        "rows": reading.people_rows(page.rows),
        "number": reading.counted(found),
        "page": page,
        "off": state == "off",
    }
    return render(request, "people/list.html", context | _frame(request))


@require_safe
@may_manage
def group_index(request: HttpRequest) -> HttpResponse:
    """Groups × capabilities."""
    found = reading.groups(request.GET)
    page = reading.by_name(found, request.GET, key="name")
    context = {
        "kind": "groups",
        "rows": reading.group_rows(page.rows),
        "number": reading.counted(found),
        "page": page,
    }
    return render(request, "people/list.html", context | _frame(request))


def _frame(request: HttpRequest) -> dict[str, Any]:
    """Tabs and filters of the matrix; what is filtered stays from one tab to the next."""
    query = request.GET
    kept = QueryDict(mutable=True)
    for name in ("q", "capability", "workflow"):
        if value := query.get(name):
            kept[name] = value.replace("\0", "")
    people, groups = reverse("people:list"), reverse("people:groups")
    off = request.path == people and query.get("state") == "off"
    return {
        "tabs": [
            ("People", f"{people}{link(kept)}", request.path == people and not off),
            ("Groups", f"{groups}{link(kept)}", request.path == groups),
            ("Switched off", f"{people}{link(kept, state='off', capability=None, workflow=None)}", off),
        ],
        "chips": []
        if off
        else [
            Filter(
                "capability",
                "Capability",
                [Choice("", "any"), *(Choice(name, one.label) for name, one in access.CAPABILITIES.items())],
                query.get("capability", ""),
            ),
            Filter(
                "workflow",
                "Workflow",
                [Choice("", "any"), *(Choice(name, name) for name in reading.workflows())],
                query.get("workflow", "").replace("\0", ""),
            ),
        ],
        "capabilities": access.CAPABILITIES.values(),
        "narrowed": any(query.get(name) for name in ("q", "capability", "workflow")),
        "unnarrowed": link(QueryDict("state=off" if off else "")),
        "kept": [(name, value) for name, value in kept.items() if name != "q"]
        + ([("state", "off")] if off else []),
    }


@require_safe
@may_manage
def person(request: HttpRequest, user_id: int) -> HttpResponse:
    """What can one person do?"""
    one = get_object_or_404(User, pk=user_id)
    story = Story(one, holding.of_person(one))
    context = _subject(one) | {
        "story": story,
        "groups": sorted(story.holding.groups, key=lambda way: way.group),
        "under": reading.decides_under(one, [way.group for way in story.holding.groups]),
        "own": one.pk == request.user.pk,
        "history": _history(request, one),
    }
    return render(request, "people/person.html", context)


@require_safe
@may_manage
def group(request: HttpRequest, group_id: int) -> HttpResponse:
    """What a group gives its members, and who they are."""
    one = get_object_or_404(Group, pk=group_id)
    found = User.objects.filter(groups=one)
    page = reading.by_name(found, request.GET, key="username")
    context = _subject(one) | {
        "story": Story(one, holding.of_group(one)),
        "members": page.rows,
        "number": reading.counted(found),
        "page": page,
        "under": reading.names_group(one),
        "history": _history(request, one),
    }
    return render(request, "people/group.html", context)


def _history(request: HttpRequest, one: User | Group) -> list[tuple[AuditEvent, str]]:
    """Changes of a person or group, newest first, with what was done, for those who may read them. Index audit_by_target."""
    if not access.may(request.user, "runs.view_auditevent"):
        return []
    found = AuditEvent.objects.filter(target=services.target_of(one)).order_by("-id")[:HISTORY]
    return [(event, reading.what_was_done(event)) for event in found]


@require_safe
@may_manage
def who(request: HttpRequest) -> HttpResponse:
    """Who can do this, there?"""
    form = WhoForm(request.GET if "can" in request.GET else None)
    context: dict[str, Any] = {"form": form}
    if form.is_valid():
        given = form.cleaned_data
        decides = given["can"] == "approvals.decide_approval"
        asked = reading.asked_for(given["under"], given["workflow"]) if decides and given["under"] else None
        found = reading.who_can(given["can"], given["workflow"], asked)
        page = reading.by_name(found, request.GET, key="username")
        context |= {
            "found": reading.able(page.rows, given["can"], given["workflow"], asked or ()),
            "number": reading.counted(found),
            "page": page,
            "words": holding.WORDS[given["can"]],
            "workflow": given["workflow"],
            "under": given["under"],
            "asked": asked,
            "decides": decides,
        }
    return render(request, "people/who.html", context, status=422 if form.errors else 200)


# --- change --------------------------------------------------------------------------------------------------------------


@form_methods
@may_manage
def grant_person(request: HttpRequest, user_id: int) -> HttpResponse:
    """Grant a capability to a person."""
    return _grant(request, get_object_or_404(User, pk=user_id))


@form_methods
@may_manage
def grant_group(request: HttpRequest, group_id: int) -> HttpResponse:
    """Grant a capability to a group."""
    return _grant(request, get_object_or_404(Group, pk=group_id))


def _grant(request: HttpRequest, one: User | Group) -> HttpResponse:
    """First what and where, in the address; then what it would change, and the reason."""
    query = request.GET
    form = GrantForm(query if "capability" in query else None)
    what = Whom("person" if isinstance(one, User) else "group", one.pk)
    if not form.is_valid():
        context = _subject(one) | {"form": form, "capabilities": access.CAPABILITIES.values()}
        status = 422 if form.errors or request.method == "POST" else 200
        return render(request, "people/grant.html", context, status=status)
    given = form.cleaned_data
    capability, scope, name = given["capability"], given["scope"], given["name"]
    label = access.CAPABILITIES[capability].label
    return _verb(
        request,
        one,
        title=f"Grant “{label}” to {services.name_of(one)}",
        verb=f"Grant “{label}”",
        preview=lambda: reading.preview_grant(one, capability, scope, name),
        act=lambda by, seen, reason: services.grant(
            by, what, capability, scope, name, reason=reason, seen=seen
        ),
        other=(request.path, "Choose differently"),
    )


@form_methods
@may_manage
def take_back(request: HttpRequest, grant_id: uuid.UUID) -> HttpResponse:
    """Take a grant back."""
    found = get_object_or_404(Grant.objects.select_related("user", "group"), pk=grant_id)
    one = found.user or found.group
    assert one is not None, "constraint grant_user_or_group"
    label = found.get_capability_display()
    return _verb(
        request,
        one,
        title=f"Take “{label}” back from {services.name_of(one)}",
        verb=f"Take “{label}” back",
        preview=lambda: reading.preview_take_back(one, found),
        act=lambda by, seen, reason: services.take_back(by, grant_id, reason=reason, seen=seen),
    )


@form_methods
@may_manage
def join(request: HttpRequest, user_id: int) -> HttpResponse:
    """Put a person into a group: first which, in the address; then what it would change."""
    one = get_object_or_404(User, pk=user_id)
    chosen = number_of(request.GET.get("group"))
    if chosen is None:
        others = list(Group.objects.exclude(user=one).order_by("name")[: reading.SIZE])
        held = holding.of_groups(others)
        context = _subject(one) | {
            "choices": [(other, Story(other, held[other.pk])) for other in others],
        }
        return render(request, "people/join.html", context, status=422 if request.method == "POST" else 200)
    into = get_object_or_404(Group, pk=chosen)
    return _verb(
        request,
        one,
        title=f"Put {one.get_username()} into {into.name}",
        verb=f"Put into {into.name}",
        preview=lambda: reading.preview_join(one, into),
        act=lambda by, seen, reason: services.join(by, user_id, into.pk, reason=reason, seen=seen),
        other=(request.path, "Choose another group"),
    )


@form_methods
@may_manage
def leave(request: HttpRequest, user_id: int, group_id: int) -> HttpResponse:
    """Take a person out of a group."""
    members = User.groups.through.objects.select_related("user", "group")
    if membership := members.filter(user_id=user_id, group_id=group_id).first():
        one, out_of = membership.user, membership.group
    else:
        one, out_of = get_object_or_404(User, pk=user_id), get_object_or_404(Group, pk=group_id)
    return _verb(
        request,
        one,
        title=f"Take {one.get_username()} out of {out_of.name}",
        verb=f"Take out of {out_of.name}",
        preview=lambda: reading.preview_leave(one, out_of),
        act=lambda by, seen, reason: services.leave(by, user_id, group_id, reason=reason, seen=seen),
    )


@form_methods
@may_manage
def switch_off(request: HttpRequest, user_id: int) -> HttpResponse:
    """Let somebody sign in no more."""
    one = get_object_or_404(User, pk=user_id)
    return _verb(
        request,
        one,
        title=f"Switch {one.get_username()} off",
        verb=f"Switch {one.get_username()} off",
        preview=lambda: reading.preview_switch_off(one),
        act=lambda by, seen, reason: services.switch_off(by, user_id, reason=reason, seen=seen),
        danger=True,
    )


@form_methods
@may_manage
def switch_on(request: HttpRequest, user_id: int) -> HttpResponse:
    """Let somebody sign in again."""
    one = get_object_or_404(User, pk=user_id)
    return _verb(
        request,
        one,
        title=f"Switch {one.get_username()} on",
        verb=f"Switch {one.get_username()} on",
        preview=lambda: reading.preview_switch_on(one),
        act=lambda by, seen, reason: services.switch_on(by, user_id, reason=reason, seen=seen),
    )


@form_methods
@may_manage
def renew_link(request: HttpRequest, user_id: int) -> HttpResponse:
    """A link with which somebody who cannot sign in chooses a new password."""
    one = get_object_or_404(User, pk=user_id)
    return _verb(
        request,
        one,
        title=f"New sign-in link for {one.get_username()}",
        verb="Make the link",
        preview=lambda: reading.preview_renew_link(one),
        act=lambda by, seen, reason: services.renew_link(by, user_id, reason=reason, seen=seen),
        danger=True,
    )


@form_methods
@may_manage
def add_person(request: HttpRequest) -> HttpResponse:
    """Somebody new, who signs in with a link."""
    form = AddPersonForm(request.POST or None, label_suffix="")
    status, refusal = (422 if request.method == "POST" else 200), ""
    if request.method == "POST" and form.is_valid():
        given = form.cleaned_data
        groups = [one.pk for one in given.pop("groups")]
        try:
            return _link(request, services.add_person(actor(request), group_ids=groups, **given))
        except VerbError as error:
            refusal, status = str(error), error.status
    held = holding.of_groups(groups_there := list(Group.objects.order_by("name")[: reading.SIZE]))
    context = {
        "form": form,
        "refusal": refusal,
        "choices": [(one, Story(one, held[one.pk]).sentence) for one in groups_there],
        "chosen": set(request.POST.getlist("groups")),
    }
    return render(request, "people/add.html", context, status=status)


@form_methods
@may_manage
def add_group(request: HttpRequest) -> HttpResponse:
    """A group that holds nothing yet."""
    form = AddGroupForm(request.POST or None, label_suffix="")
    status, refusal = (422 if request.method == "POST" else 200), ""
    if request.method == "POST" and form.is_valid():
        try:
            made = services.add_group(actor(request), **form.cleaned_data)
        except VerbError as error:
            refusal, status = str(error), error.status
        else:
            messages.success(request, f"The group {made.name} is there, and holds nothing yet.")
            return redirect("people:group", made.pk)
    return render(request, "people/add_group.html", {"form": form, "refusal": refusal}, status=status)


def _verb(
    request: HttpRequest,
    one: User | Group,
    *,
    title: str,
    verb: str,
    preview: Callable[[], Preview],
    act: Callable[[Actor, str, str], Any],
    danger: bool = False,
    other: tuple[str, str] = ("", ""),
) -> HttpResponse:
    """The page of one verb: what it would change, and its form; or the verb itself."""
    form, status, refusal, kept = ReasonForm(request.POST or None, label_suffix=""), 200, "", ""
    if request.method == "POST" and form.is_valid():
        try:
            done = act(actor(request), form.cleaned_data["seen"], form.cleaned_data["reason"])
        except NotFound as error:
            raise Http404 from error
        except VerbError as error:
            # What was typed is kept; what the page shows is fresh, and what it says it has seen as well.
            refusal, status, kept = str(error), error.status, form.cleaned_data["reason"]
            one.refresh_from_db()
        else:
            if isinstance(done, services.Link):
                return _link(request, done)
            messages.success(request, done)
            return redirect(_url(one))
    elif request.method == "POST":
        status = 422
    shown = preview()
    if status != 422:  # what was mistyped is kept with what is wrong about it
        form = ReasonForm(initial={"reason": kept, "seen": shown.seen}, label_suffix="")
    context = _subject(one) | {
        "form": form,
        "title": title,
        "verb": verb,
        "preview": shown,
        "refusal": refusal,
        "danger": danger,
        "other": other[0],
        "other_words": other[1],
        "action": request.get_full_path(),
        "now": clock.now(),
    }
    return render(request, "people/verb.html", context, status=status)


def _link(request: HttpRequest, made: services.Link) -> HttpResponse:
    """Show a link, once: it is in no session and in no table, so this answer is the only place where it stands."""
    path = reverse("first_sign_in", args=[made.uid, made.token])
    context = _subject(made.user) | {"made": made, "address": request.build_absolute_uri(path)}
    return render(request, "people/link.html", context)


# --- shared ----------------------------------------------------------------------------------------------------------------


def _url(one: User | Group) -> str:
    return reverse("people:person" if isinstance(one, User) else "people:group", args=[one.pk])


def _subject(one: User | Group) -> dict[str, Any]:
    """What every page of one person or group shows."""
    return {
        "one": one,
        "name": services.name_of(one),
        "is_person": isinstance(one, User),
        "url": _url(one),
    }
