"""Pages of policies."""

from django.urls import path

from approvals.policies import views

app_name = "policies"
_what = "<slug:scope>/<path:name>/"
urlpatterns = [
    path("", views.index, name="list"),
    path(f"edit/{_what}", views.edit, name="edit"),
    path(f"tried/{_what}", views.tried, name="tried"),
    path(f"clear/{_what}", views.clear, name="clear"),
    path(f"apply/{_what}", views.reapply, name="reapply"),
    path("revert/<slug:scope>/<path:name>/<int:revision>/", views.revert, name="revert"),
    path(_what, views.policy, name="policy"),
]
