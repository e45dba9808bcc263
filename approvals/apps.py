from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "approvals"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from approvals import waits
        from approvals.models import Answer, Approval, ApprovalVersion, Question, Vote
        from approvals.requests import four_eyes
        from runs.bundles import bundle

        waits.register()
        bundle.register("approvals", lambda run: Approval.objects.filter(run=run).order_by("id"))
        bundle.register(
            "approval_versions", lambda run: ApprovalVersion.objects.filter(approval__run=run).order_by("id")
        )
        bundle.register("approval_votes", lambda run: Vote.objects.filter(approval__run=run).order_by("id"))
        bundle.register("approval_questions", lambda run: Question.objects.filter(run_id=run).order_by("id"))
        bundle.register("approval_answers", lambda run: Answer.objects.filter(run_id=run).order_by("pk"))
        four_eyes.register()
