"""The audit's two tables as SQL: what a person looks for and may see, newest first, by one index each; see `runs.pages.audit`."""
# ruff: noqa: S608 (what is put together here are constants; values are parameters)

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from django.db import connection

from agentops.console.numbers import number_of
from runs import access
from runs.models import Policy
from runs.models.audit import ACTED_BY_POLICIES
from runs.pages import audit_words as words

#: Names that are offered for the filter by person.
NAMES = 100
#: A workflow or subject with at most so many runs is looked up by its runs, else by time.
FEW_RUNS = 200
#: Requests are in both tables, of those that are about a run; a list of both shows them once.
_TWICE = tuple(words.FAMILIES["requests"].kinds)
#: What a policy decided on, or people under it.
_UNDER_POLICY = (*words.FAMILIES["decisions"].kinds, "approval_policy_applied")


EVENT = "e.at, e.run_id, e.seq, e.kind, e.actor_id, e.actor, e.reason, e.data, r.workflow, r.subject"
CHANGE = "a.at, a.id, a.kind, a.target, a.actor_id, a.actor, a.reason, a.old, a.new"


@dataclass(frozen=True)
class Place:
    """Where a page begins: before this entry. Audit events come before events of the same microsecond."""

    at: datetime
    run_id: uuid.UUID | None = None
    seq: int = 0
    event_id: uuid.UUID | None = None

    def __str__(self) -> str:
        key = f"e{self.run_id}.{self.seq}" if self.run_id else f"a{self.event_id}"
        return f"{self.at.astimezone(UTC):%Y%m%dT%H%M%S.%f}-{key}"

    @property
    def order(self) -> tuple[datetime, int, uuid.UUID, int]:
        if self.run_id is not None:
            return self.at, 0, self.run_id, self.seq
        assert self.event_id is not None
        return self.at, 1, self.event_id, 0

    @classmethod
    def parse(cls, text: str) -> "Place | None":
        """None for what is no place."""
        moment, _, key = text.partition("-")
        try:
            at = datetime.strptime(moment, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
            if key[:1] == "a":
                return cls(at, event_id=uuid.UUID(key[1:]))
            run_id, _, seq = key[1:].partition(".")
            number = number_of(seq)
            return cls(at, uuid.UUID(run_id), number) if key[:1] == "e" and number is not None else None
        except ValueError:
            return None


@dataclass(frozen=True)
class Chosen:
    """What to look for; "" and None: anything."""

    person: str = ""
    what: str = ""
    """A kind, or a family of kinds."""
    run: uuid.UUID | None = None
    workflow: str = ""
    subject: str = ""
    policy: str = ""
    """Scope and name, such as “tool refund”: of limits, or of approvals."""
    target: str = ""
    """What an audit event is about, as it is stored: “bulk …”."""
    since: datetime | None = None
    until: datetime | None = None
    """The moment after the last."""

    @property
    def narrowed(self) -> bool:
        return self != Chosen()

    @property
    def about_runs(self) -> bool:
        """It names runs, so that what is outside them is found only where it is about these."""
        return bool(self.run or self.workflow or self.subject)

    def stored(self) -> dict[str, str]:
        """For the audit of an export."""
        told = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.isoformat() if isinstance(value, datetime) else str(value)
            for name, value in told.items()
            if value
        }


@dataclass(frozen=True)
class Query:
    """Keys of the rows that are looked through, and which of them are found."""

    keys: str
    found: str
    columns: str
    order: str
    last: str
    parameters: dict[str, Any]
    looks: int
    size: int
    prefix: str
    forward: bool

    @property
    def sql(self) -> str:
        """Rows: how many were looked through and the last of them, then a row that was found, or NULL for none."""
        last = ", ".join(f"{one} AS last_{number}" for number, one in enumerate(self.last.split(", ")))
        back = ", ".join(
            f"{one} {'DESC' if self.forward else 'ASC'}" for one in self.last.replace(", 0", "").split(", ")
        )
        return (
            f"WITH looked AS MATERIALIZED ({self.keys}),"
            f" found AS MATERIALIZED (SELECT {self.columns}, row_number() OVER (ORDER BY {self.order}) AS place"
            f" {self.found} ORDER BY {self.order} LIMIT %({self.prefix}_size)s)"
            f" SELECT l.*, found.* FROM (SELECT count(*) OVER () AS number, {last} FROM looked ORDER BY {back} LIMIT 1) AS l"
            f" LEFT JOIN found ON true ORDER BY found.place"
        )

    @property
    def counting(self) -> str:
        """One column: how many were found, up to a limit, and how many were looked through."""
        return (
            f"(WITH looked AS MATERIALIZED ({self.keys}) SELECT ARRAY[(SELECT count(*) FROM (SELECT {self.found}"
            f" LIMIT %({self.prefix}_size)s) AS counted), (SELECT count(*) FROM looked)])"
        )

    def place(self, last: Sequence[Any]) -> Place:
        at, key, seq = last
        return Place(at, run_id=key, seq=seq) if self.columns is EVENT else Place(at, event_id=key)


