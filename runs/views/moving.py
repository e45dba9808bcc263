"""Verbs that put a run elsewhere: skip a step, edit the state, fork, change the priority. Each says first what it would do."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from agentops.console.numbers import number_of
from runs import access, blobs, clock, codec, history, registry, services
from runs.errors import Invalid, StateMismatch
from runs.forms import ForkForm, PriorityForm, SkipForm, StateForm, VerbForm, with_seen
from runs.models import Run
from runs.services.fork import NOT_GIVEN, Visit, state_at, step_of, visits
from runs.services.prioritise import PLACES, PRIORITIES, places
from runs.services.skip import steps_after
from runs.services.state import present
from runs.sizes import readable
from runs.views.acting import actor
from runs.views.verbs import Sheet, carry_out, confirmed, seen_plan, sheet
from runs.workflow import WORKFLOWS

#: Characters of JSON that a text area still shows well.
EDITABLE = 200_000


@dataclass(frozen=True)
class Choice:
    """One of several things that a verb can be about; each has an address."""

    label: str
    url: str
    current: bool


@dataclass(frozen=True)
class Choices:
    title: str
    all: Sequence[Choice]
    more: str = ""


@dataclass(frozen=True)
class Editable:
    """A recorded value as a form has it; without a `text`, `why_not` says in half a sentence why."""

    text: str | None
    why_not: str = ""


def _text(encoded: Any) -> str:
    """JSON to edit: what would deceive a reader stays an escape."""
    return json.dumps(encoded, indent=2, ensure_ascii=True)


def _differs(before: Any, after: Any) -> tuple[Any, Any]:
    return codec.plain(before), codec.plain(after)


# --- skip ------------------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.skip_step")
def skip(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Let the run go on at another step, with the state that this one would have left."""
    run, by = access.run_or_404(request.user, run_id, "runs.skip_step"), actor(request)
    to = request.POST.get("to") or request.GET.get("to") or _following(run)
    state = _editable(request, run, lambda: present(run).shown, run.state)
    of = Sheet(
        "Skip the step",
        f"Skip {run.step}, go on at {to}",
        lambda run: services.preview_skip(run, to),
        "what the step did stays done",
    )

    def fresh(run: Run, typed: Mapping[str, Any]) -> VerbForm:
        initial = with_seen(run, **{"to": to, "state": state.text, **typed})
        return SkipForm(initial=initial, deadline_passed=_late(run), with_state=with_state)

    with_state = state.text is not None
    more: dict[str, Any] = {"choices": _steps(run, to), "looks": with_state}
    if not with_state:
        more["aside"] = f"The state cannot be edited here: {state.why_not}. The run goes on with it as it is."
    if request.method == "GET":
        return sheet(request, run, of, fresh(run, {}), **more)
    form = SkipForm(request.POST, deadline_passed=_late(run), with_state=with_state)
    if looked := _look(request, run, of, form, "state", lambda: present(run).shown, more):
        return looked
    return carry_out(
        request,
        run,
        of,
        form,
        lambda **given: (
            services.skip(
                by, run_id, seen_plan=seen_plan(request), confirmed=confirmed(request), **given
            ).sentence
        ),
        fresh,
        **more,
    )


def _following(run: Run) -> str:
    """The step that the workflow declares after this one: where a skipped step leads most often."""
    steps = steps_after(run)
    after = steps[steps.index(run.step) + 1 :] if run.step in steps else steps
    return (after or steps or [""])[0]


def _steps(run: Run, to: str) -> Choices:
    all_of_them = [
        Choice(name, f"?{urlencode({'to': name})}#preview", name == to) for name in steps_after(run)
    ]
    return Choices("Go on at", all_of_them)


def _late(run: Run) -> bool:
    return run.deadline_at is not None and run.deadline_at <= clock.now()


def _editable(request: HttpRequest, run: Run, read: Callable[[], Any], recorded: Any = None) -> Editable:
    """What `read` returns, as text to edit. Where `recorded` says that it is large, it is not read for that."""
    if not access.may_see_payloads(request.user, run):
        return Editable(None, "you may not see it")
    size, text = _size_apart(recorded), ""
    try:
        if size <= EDITABLE:
            text = _text(read())
    except StateMismatch as error:
        return Editable(None, str(error))
    size = max(size, len(text))
    if size > EDITABLE:
        return Editable(None, f"it is {readable(size)} of JSON, and at most {readable(EDITABLE)} are shown")
    return Editable(text)


