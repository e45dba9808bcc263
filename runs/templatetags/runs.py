"""Words of runs for templates."""

from typing import Any

from django import template
from django.template import Context

from agentops.console.jsonview import Folded
from runs import access, blobs, codec, history
from runs.models import Run
from runs.pages import limit_page, timeline
from runs.selectors import COUNT_LIMIT

register = template.Library()

register.filter("step_name", timeline.step_name)


@register.filter
def recorded(value: Any) -> Any:
    """A recorded value as people read it: tags of dates, Decimals and the like resolved to text; folded if stored apart."""
    if blobs.is_marker(value):
        return Folded(blobs.size_of(value))
    if history.is_pointer(value):
        return Folded(history.size_of(value))
    return codec.plain(value)


@register.filter
def in_words(kind: str) -> str:
    """The kind of an event as words: "cancel_requested" as "Cancel requested"."""
    return kind.replace("_", " ").capitalize()


@register.filter
def up_to(number: int) -> str:
    """A number that was counted up to a limit: "1,000+"."""
    return f"{COUNT_LIMIT:,}+" if number > COUNT_LIMIT else f"{number:,}"


@register.filter
def counted(number: int) -> str:
    """A number as people read it: "5,000"."""
    return f"{number:,}"


@register.simple_tag(takes_context=True)
def may(context: Context, permission: str, run: Run | None = None) -> bool:
    """Whether whoever looks at the page has the permission on the run; without a run: for any part at all."""
    return access.may(context["request"].user, permission, run)


@register.inclusion_tag("runs/limits_acting_list.html", takes_context=True)
def temporary_limits(context: Context, run: Run) -> dict[str, Any]:
    """Banners of limits that act on this run for a while. One query."""
    user = context["request"].user
    found = limit_page.acting(limit_page.read_for(context["request"]), run)
    return {
        "found": [one for one in found if limit_page.may_see(user, one.one.scope, one.one.name)],
        "may_change": bool(found) and access.may(user, "runs.change_limits", Run(workflow=run.workflow)),
        "now": context.get("now"),
    }