class Search:
    """A choice and a person as SQL."""

    def __init__(self, user: access.Person, chosen: Chosen, *, forward: bool = False) -> None:
        """`forward`: the oldest first, from a place on to what is newer than that."""
        self.user, self.chosen, self.forward = user, chosen, forward
        self.direction, self.beyond = ("ASC", ">") if forward else ("DESC", "<")
        self.kinds = words.kinds_of(chosen.what) if chosen.what else ()

    # Events of runs

    @property
    def has_events(self) -> bool:
        return not (self.chosen.target and self.chosen.run is None) and (
            not self.kinds or bool(self._event_kinds)
        )

    @cached_property
    def _event_kinds(self) -> tuple[str, ...]:
        """The kinds to look for, of events; those that stand in the other table as well are left out."""
        kinds = self.kinds
        if not kinds and self.chosen.policy:
            kinds = _UNDER_POLICY
        return kinds if self.chosen.about_runs else tuple(kind for kind in kinds if kind not in _TWICE)

    @cached_property
    def _few(self) -> Sequence[uuid.UUID] | None:
        """The runs that it is about, where they are few; None: look by time."""
        chosen = self.chosen
        if chosen.run is not None:
            return [chosen.run]
        if not chosen.workflow and not chosen.subject:
            return None
        # By run_subject_begins, or by run_by_workflow.
        by = (
            "lower(subject) = lower(%(subject)s) AND subject = %(subject)s"
            if chosen.subject
            else "workflow = %(workflow)s"
        )
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT id FROM runs_run WHERE {by} LIMIT {FEW_RUNS + 1}",
                {"subject": chosen.subject, "workflow": chosen.workflow},
            )
            found = [run_id for (run_id,) in cursor.fetchall()]
        return found if len(found) <= FEW_RUNS else None

    def events(self, place: Place | None, size: int, looks: int) -> Query:
        """Of runs, beyond a place."""
        chosen, parameters, prefix = self.chosen, dict[str, Any](), "n"
        few = self._few
        within = self._within("e", parameters, prefix)
        if place is not None:
            if place.run_id is None:
                within += f" AND e.at {'>' if self.forward else '<='} %({prefix}_at)s"
            else:
                key = f"(%({prefix}_at)s, %({prefix}_run)s::uuid, %({prefix}_seq)s)"
                within += f" AND (e.at, e.run_id, e.seq) {self.beyond} {key}"
            parameters |= {
                f"{prefix}_at": place.at,
                f"{prefix}_run": place.run_id,
                f"{prefix}_seq": place.seq,
            }
        more = self._of_event(parameters, prefix)
        if few is None and not chosen.about_runs:
            parameters[f"{prefix}_twice"] = list(_TWICE)
            within += f" AND e.kind <> ALL (%({prefix}_twice)s::text[])"
        kinds = self._event_kinds
        parameters |= {f"{prefix}_kinds": list(kinds), f"{prefix}_person": chosen.person}
        by_person = f" AND e.actor = %({prefix}_person)s" if chosen.person else ""
        of_kind = f" AND e.kind = ANY (%({prefix}_kinds)s::text[])" if kinds else ""
        order = "ORDER BY " + self._order("e", "at", "run_id", "seq")
        if few is not None:
            parameters[f"{prefix}_few"] = list(few)
            more += by_person + of_kind
            source = (
                f"(SELECT e.* FROM (SELECT e.* FROM runs_event e WHERE e.run_id = ANY (%({prefix}_few)s::uuid[]) AND {_ACTED}"
                f" OFFSET 0) AS e WHERE true{within})"
            )
        elif kinds and not chosen.person:
            source = self._by_kind(
                kinds, parameters, f"SELECT e.* FROM runs_event e WHERE {_ACTED}{within}", "e", order, prefix
            )
        else:
            more += of_kind
            source = f"(SELECT e.* FROM runs_event e WHERE {_ACTED}{by_person}{within} {order} LIMIT %({prefix}_looks)s)"
        looks = looks if more else size + 1
        parameters |= {f"{prefix}_looks": looks, f"{prefix}_size": size + 1}
        return Query(
            keys=f"SELECT e.at, e.run_id, e.seq FROM {source} AS e {order} LIMIT %({prefix}_looks)s",
            found=f"FROM looked JOIN runs_event e USING (run_id, seq) JOIN runs_run r ON r.id = looked.run_id WHERE true{more}",
            columns=EVENT,
            order=self._order("looked", "at", "run_id", "seq"),
            last="at, run_id, seq",
            parameters=parameters,
            looks=looks,
            size=size,
            prefix=prefix,
            forward=self.forward,
        )

    def _of_event(self, parameters: dict[str, Any], prefix: str) -> str:
        """What has to be asked of each row and its run."""
        chosen, more = self.chosen, ""
        if chosen.workflow:
            more += f" AND r.workflow = %({prefix}_workflow)s"
        if chosen.subject:
            more += f" AND r.subject = %({prefix}_subject)s"
        if chosen.policy:
            more += _UNDER.format(prefix=prefix)
        scope, _, name = chosen.policy.partition(" ")
        parameters |= {
            f"{prefix}_workflow": chosen.workflow,
            f"{prefix}_subject": chosen.subject,
            f"{prefix}_scope": scope,
            f"{prefix}_policy": name,
        }
        seen = self._runs_seen(parameters)
        return f"{more} AND {seen}" if seen else more

    def _runs_seen(self, parameters: dict[str, Any]) -> str:
        """Which runs the person sees, asked of the row `r` and not of an index: `runs.access.reaches` in SQL; "" for all."""
        if access.everywhere(self.user, "runs.view_run"):
            return ""
        parts = access.scopes(self.user, "runs.view_run")
        parameters["seen_workflows"] = [one.name for one in parts if one.scope == one.Scope.WORKFLOW]
        parameters["seen_subjects"] = [one.name for one in parts if one.scope == one.Scope.SUBJECT]
        return (
            "(r.workflow = ANY (%(seen_workflows)s::text[]) OR EXISTS ("
            "SELECT FROM unnest(%(seen_subjects)s::text[]) AS begins (name) WHERE starts_with(r.subject, begins.name)))"
        )

    # What was changed outside runs

    def changes(self, place: Place | None, size: int, looks: int) -> Query:
        """Outside runs, beyond a place."""
        chosen, parameters, prefix = self.chosen, dict[str, Any](), "c"
        within = self._within("a", parameters, prefix)
        if place is not None:
            if place.event_id is None:
                within += f" AND a.at {'>=' if self.forward else '<'} %({prefix}_at)s"
            else:
                within += f" AND (a.at, a.id) {self.beyond} (%({prefix}_at)s, %({prefix}_id)s::uuid)"
            parameters |= {f"{prefix}_at": place.at, f"{prefix}_id": place.event_id}
        more = self.changes_seen(parameters)
        parameters |= {f"{prefix}_kinds": list(self.kinds), f"{prefix}_person": chosen.person}
        by_person = f" AND a.actor = %({prefix}_person)s" if chosen.person else ""
        of_kind = f" AND a.kind = ANY (%({prefix}_kinds)s::text[])" if self.kinds else ""
        order = "ORDER BY " + self._order("a", "at", "id")
        targets = self._targets(parameters, prefix)
        if targets:
            more += by_person + of_kind
            source = (
                f"(SELECT a.* FROM (SELECT a.* FROM ({targets}) AS t (target) JOIN runs_audit_event a USING (target) OFFSET 0)"
                f" AS a WHERE true{within})"
            )
        elif self.kinds and not chosen.person:
            source = self._by_kind(
                self.kinds,
                parameters,
                f"SELECT a.* FROM runs_audit_event a WHERE true{within}",
                "a",
                order,
                prefix,
            )
        else:
            more += of_kind
            source = f"(SELECT a.* FROM runs_audit_event a WHERE true{by_person}{within} {order} LIMIT %({prefix}_looks)s)"
        looks = looks if more else size + 1
        parameters |= {f"{prefix}_looks": looks, f"{prefix}_size": size + 1}
        return Query(
            keys=f"SELECT a.at, a.id FROM {source} AS a {order} LIMIT %({prefix}_looks)s",
            found=f"FROM looked JOIN runs_audit_event a USING (id) WHERE true{more}",
            columns=CHANGE,
            order=self._order("looked", "at", "id"),
            last="at, id, 0",
            parameters=parameters,
            looks=looks,
            size=size,
            prefix=prefix,
            forward=self.forward,
        )

    def _targets(self, parameters: dict[str, Any], prefix: str) -> str:
        """A query for the targets that it is about; "" for any. Several choices: what is about all of them."""
        chosen, queries = self.chosen, []

        def among(name: str, given: Sequence[str]) -> str:
            parameters[f"{prefix}_{name}"] = list(given)
            return f"SELECT unnest(%({prefix}_{name})s::text[])"

        if chosen.target:
            queries.append(among("target", [chosen.target]))
        if chosen.policy:
            queries.append(among("policies", [chosen.policy, f"approval policy of {chosen.policy}"]))
        if chosen.run or chosen.subject:
            queries.append(among("runs", [f"run {one}" for one in self._few or ()]))
        if chosen.workflow and not (chosen.run or chosen.subject):
            named = [f"workflow {chosen.workflow}", f"approval policy of workflow {chosen.workflow}"]
            parameters[f"{prefix}_step"] = f"{chosen.workflow}/"
            queries.append(
                f"({among('named', named)}"
                f" UNION SELECT 'step ' || name FROM runs_policy WHERE scope = '{Policy.Scope.STEP}'"
                f" AND starts_with(name, %({prefix}_step)s)"
                f" UNION SELECT 'failure ' || fingerprint FROM runs_failure_group WHERE workflow = %({prefix}_of)s)"
            )
            parameters[f"{prefix}_of"] = chosen.workflow
        return " INTERSECT ".join(queries)

    def changes_seen(self, parameters: dict[str, Any]) -> str:
        """For who sees a part of the runs: what is about a run or a group of failures only where they see that."""
        seen = self._runs_seen(parameters)
        if not seen:
            return ""
        return _CHANGES_SEEN.format(seen=seen)

    def _by_kind(
        self, kinds: Sequence[str], parameters: dict[str, Any], rows: str, alias: str, order: str, prefix: str
    ) -> str:
        """The newest of each kind, one branch each: the server knows how rare a kind is that it is told by name."""
        parameters |= {f"{prefix}_kind{number}": kind for number, kind in enumerate(kinds)}
        branches = [
            f"({rows} AND {alias}.kind = %({prefix}_kind{number})s {order} LIMIT %({prefix}_looks)s)"
            for number in range(len(kinds))
        ]
        return f"({' UNION ALL '.join(branches)})"

    def _order(self, alias: str, *columns: str) -> str:
        return ", ".join(f"{alias}.{column} {self.direction}" for column in columns)

    def _within(self, alias: str, parameters: dict[str, Any], prefix: str) -> str:
        told = ""
        for name, sign, moment in (("since", ">=", self.chosen.since), ("until", "<", self.chosen.until)):
            if moment is not None:
                parameters[f"{prefix}_{name}"] = moment
                told += f" AND {alias}.at {sign} %({prefix}_{name})s"
        return told


