"""Who acts when a verb is called from the command line."""

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from runs.lifecycle import Actor

COMMAND_LINE = Actor("command line")


def add_actor(parser: CommandParser) -> None:
    parser.add_argument(
        "--as",
        dest="username",
        metavar="USER",
        help="act as this user, with their permissions; without it the history says “command line”",
    )


def actor_of(username: str | None) -> Actor:
    """The actor that the option names. Raises CommandError for a user that does not exist."""
    if username is None:
        return COMMAND_LINE
    try:
        return Actor.of(get_user_model()._default_manager.get_by_natural_key(username))
    except get_user_model().DoesNotExist:
        raise CommandError(f"there is no user {username!r}") from None
