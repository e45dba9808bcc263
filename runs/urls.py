from django.urls import URLPattern, URLResolver, path

from runs import webhooks

app_name = "runs"
urlpatterns: list[URLPattern | URLResolver] = [
    path("webhooks/<slug:source>", webhooks.receive, name="webhook"),
]