_ACTED_KINDS = ", ".join(f"'{kind}'" for kind in ACTED_BY_POLICIES)
#: `runs.models.audit.ACTED` as SQL, so that the indexes with this condition serve.
_ACTED = f"(e.actor_id IS NOT NULL OR e.actor = 'command line' OR e.kind IN ({_ACTED_KINDS}))"

#: Approvals that were asked for by a policy: the one that their code names, or one for the tool or the workflow.
_UNDER = """
 AND EXISTS (SELECT FROM approvals_approval p WHERE e.data ? 'approval' AND p.id = (e.data ->> 'approval')::uuid
    AND CASE %({prefix}_scope)s WHEN 'policy' THEN p.policy WHEN 'tool' THEN p.name WHEN 'workflow' THEN r.workflow END
        = %({prefix}_policy)s)
"""

# A request is about a run, about one of its operations, or about limits.
_CHANGES_SEEN = """
 AND (a.target !~ '^(run|request|failure) ' OR EXISTS (
    SELECT FROM (SELECT CASE WHEN a.target ~ '^request ' THEN a.new ->> 'target' ELSE a.target END AS thing) AS about
    JOIN runs_run r ON r.id = CASE WHEN about.thing ~ '^run [0-9a-f-]{{36}}$' THEN substr(about.thing, 5)::uuid
        WHEN about.thing ~ '^operation [0-9a-f-]{{36}}$' THEN (
            SELECT o.run_id FROM runs_operation o WHERE o.id = substr(about.thing, 11)::uuid) END
    WHERE {seen})
    OR EXISTS (SELECT FROM runs_failure_group g CROSS JOIN LATERAL (SELECT g.workflow, '' AS subject) AS r
        WHERE 'failure ' || g.fingerprint = a.target AND {seen})
    OR (a.target ~ '^request ' AND coalesce(a.new ->> 'target', '') !~ '^(run|operation) '))
"""

# Each name by one step through an index, however many entries there are.
NAMES_SQL = f"""
ARRAY(WITH RECURSIVE names (name) AS (
    (SELECT least((SELECT min(e.actor) FROM runs_event e WHERE {_ACTED}), (SELECT min(actor) FROM runs_audit_event)))
    UNION ALL
    SELECT least((SELECT min(e.actor) FROM runs_event e WHERE {_ACTED} AND e.actor > names.name),
                 (SELECT min(a.actor) FROM runs_audit_event a WHERE a.actor > names.name))
    FROM names WHERE names.name IS NOT NULL
) SELECT name FROM names WHERE name IS NOT NULL LIMIT {NAMES})
"""
