"""Pages of those who administer: limits and workers. Included by runs/urls.py, in its namespace."""

from django.urls import path

from runs.views import limits, workers

urlpatterns = [
    path("limits/", limits.limits, name="limits"),
    path("limits/set/<slug:scope>/<path:name>/", limits.set_limit, name="set_limit"),
    path("limits/pause/<path:workflow>/", limits.pause, name="pause"),
    path("limits/resume/<path:workflow>/", limits.resume, name="resume"),
    path("limits/<slug:scope>/<path:name>/", limits.limit, name="limit"),
    path("workers/", workers.workers, name="workers"),
]
