from django.apps import AppConfig
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models.signals import post_migrate

APPEND_ONLY = (
    "runs_attempt",
    "runs_event",
    "runs_audit_event",
    "runs_audit_link",
    "runs_start_key",
    "runs_evidence",
    "approvals_vote",
    "approvals_version",
    "approvals_policy_revision",
    "approvals_request_vote",
    "approvals_question",
    "approvals_answer",
    "approvals_comment",
)


def grant_to_app_role(using: str = DEFAULT_DB_ALIAS, **kwargs: object) -> None:
    """Give the role that web and workers assume what it needs, and no UPDATE or DELETE on append-only tables."""
    connection = connections[using]
    tables = connection.introspection.table_names()
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'agentops_app')")
        if not cursor.fetchone()[0]:
            return
        cursor.execute("GRANT USAGE ON SCHEMA public TO agentops_app")
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO agentops_app")
        cursor.execute("GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO agentops_app")
        for table in APPEND_ONLY:
            if table in tables:
                cursor.execute(f"REVOKE UPDATE, DELETE ON {table} FROM agentops_app")
        # Retention: what the role may not do itself, this function does, for finished runs of a certain age.
        cursor.execute("SELECT to_regproc('agentops_delete_runs') IS NOT NULL")
        if cursor.fetchone()[0]:
            cursor.execute("GRANT EXECUTE ON FUNCTION agentops_delete_runs TO agentops_app")


class RunsConfig(AppConfig):
    name = "runs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from runs import checks  # noqa: F401
        from runs.kin import children  # noqa: F401

        post_migrate.connect(grant_to_app_role, sender=self)
