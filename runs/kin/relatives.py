"""Where the page of a run leads: its forks, and how many other runs are on its subject."""

from collections.abc import Mapping

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, Func, IntegerField, OuterRef
from django.db.models.expressions import Combinable
from django.db.models.functions import JSONObject, Lower

from runs import access, selectors
from runs.models import Run

#: Newest forks of a run that its page names.
FORKS = 20


def beside(user: access.Person) -> Mapping[str, Combinable]:
    """To be read with a run: `forks`, newest first, and `on_subject`, itself counted, up to COUNT_LIMIT + 1; of those that the
    person may see. Indexes run_forks and run_subject_begins.
    """
    forks = access.visible(user, Run.objects.filter(forked_from=OuterRef("pk"))).order_by("-id")
    told = JSONObject(id=F("pk"), status=F("status"), visit=F("forked_visit"), by=F("started_by_name"))
    same = Run.objects.exclude(subject="").alias(low=Lower("subject"))
    same = access.visible(user, same.filter(low=Lower(OuterRef("subject")), subject=OuterRef("subject")))
    some = same.order_by().values("pk")[: selectors.COUNT_LIMIT + 1]
    return {
        "forks": ArraySubquery(forks.values(row=told)[: FORKS + 1]),
        "on_subject": Func(ArraySubquery(some), function="cardinality", output_field=IntegerField()),
    }
