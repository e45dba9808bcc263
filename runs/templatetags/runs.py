"""Words of runs for templates."""

from typing import Any

from django import template

from runs import codec, timeline

register = template.Library()

register.filter("step_name", timeline.step_name)


@register.filter
def recorded(value: Any) -> Any:
    """A recorded value as people read it: tags of dates, Decimals and the like resolved to text."""
    return codec.plain(value)


@register.filter
def in_words(kind: str) -> str:
    """The kind of an event as words: "cancel_requested" as "Cancel requested"."""
    return kind.replace("_", " ").capitalize()


@register.filter
def counted(number: int) -> str:
    """A number as people read it: "5,000"."""
    return f"{number:,}"
