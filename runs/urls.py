from django.urls import URLPattern, URLResolver, include, path

from runs import webhooks
from runs.views import bundle, doubt, failures, lists, moving, page, starting, subjects, verbs

app_name = "runs"

_run = "runs/<uuid:run_id>/"
_operation = f"{_run}operations/<uuid:operation_id>/"

urlpatterns: list[URLPattern | URLResolver] = [
    path("runs/", lists.runs, name="list"),
    path("runs/subjects/", subjects.subject, name="subject"),
    path("runs/start/", starting.workflows, name="start"),
    path("runs/start/<str:workflow>/", starting.start, name="start_workflow"),
    path(_run, page.run, name="run"),
    path(f"{_run}attempts/<int:visit>/<int:number>/", page.attempt, name="attempt"),
    path(f"{_run}values/<slug:what>/", page.value, name="value"),
    path(f"{_run}record/<slug:part>/<uuid:row_id>/", page.record_value, name="record_value"),
    path(_operation, page.operation, name="operation"),
    path(f"{_operation}values/<slug:what>/", page.operation_value, name="operation_value"),
    path(f"{_run}retry/", verbs.retry, name="retry"),
    path(f"{_run}cancel/", verbs.cancel, name="cancel"),
    path(f"{_run}force-resume/", verbs.force_resume, name="force_resume"),
    path(f"{_run}kill/", verbs.kill, name="kill"),
    path(f"{_run}fork/", moving.fork, name="fork"),
    path(f"{_run}skip/", moving.skip, name="skip"),
    path(f"{_run}state/", moving.edit_state, name="edit_state"),
    path(f"{_run}priority/", moving.prioritise, name="prioritise"),
    path(f"{_run}compare/", failures.compare, name="compare"),
    path(f"{_run}signal/", verbs.signal, name="signal"),
    path(f"{_run}bundle/", bundle.export, name="bundle"),
    path(f"{_operation}answer/", doubt.answer, name="answer_doubt"),
    path(f"{_operation}evidence/<uuid:evidence_id>/", doubt.evidence, name="evidence"),
    path("workers/<uuid:worker_id>/gone/", doubt.declare_gone, name="declare_gone"),
    path("failures/", failures.failure_groups, name="failures"),
    path("failures/<uuid:fingerprint>/", failures.failure_group, name="failure"),
    path("failures/<uuid:fingerprint>/<slug:what>/", failures.change_failure, name="change_failure"),
    path("webhooks/<slug:source>", webhooks.receive, name="webhook"),
    path("", include("runs.limits_urls")),
    path("", include("runs.bulk.urls")),
]
