"""Pages of requests."""

from django.urls import path

from approvals import request_views

app_name = "requests"
urlpatterns = [
    path("", request_views.index, name="list"),
    path("<uuid:request_id>/", request_views.one, name="request"),
    path("<uuid:request_id>/decide/", request_views.decide, name="decide"),
    path("<uuid:request_id>/withdraw/", request_views.withdraw, name="withdraw"),
]
