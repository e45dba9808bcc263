"""Pages of policies: what acts, what it would have caught, and the verbs that change it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from approvals.inbox.listing import title_of_approval
from approvals.models import Policy, PolicyRevision
from approvals.policies import caught, declared, effective, verbs
from approvals.policies.effective import Rule
from approvals.policies.expressions import ExpressionError, compile_expression
from approvals.policies.forms import PolicyForm, ReasonForm, TryForm
from approvals.requests import four_eyes
from runs import access, clock, content, registry
from runs.errors import Invalid, NotFound, Stale
from runs.lifecycle import Actor
from runs.models import Run

may_view = access.required("approvals.view_policy")
may_change = access.required("approvals.change_policy")

Scope = Policy.Scope
#: Revisions that a page shows.
HISTORY = 20
TITLES = {
    Scope.POLICY: "Policies that code names",
    Scope.TOOL: "Tools",
    Scope.WORKFLOW: "Workflows",
    Scope.VERB: "Verbs",
}
ABOUT = {
    Scope.POLICY: "What tools and questions ask for by this name. Made of data, it replaces what the code says.",
    Scope.TOOL: "Every call of this tool, whatever policy its code names.",
    Scope.WORKFLOW: "Adds to what is asked: effects of this workflow that no rule catches are under the policy of their code.",
    Scope.VERB: "What people do here, approved by others first. Without a policy, whoever has the permission does it alone.",
}


@dataclass(frozen=True)
class Entry:
    """One thing that a policy can be about: what the code says beside what data says."""

    scope: str
    name: str
    policy: Policy | None = None

    @property
    def title(self) -> str:
        return four_eyes.VERBS[self.name].title if self.scope == Scope.VERB else self.name

    @property
    def url(self) -> str:
        return reverse("policies:policy", args=[self.scope, self.name])

    @property
    def about(self) -> str:
        return ABOUT[Scope(self.scope)]

    @property
    def active(self) -> bool:
        return self.policy is not None and self.policy.active

    @property
    def revision(self) -> int:
        return self.policy.revision if self.policy else 0

    @cached_property
    def rules(self) -> list[Rule]:
        """What acts now; empty while the code decides."""
        return effective.rules_of(self.policy) if self.policy is not None and self.policy.active else []

    @cached_property
    def said(self) -> list["Said"]:
        return in_words(self.rules, of_verb=self.is_verb)

    @cached_property
    def code(self) -> list[str]:
        """What the code asks for, as sentences; empty: nothing."""
        match self.scope:
            case Scope.POLICY:
                return _code_of(self.name)
            case Scope.TOOL:
                named = registry.tool(self.name).approval
                return [f"As policy {named} says", *_code_of(named)] if named else []
            case Scope.WORKFLOW:
                return ["What its tools ask for"]
        return []

    @property
    def used_by(self) -> list[str]:
        """Tools that name this policy."""
        if self.scope != Scope.POLICY:
            return []
        return [tool.name for tool in registry.tools() if tool.approval == self.name]

    @property
    def is_verb(self) -> bool:
        return self.scope == Scope.VERB

    @property
    def known_fields(self) -> list[str]:
        return verbs.fields_of(self.scope, self.name)


def _code_of(name: str) -> list[str]:
    policy = declared.named(name)
    asked = policy.requirement(Run(started_by_name="whoever started the run"))
    said = effective.in_words(asked)
    return [*(["Only for some calls, which its code tells apart"] if policy.when else []), *said]


@dataclass(frozen=True)
class Said:
    """A rule in words."""

    number: int
    when: str
    sentences: list[str]


def in_words(rules: list[Rule], *, of_verb: bool = False) -> list[Said]:
    starter = [{"id": None, "name": "whoever started the run"}]
    return [
        Said(
            number,
            rule.when,
            effective.in_words(rule.requirement(starter if rule.exclude_starter else []), of_verb=of_verb),
        )
        for number, rule in enumerate(rules, start=1)
    ]


# --- look ----------------------------------------------------------------------------------------------------------------


@require_safe
@may_view
def index(request: HttpRequest) -> HttpResponse:
    """Everything that a policy can be about, the code's default beside the override."""
    rows = {(row.scope, row.name): row for row in Policy.objects.all()}
    entries = [
        Entry(scope, name, rows.get((scope, name)))
        for scope, name in verbs.known_names()
        if _may_see(request, scope, name)
    ]
    groups = [
        (TITLES[scope], ABOUT[scope], [entry for entry in entries if entry.scope == scope])
        for scope in TITLES
    ]
    active = sum(entry.active for entry in entries)
    context = {"groups": groups, "active": active, "now": clock.now()}
    return render(request, "policies/list.html", context)


