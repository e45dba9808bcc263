"""Pages of policies."""

from django.urls import path

from approvals import policy_views

app_name = "policies"
_what = "<slug:scope>/<path:name>/"
urlpatterns = [
    path("", policy_views.index, name="list"),
    path(f"edit/{_what}", policy_views.edit, name="edit"),
    path(f"tried/{_what}", policy_views.tried, name="tried"),
    path(f"clear/{_what}", policy_views.clear, name="clear"),
    path(f"apply/{_what}", policy_views.reapply, name="reapply"),
    path("revert/<slug:scope>/<path:name>/<int:revision>/", policy_views.revert, name="revert"),
    path(_what, policy_views.policy, name="policy"),
]
