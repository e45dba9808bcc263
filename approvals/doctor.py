"""Checks of `manage.py doctor` on approvals: what runs is what was approved, by who may, on the version they saw."""

import json
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from runs import codec, redaction
from runs.doctor import ERROR, WARNING, Finding, Snapshot, data


@data
def approval_and_operation(at: Snapshot) -> Iterator[Finding]:
    """An approval is open and its operation is not, or the other way round."""
    return at.find(
        ERROR,
        "SELECT 'approval ' || a.id || ' is ' || a.state || ', its operation ' || o.status FROM approvals_approval a"
        " JOIN runs_operation o ON o.id = a.operation_id WHERE (a.state = 'open') <> (o.status = 'open')"
        " UNION ALL SELECT 'operation ' || o.id || ' has no approval' FROM runs_operation o"
        " WHERE o.kind = 'approval' AND o.status = 'open'"
        " AND NOT EXISTS (SELECT FROM approvals_approval a WHERE a.operation_id = o.id)"
        " UNION ALL SELECT 'approval ' || a.id || ' has no operation' FROM approvals_approval a"
        " WHERE NOT EXISTS (SELECT FROM runs_operation o WHERE o.id = a.operation_id)",
        "Nobody can decide what the run waits for: cancel the run, or force it on, and report it.",
    )


@data
def decided_without_votes(at: Snapshot) -> Iterator[Finding]:
    """An approval is decided, but not by as many votes on exactly this version as its requirement asks for."""
    return at.find(
        ERROR,
        "SELECT 'approval ' || a.id || ' is ' || a.state || ' by ' || a.decided_by FROM approvals_approval a,"
        " LATERAL (SELECT count(*) FILTER (WHERE v.verdict = 'approve') AS yes,"
        "   count(*) FILTER (WHERE v.verdict = 'reject') AS no FROM approvals_vote v"
        "   WHERE v.approval_id = a.id AND v.version = a.version AND v.digest = a.digest) votes"
        " WHERE (a.state = 'approved' AND votes.yes < (a.requirement ->> 'votes')::int"
        "     AND NOT (a.decided_by = 'clock' AND a.requirement ->> 'on_expiry' = 'approve'))"
        "   OR (a.state = 'rejected' AND votes.no = 0)"
        "   OR (a.state = 'expired' AND a.decided_by <> 'clock')",
        "Somebody wrote a decision behind the application: find out who, and whether what it allowed has run.",
    )


@data
def vote_by_excluded(at: Snapshot) -> Iterator[Finding]:
    """Somebody voted whom the requirement excludes. (Earlier versions may have had another requirement.)"""
    return at.find(
        ERROR,
        "SELECT 'approval ' || a.id || ': ' || v.verdict || ' by ' || v.voter_name FROM approvals_vote v"
        " JOIN approvals_approval a ON a.id = v.approval_id, jsonb_array_elements(a.requirement -> 'excluded') person"
        " WHERE v.version = a.version AND (person -> 'id' = to_jsonb(v.voter_id) OR person ->> 'name' = v.voter_name)",
        "The vote does not count: let somebody else look at what was approved.",
    )


@data
def vote_outside_groups(at: Snapshot) -> Iterator[Finding]:
    """Somebody voted who is not named, and in none of the required groups. They may have left since: this is only a hint."""
    return at.find(
        WARNING,
        "SELECT 'approval ' || a.id || ': ' || v.verdict || ' by ' || v.voter_name FROM approvals_vote v"
        " JOIN approvals_approval a ON a.id = v.approval_id WHERE v.version = a.version"
        " AND NOT coalesce(a.requirement -> 'users', '[]') @> jsonb_build_array(jsonb_build_object('id', v.voter_id))"
        " AND NOT EXISTS (SELECT FROM auth_user_groups m"
        "   JOIN auth_group g ON g.id = m.group_id WHERE m.user_id = v.voter_id AND a.requirement -> 'groups' ? g.name)",
        "If they had not left the group after voting, the vote was not theirs to give.",
    )


@data
def vote_on_other_digest(at: Snapshot) -> Iterator[Finding]:
    """A vote, or the approval itself, names another payload than the version that it belongs to."""
    return at.find(
        ERROR,
        "SELECT 'approval ' || v.approval_id || ': vote of ' || v.voter_name || ' on version ' || v.version FROM approvals_vote v"
        " WHERE NOT EXISTS (SELECT FROM approvals_version w WHERE w.approval_id = v.approval_id AND w.version = v.version"
        "   AND w.digest = v.digest)"
        " UNION ALL SELECT 'approval ' || a.id || ' version ' || a.version FROM approvals_approval a"
        " WHERE NOT EXISTS (SELECT FROM approvals_version w WHERE w.approval_id = a.id AND w.version = a.version"
        "   AND w.digest = a.digest)",
        "Somebody changed what was voted on behind the application: do not rely on this approval.",
    )


