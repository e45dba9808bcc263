from django.apps import AppConfig


class DemoConfig(AppConfig):
    """Sample workflows against the sandbox, and the command that shows them at work."""

    name = "agentops.demo"
    label = "demo"
    default_auto_field = "django.db.models.BigAutoField"
