"""Export a run as a support bundle."""

import uuid
from typing import IO

from django.db import transaction

from runs.bundles import bundle
from runs.errors import NotFound
from runs.lifecycle import Actor
from runs.models import AuditEvent, Run
from runs.services.verb import permit


def export_bundle(actor: Actor, run_id: uuid.UUID) -> IO[bytes]:
    """A file, at its beginning, with all that people may see of a run; the caller closes it. The audit says who took it.

    Results of child runs are in it as far as the person may see those: see `bundle.written`.

    The run itself is not touched: it may be at work, and forms that are open on its page stay good.

    Raises NotFound, NotAllowed (may not see the run, or what is in it).
    """
    run = Run.objects.filter(pk=run_id).only("workflow", "subject").first()
    if run is None:
        raise NotFound(f"there is no run {run_id}")
    permit(actor, "runs.view_run", run=run)
    permit(actor, "runs.view_payload", run=run)
    with transaction.atomic():
        AuditEvent.objects.create(
            kind="bundle_exported", target=f"run {run_id}", actor_user_id=actor.id, actor=actor.name
        )
    return bundle.written(run_id, actor.name, actor.user)