@require_safe
@may_view
def policy(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """One policy: what it asks for, what the code would ask for, its history, and the expression that somebody tries."""
    entry = entry_or_404(request, scope, name)
    return _show(request, entry)


@require_safe
@may_view
def tried(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Which of the newest calls an expression would have caught; without one, which the present rules would."""
    entry = entry_or_404(request, scope, name)
    form = TryForm(request.GET if "when" in request.GET else {"when": ""}, label_suffix="")
    context: dict[str, Any] = {
        "form": form,
        "wrong": None,
        "trial": None,
        "by_rules": "when" not in request.GET,
    }
    if "when" not in request.GET:
        context["trial"] = caught.try_rules(_user(request), scope, name, entry.rules)
    elif form.is_valid():
        source = form.cleaned_data["when"]
        try:
            expression = compile_expression(source) if source.strip() else None
        except ExpressionError as error:
            context["wrong"] = _place(source, error)
        else:
            context["trial"] = caught.try_expression(_user(request), scope, name, expression)
    return render(request, "policies/tried.html", _context(request, entry) | context)


def _place(source: str, error: ExpressionError) -> tuple[str, str, str]:
    """What is before the mistake, what is there, and what is wrong."""
    return source[: error.position], source[error.position :][:40] or " ", error.message


# --- change --------------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def edit(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """The rules as a form; `preview` says what they would do, `add` makes room for one more, and neither changes anything."""
    entry = _to_change(request, scope, name)
    if request.method != "POST":
        rules = entry.rules or _starting_point(entry)
        return _form(request, entry, PolicyForm(rules, seen_revision=entry.revision, of_verb=entry.is_verb))
    form = PolicyForm(data=request.POST, of_verb=entry.is_verb)
    if "add" in request.POST or "preview" in request.POST:
        form.not_yet()
    if "add" in request.POST:
        form.add(of_verb=entry.is_verb)
        return _form(request, entry, form)
    if "preview" in request.POST:
        return _form(request, entry, form, **_preview(request, entry, form))
    if not form.is_valid():
        return _form(request, entry, form, 422)
    given = form.reason.cleaned_data
    try:
        verbs.set_policy(
            _actor(request),
            scope,
            name,
            rules=form.given,
            seen_revision=given["seen_revision"],
            reason=given["reason"],
        )
    except Stale as error:
        fresh = entry_or_404(request, scope, name)
        form.with_revision(fresh.revision, request.POST)
        return _form(request, fresh, form, error.status, refusal=str(error))
    except Invalid as error:
        form.say(error)
        return _form(request, entry, form, 422)
    return _done(
        request, entry, "The policy acts now. Approvals that were open before keep what they ask for."
    )


def _starting_point(entry: Entry) -> list[Rule]:
    """What the form of a new policy begins with: what its code asks for, as far as data can say it."""
    if entry.is_verb:
        return [Rule(groups=("admins",), time_limit_s=effective.DAY_S)]
    named = registry.tool(entry.name).approval if entry.scope == Scope.TOOL else entry.name
    code = declared.named(named or "")
    limit = code.time_limit
    return [
        Rule(
            groups=code.groups,
            votes=code.votes,
            time_limit_s=None if limit is None else int(limit.total_seconds()),
            on_expiry=code.on_expiry,
            sentence=code.sentence,
            escalate_to=code.escalation.groups if code.escalation else (),
            escalate_for_s=int(code.escalation.time_limit.total_seconds())
            if code.escalation
            else effective.DAY_S,
        )
    ]


def _preview(request: HttpRequest, entry: Entry, form: PolicyForm) -> dict[str, Any]:
    """What the typed rules say and would have caught; nothing where they are no rules."""
    if not form.rules_valid():
        return {}
    try:
        rules = verbs.made(form.given, entry.scope, entry.name)
    except Invalid as error:
        form.say(error)
        return {}
    return {
        "preview": in_words(rules, of_verb=entry.is_verb),
        "warnings": verbs.too_few(rules),
        "trial": caught.try_rules(_user(request), entry.scope, entry.name, rules),
        "open": verbs.open_under(entry.scope, entry.name).count(),
    }


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def clear(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Let the code decide again."""

    def verb(by: Actor, seen: int, reason: str) -> str:
        verbs.clear_policy(by, scope, name, seen_revision=seen, reason=reason)
        return "The code decides again. Approvals that are open keep what they ask for."

    entry = _to_change(request, scope, name)
    if not entry.active:
        return _done(request, entry, "The code decides here already.", changed=False)
    what = "asks nobody" if not entry.code else "; ".join(entry.code).lower()
    verb_title = "Remove the policy" if entry.is_verb else "Back to the code"
    sentence = (
        f"The code {what}. The rules stay in the history."
        if not entry.is_verb
        else ("Whoever has the permission acts alone again. The rules stay in the history.")
    )
    return _verb(request, entry, verb, action="clear", title=verb_title, sentence=sentence)


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def revert(request: HttpRequest, scope: str, name: str, revision: int) -> HttpResponse:
    """Say again what an earlier revision said."""
    entry = _to_change(request, scope, name)
    earlier = PolicyRevision.objects.filter(policy=entry.policy, revision=revision).first()
    if earlier is None:
        raise Http404

    def verb(by: Actor, seen: int, reason: str) -> str:
        verbs.revert_policy(by, scope, name, revision, seen_revision=seen, reason=reason)
        return f"The policy says again what revision {revision} said."

    said = in_words(effective.rules_of(earlier), of_verb=entry.is_verb) if earlier.active else []
    sentence = (
        "It makes a new revision with these rules:"
        if said
        else "It makes a new revision: the code decides again."
    )
    return _verb(
        request,
        entry,
        verb,
        action="revert",
        title=f"Revert to revision {revision}",
        sentence=sentence,
        said=said,
        url=reverse("policies:revert", args=[scope, name, revision]),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@may_change
def reapply(request: HttpRequest, scope: str, name: str) -> HttpResponse:
    """Let open approvals ask for what the policy says now."""
    entry = _to_change(request, scope, name)

    def verb(by: Actor, seen: int, reason: str) -> str:
        done = verbs.reapply(by, scope, name, seen_revision=seen, reason=reason)
        count = len(done.changed)
        return (
            f"{count} open {'approval asks' if count == 1 else 'approvals ask'} for what the policy says now."
        )

    found = verbs.preview_reapply(scope, name)
    return _verb(
        request,
        entry,
        verb,
        action="reapply",
        title="Apply to what is open",
        sentence=found.sentence,
        application=found,
        shown=[
            (one, title_of_approval(content.shown(request.user, one, one.run)))
            for one in found.changed[:20]
            if access.may(request.user, "approvals.view_approval", one.run)
        ],
    )


def _verb(
    request: HttpRequest,
    entry: Entry,
    verb: Callable[[Actor, int, str], str],
    *,
    action: str,
    title: str,
    sentence: str,
    url: str = "",
    **more: Any,
) -> HttpResponse:
    """The page of one verb: what it would do, and its form; or the verb itself."""
    url = url or reverse(f"policies:{action}", args=[entry.scope, entry.name])
    form = ReasonForm(initial={"seen_revision": entry.revision}, label_suffix="")
    status, refusal = 200, ""
    if request.method == "POST":
        form = ReasonForm(request.POST, label_suffix="")
        if form.is_valid():
            try:
                said = verb(_actor(request), form.cleaned_data["seen_revision"], form.cleaned_data["reason"])
                return _done(request, entry, said)
            except Stale as error:
                entry = entry_or_404(request, entry.scope, entry.name)
                kept = {"seen_revision": entry.revision, "reason": form.cleaned_data["reason"]}
                form, status, refusal = ReasonForm(initial=kept, label_suffix=""), error.status, str(error)
        else:
            status = 422
    context = {
        "form": form,
        "title": title,
        "sentence": sentence,
        "action": url,
        "refusal": refusal,
        "what": action,
    }
    return render(request, "policies/verb.html", _context(request, entry) | context | more, status=status)


# --- shared ----------------------------------------------------------------------------------------------------------------


def _user(request: HttpRequest) -> User:
    return cast(User, request.user)


def _actor(request: HttpRequest) -> Actor:
    return Actor.of(_user(request))


def _may_see(request: HttpRequest, scope: str, name: str) -> bool:
    """A policy for one workflow alone is seen by who may see that one; the others act on the runs of all."""
    of = Run(workflow=name) if scope == Scope.WORKFLOW else None
    return access.may(request.user, "approvals.view_policy", of)


def entry_or_404(request: HttpRequest, scope: str, name: str) -> Entry:
    if not _may_see(request, scope, name):
        raise Http404
    try:
        verbs.check_known(scope, name)
    except NotFound:
        raise Http404 from None
    return Entry(scope, name, Policy.objects.filter(scope=scope, name=name).first())


def _to_change(request: HttpRequest, scope: str, name: str) -> Entry:
    """The entry, for somebody who may change it. Raises NotAllowed where the permission does not reach."""
    entry = entry_or_404(request, scope, name)
    verbs.permit_change(_actor(request), scope, name)
    return entry


def _may_change(request: HttpRequest, entry: Entry) -> bool:
    of = Run(workflow=entry.name) if entry.scope == Scope.WORKFLOW else None
    if of is None:
        return access.everywhere(request.user, "approvals.change_policy")
    return access.may(request.user, "approvals.change_policy", of)


def _context(request: HttpRequest, entry: Entry) -> dict[str, Any]:
    return {"entry": entry, "may_change": _may_change(request, entry), "now": clock.now()}


def _show(request: HttpRequest, entry: Entry, status: int = 200, **more: Any) -> HttpResponse:
    history = PolicyRevision.objects.filter(policy=entry.policy).order_by("-revision")
    context = {
        "history": [
            (one, in_words(effective.rules_of(one), of_verb=entry.is_verb) if one.active else [])
            for one in history[:HISTORY]
        ],
        "trial": caught.try_rules(_user(request), entry.scope, entry.name, entry.rules)
        if entry.active
        else None,
        "warnings": verbs.too_few(entry.rules),
    }
    return render(request, "policies/policy.html", _context(request, entry) | context | more, status=status)


def _form(
    request: HttpRequest, entry: Entry, form: PolicyForm, status: int = 200, **more: Any
) -> HttpResponse:
    context = {"form": form, "may_add": len(form.rules) < effective.MOST_RULES} | more
    return render(request, "policies/edit.html", _context(request, entry) | context, status=status)


def _done(request: HttpRequest, entry: Entry, sentence: str, *, changed: bool = True) -> HttpResponse:
    (messages.success if changed else messages.info)(request, sentence)
    return redirect(entry.url)