def _size_apart(recorded: Any) -> int:
    """Bytes of a value that is stored apart from its row; 0 for any other, which is small."""
    if blobs.is_marker(recorded):
        return blobs.size_of(recorded)
    return history.size_of(recorded) if history.is_pointer(recorded) else 0


def _look(
    request: HttpRequest,
    run: Run,
    of: Sheet,
    form: VerbForm,
    name: str,
    before: Callable[[], Any],
    more: Mapping[str, Any],
) -> HttpResponse | None:
    """Where the person asked what changes: the page with the difference, and everything as it was typed."""
    if "look" not in request.POST or name not in form.fields:
        return None
    form.is_valid()
    if name in form.errors:
        return sheet(request, run, of, form, status=422, **more)
    form.errors.clear()  # a reason is asked for when it is done
    return sheet(request, run, of, form, differs=_differs(before(), form.cleaned_data[name]), **more)


# --- change the priority ---------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.bulk")
def prioritise(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Change the run's place in the order in which workers take runs."""
    run, by = access.run_or_404(request.user, run_id, "runs.bulk"), actor(request)
    given = number_of(request.POST.get("priority") or request.GET.get("priority"))
    # Whoever comes here without a choice mostly wants it sooner.
    higher = run.priority + 1 if run.priority < max(PRIORITIES) else run.priority - 1
    priority = given if given is not None and given in PRIORITIES else higher
    of = Sheet(
        "Change the priority",
        f"Give it priority {priority}",
        lambda run: services.preview_prioritise(run, priority),
        bare=True,
        facts=_places(request, run, priority),
    )

    def fresh(run: Run, typed: Mapping[str, Any]) -> VerbForm:
        return PriorityForm(initial=with_seen(run, **{"priority": priority, **typed}))

    all_of_them = [
        Choice(str(one), f"?{urlencode({'priority': one})}#preview", one == priority)
        for one in reversed(PRIORITIES)
    ]
    more: dict[str, Any] = {
        "choices": Choices("Priority", all_of_them),
        "aside": "Each point is a minute’s head start over runs that become due at the same time; 0 is none.",
    }
    if request.method == "GET":
        return sheet(request, run, of, fresh(run, {}), **more)
    return carry_out(
        request,
        run,
        of,
        PriorityForm(request.POST),
        lambda **given: services.prioritise(by, run_id, **given).sentence,
        fresh,
        **more,
    )


def _places(request: HttpRequest, run: Run, priority: int) -> Sequence[tuple[str, str]]:
    """What a person should know before: priority and place in the queue, as they are and as they would be."""
    facts = [("Priority", f"{run.priority} now, {priority} then")]
    found = places(run, priority)
    if found is not None and access.condition(request.user) is not None:
        return facts  # runs that are not theirs to see stand in the queue, too
    if found is not None:
        now, then = (f"{PLACES:,}+" if one > PLACES else f"{one:,}" for one in found)
        facts.append((f"Due before it in queue {run.queue}", f"{now} now, {then} then"))
    else:
        facts.append(("When it acts", "once the run is due"))
    return facts


# --- edit the state --------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
@access.required("runs.edit_state", "runs.view_payload")
def edit_state(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Put another state in the place of the run's own."""
    run, by = access.run_or_404(request.user, run_id, "runs.edit_state", "runs.view_payload"), actor(request)
    state = _editable(request, run, lambda: present(run).shown, run.state)

    def preview(run: Run) -> services.Consequence:
        if state.text is None:
            raise StateMismatch(f"its state cannot be edited here: {state.why_not}")
        return services.preview_edit_state(run)

    def fresh(run: Run, typed: Mapping[str, Any]) -> VerbForm:
        return StateForm(initial=with_seen(run, **{"state": state.text or "", **typed}))

    of = Sheet("Edit the state", f"Edit the state of step {run.step}", preview)
    more: dict[str, Any] = {"looks": True}
    if request.method == "GET":
        return sheet(request, run, of, fresh(run, {}), **more)
    form = StateForm(request.POST)
    if looked := _look(request, run, of, form, "state", lambda: present(run).shown, more):
        return looked
    return carry_out(
        request,
        run,
        of,
        form,
        lambda **given: services.edit_state(by, run_id, seen_plan=seen_plan(request), **given).sentence,
        fresh,
        **more,
    )


# --- fork ------------------------------------------------------------------------------------------------------------

EDITS = {"": "The same input and state", "input": "Another input", "state": "Another state"}


@require_http_methods(["GET", "POST"])
@access.required("runs.fork_run")
def fork(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Make a new run that begins at a visit of this one."""
    source, by = access.run_or_404(request.user, run_id, "runs.fork_run"), actor(request)
    shown = _listed_visits(request, source)
    visit = _visit(request, source, shown)
    edits = request.GET.get("edit", "")
    parts = _parts(request, source, visit)
    texts = {name: part.text for name, part in parts.items() if part.text is not None}
    edits = edits if edits in texts else ""

    def fresh(run: Run, typed: Mapping[str, Any]) -> VerbForm:
        initial = {"visit": visit, "version": run.version, **texts, **typed}
        return ForkForm(initial=with_seen(run, **initial), edits=edits, versions=_versions(run, visit))

    def begin(**given: Any) -> services.Done:
        given = {name: value for name, value in given.items() if name != "version" or value is not None}
        given.setdefault("input", NOT_GIVEN)
        return services.fork(by, run_id, seen_plan=seen_plan(request), again=confirmed(request), **given)

    of = Sheet(
        "Fork",
        f"Fork from visit {visit}",
        lambda run: services.preview_fork(run, visit),
        "a new run; this one stays as it is",
    )
    more: dict[str, Any] = {
        "choices": _chosen_visits(request, shown, visit),
        "editing": [
            Choice(label, f"?{urlencode({'visit': str(visit), 'edit': name})}#preview", name == edits)
            for name, label in EDITS.items()
            if not name or name in texts
        ],
        "aside": " ".join(
            f"The {name} cannot be edited here: {part.why_not}. The fork has it as it is."
            for name, part in parts.items()
            if part.text is None
        ),
        "looks": bool(edits),
        "action": request.get_full_path(),
    }
    if request.method == "GET":
        return sheet(request, source, of, fresh(source, {}), **more)
    form = ForkForm(request.POST, edits=edits, versions=_versions(source, visit))
    if edits and (
        looked := _look(request, source, of, form, edits, lambda: _before(source, visit, edits), more)
    ):
        return looked
    return carry_out(
        request,
        source,
        of,
        form,
        begin,
        fresh,
        leads_to=lambda done: reverse("runs:run", args=[done.run.pk]),
        **more,
    )


#: So many visits are offered at once.
VISITS = 12


def _before_visit(request: HttpRequest) -> int | None:
    return number_of(request.GET.get("before"))


def _listed_visits(request: HttpRequest, source: Run) -> list[Visit]:
    return visits(source, before=_before_visit(request), most=VISITS)


def _visit(request: HttpRequest, source: Run, shown: Sequence[Visit]) -> int:
    """The visit that is asked for; the one where the run stands, or stood last at a step, by default."""
    asked = number_of(request.POST.get("visit") or request.GET.get("visit"))
    if asked is not None:
        return asked
    last = shown if _before_visit(request) is None else visits(source, most=1)
    return last[0].number if last else source.step_seq


def _chosen_visits(request: HttpRequest, shown: Sequence[Visit], visit: int) -> Choices:
    url = request.path
    all_of_them = [
        Choice(
            f"{one.number} {one.step}",
            f"{url}?{urlencode({'visit': one.number})}#preview",
            one.number == visit,
        )
        for one in shown
    ]
    more = f"{url}?{urlencode({'visit': visit, 'before': shown[-1].number})}" if len(shown) == VISITS else ""
    return Choices("Begin at visit", all_of_them, more)


def _before(source: Run, visit: int, edits: str) -> Any:
    """The input or state that the fork would have without an edit, as people may see it. Raises StateMismatch."""
    if edits == "state":
        return state_at(source, visit).shown
    try:
        return blobs.whole([source.input])[0]
    except blobs.BlobDamaged as error:
        raise StateMismatch(f"its input cannot be read: {error}") from None


def _parts(request: HttpRequest, source: Run, visit: int) -> dict[str, Editable]:
    """What of a fork can be edited, or why not."""
    return {
        "input": _editable(request, source, lambda: _shown(source, visit, "input"), source.input),
        "state": _editable(request, source, lambda: _shown(source, visit, "state")),
    }


def _shown(source: Run, visit: int, name: str) -> Any:
    """An input is read by its type, so that it stands there without tags; a state is not."""
    value = _before(source, visit, name)
    return codec.plain(value) if name == "input" else value


def _versions(source: Run, visit: int) -> list[int]:
    """Versions of the workflow that this process knows and that have the step, the run's own first."""
    try:
        step = step_of(source, visit)
    except Invalid:
        return [source.version]
    registry.load()
    known = WORKFLOWS.get(source.workflow, {})
    others = sorted((v for v, declared in known.items() if step in declared[-1].steps), reverse=True)
    return [source.version, *(v for v in others if v != source.version)]