@data
def vote_without_event(at: Snapshot) -> Iterator[Finding]:
    """A vote is not in its run's history, or the history tells of a vote that is not there."""
    return at.find(
        ERROR,
        "WITH told AS (SELECT e.run_id, e.data ->> 'approval' AS approval, e.data ->> 'version' AS version,"
        "   e.data ->> 'digest' AS digest, e.data ->> 'verdict' AS verdict, e.actor_id FROM runs_event e WHERE e.kind = 'vote'),"
        " cast_ AS (SELECT a.run_id, v.approval_id::text AS approval, v.version::text AS version, v.digest, v.verdict,"
        "   v.voter_id::bigint AS actor_id FROM approvals_vote v JOIN approvals_approval a ON a.id = v.approval_id)"
        " SELECT 'approval ' || approval || ': vote without event' FROM (TABLE cast_ EXCEPT TABLE told) silent"
        " UNION ALL SELECT 'approval ' || approval || ': event without vote' FROM (TABLE told EXCEPT TABLE cast_) invented",
        "Somebody added or removed votes behind the application: compare with a backup.",
    )


@data
def consumed_not_approved(at: Snapshot) -> Iterator[Finding]:
    """A run took a decision over that is not a yes."""
    return at.find(
        ERROR,
        "SELECT 'approval ' || a.id || ' is ' || a.state FROM approvals_approval a"
        " WHERE a.consumed_at IS NOT NULL AND a.state <> 'approved'",
        "An effect may have happened without approval: look at the run's operations.",
    )


@data
def payload_not_as_signed(at: Snapshot) -> Iterator[Finding]:
    """The payload of a version is not the one that its keyed digest was made of."""

    if not _has_key():
        return iter(())

    def wrong() -> Iterator[str]:
        rows = at.stream(
            "SELECT approval_id, version, payload, payload_sealed, digest FROM approvals_version"
        )
        for approval, version, payload, sealed, digest in rows:
            if not _is_signed(payload, sealed, digest):
                yield f"approval {approval} version {version}"

    return at.collect(
        ERROR,
        wrong(),
        "Somebody changed a payload behind the application, or the secret key was changed and the earlier one is not in"
        " AGENTOPS_SECRET_KEY_FALLBACKS.",
    )


@data
def executed_not_as_approved(at: Snapshot) -> Iterator[Finding]:
    """An effect was sent without approval, though a request for it stands before it, or with other arguments."""

    if not _has_key():
        return iter(())

    def wrong() -> Iterator[str]:
        rows = at.stream(
            "SELECT o.id, o.name, a.state, a.consumed_at IS NOT NULL, a.digest,"
            "   CASE WHEN o.approved IS NULL THEN o.request ELSE o.approved END,"
            "   CASE WHEN o.approved IS NULL THEN o.request_sealed ELSE o.approved_sealed END"
            " FROM runs_operation o JOIN runs_operation gate ON gate.run_id = o.run_id AND gate.step_seq = o.step_seq"
            "   AND gate.position = o.position || '/approval' AND gate.kind = 'approval'"
            " JOIN approvals_approval a ON a.operation_id = gate.id WHERE o.kind = 'effect' AND o.intent_at IS NOT NULL"
        )
        for operation, name, state, consumed, digest, sent, sealed in rows:
            if state != "approved" or not consumed:
                yield f"operation {operation} ({name}): its approval is {state}"
            elif not _is_signed(sent, sealed, digest):
                yield f"operation {operation} ({name}): other arguments than approved"

    return at.collect(
        ERROR,
        wrong(),
        "Find out from the provider what happened, and from the run's history who was asked for what.",
    )


@data
def policy_asks_nobody(at: Snapshot) -> Iterator[Finding]:
    """A rule of a policy made of data names a group that is not there, or a person who is switched off."""
    return at.find(
        WARNING,
        "WITH rule AS (SELECT p.scope || ' ' || p.name AS policy, r.value AS rule FROM approvals_policy p,"
        "   jsonb_array_elements(p.rules) r WHERE p.active)"
        " SELECT policy || ': group ' || g FROM rule, jsonb_array_elements_text("
        "   coalesce(rule -> 'groups', '[]') || coalesce(rule -> 'escalate_to', '[]')) g"
        " WHERE NOT EXISTS (SELECT FROM auth_group WHERE name = g)"
        " UNION ALL SELECT policy || ': ' || (person ->> 'name') FROM rule,"
        "   jsonb_array_elements(coalesce(rule -> 'users', '[]')) person"
        " WHERE NOT EXISTS (SELECT FROM auth_user WHERE id = (person ->> 'id')::bigint AND is_active)",
        "What it asks for may wait for nobody: change its rules.",
    )


def _has_key() -> bool:
    """Without a secret key nothing can be verified; the check of the configuration says that it is missing."""
    try:
        return bool(settings.SECRET_KEY)
    except ImproperlyConfigured:
        return False


def _is_signed(display: str, sealed: Any, digest: str) -> bool:
    """Whether the digest is that of the true value (`display`: JSON as text), under the secret key or an earlier one."""
    return codec.is_keyed_digest(redaction.true_value(json.loads(display), sealed), digest)
