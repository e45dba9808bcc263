"""Pages of those who administer: limits and workers. Included by runs/urls.py, in its namespace."""

from django.urls import path

from runs.views import limits, workers

urlpatterns = [
    path("limits/", limits.limits, name="limits"),
    path("limits/set/<slug:scope>/<path:name>/", limits.set_limit, name="set_limit"),
    path("limits/pause/<slug:scope>/<path:name>/", limits.pause, name="pause"),
    path("limits/resume/<slug:scope>/<path:name>/", limits.resume, name="resume"),
    path("limits/end/<slug:limit>/<slug:scope>/<path:name>/", limits.end_temporary, name="end_temporary"),
    path("limits/revert/<uuid:change>/", limits.revert, name="revert"),
    path("limits/sort/<path:workflow>/", limits.sort_waiting, name="sort_waiting"),
    path("limits/<slug:scope>/<path:name>/", limits.limit, name="limit"),
    path("workers/", workers.workers, name="workers"),
    path("workers/<uuid:worker_id>/ask/<slug:what>/", workers.ask, name="ask_worker"),
]
