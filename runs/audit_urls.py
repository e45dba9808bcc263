"""Pages of the audit."""

from django.urls import path

from runs.views import audit, chain

app_name = "audit"
urlpatterns = [
    path("", audit.entries, name="list"),
    path("export/", audit.export, name="export"),
    path("chain/", chain.chain, name="chain"),
    path("changes/<uuid:change>/", audit.change, name="change"),
    path("runs/<uuid:run_id>/", chain.of_run, name="run_chain"),
    path("runs/<uuid:run_id>/<int:number>/", audit.event, name="event"),
]
