from django.apps import AppConfig


class AgentopsConfig(AppConfig):
    """The project itself: commands, system checks, static files."""

    name = "agentops"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from agentops import checks, sign_ins  # noqa: F401  (registers the checks)

        sign_ins.connect()
