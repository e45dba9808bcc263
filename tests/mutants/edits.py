"""Mutants: the source with one rule taken away, and the tests that must then fail.

Each edit is an exact piece of a file that stands there once; `test_edits.py` holds that against today's source.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """In the file at `path`, `old` becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """`rules` are names in docs/proof.md; `tests` are pytest node ids without `[…]`, any of which must fail."""

    name: str
    rules: tuple[str, ...]
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


STATEMENTS = "runs/engine/statements.py"
EXECUTION = "runs/engine/execution.py"
EXECUTOR = "runs/engine/executor.py"
LEASES = "runs/engine/leases.py"
DOUBT = "runs/engine/doubt.py"
EFFECTS = "runs/engine/effects.py"
SENDING = "runs/engine/sending.py"
REQUESTS = "runs/engine/requests.py"
CLOSING = "runs/engine/closing.py"
WORKER = "runs/engine/worker.py"
RULES = "tests/model/test_rules.py::test_"


def mutant(name: str, rule: str, path: str, old: str, new: str, *tests: str) -> Mutant:
    """With one edit. A test without a file is one of tests/model/test_rules.py."""
    return Mutant(name, tuple(rule.split()), (Edit(path, old, new),), tuple(map(_where, tests)))


def _where(test: str) -> str:
    return test if "::" in test else f"{RULES}{test}"


UNCLAIMED = "a_thawed_attempt_whose_run_waits_for_its_next_claim_writes_nothing"
THAWED = "a_thawed_attempt_whose_run_is_executed_elsewhere_writes_nothing"
LOST_MOVE = "a_move_that_gave_the_run_away_is_not_made_again_when_its_answer_is_lost"

MUTANTS = (
    # --- the fence
    mutant(
        "hot statements without the epoch",
        "epoch_fence",
        STATEMENTS,
        " AND r.epoch = p.epoch AND r.step_seq",
        " AND r.step_seq",
        THAWED,
    ),
    mutant(
        "transactions under the run's lock without the epoch",
        "epoch_fence",
        EXECUTION,
        "if run.epoch != self.epoch or run.step_seq",
        "if run.step_seq",
        THAWED,
    ),
    mutant(
        "hot statements without the visit",
        "step_seq_fence",
        STATEMENTS,
        " AND r.step_seq = p.seq AND {_RUNNING}",
        " AND {_RUNNING}",
        "a_goto_whose_answer_is_lost_moves_the_cursor_once",
    ),
    mutant(
        "hot statements without the status",
        "status_fence",
        STATEMENTS,
        'r.step_seq = p.seq AND {_RUNNING}"',
        'r.step_seq = p.seq"',
        UNCLAIMED,
    ),
    mutant(
        "the attempt is not read back after a lost answer",
        "read_back",
        EXECUTION,
        "if back is not None and unsure and back[2] is not None:",
        "if False:",
        LOST_MOVE,
    ),
    mutant(
        "a colder move is not read back after a lost answer",
        "read_back",
        EXECUTION,
        "if unsure and self.ended_by_me():",
        "if False:",
        LOST_MOVE,
    ),
    mutant(
        "what is inserted does not lock its run",
        "locked_insert",
        STATEMENTS,
        " AND ({also}) FOR NO KEY UPDATE {{wait}}) AS held",
        " AND ({also})) AS held",
        "an_insert_sees_the_fence_as_it_is_when_the_take_over_commits",
    ),
    # --- the intent, and who may send
    mutant(
        "an intent that does not say that it is under way",
        "intent_first",
        STATEMENTS,
        "'effect', p.name, false, p.digest, 'pending',",
        "'effect', p.name, false, p.digest, 'retry',",
        "what_was_sent_without_an_answer_is_on_record_before_it_is_sent",
    ),
    mutant(
        "no margin before a send",
        "lease_margin deadline_margin",
        SENDING,
        "if not execution.may_send():",
        "if False:",
        "a_thawed_worker_whose_lease_is_over_does_not_send",
        "a_send_after_the_attempts_deadline_is_not_made",
    ),
    mutant(
        "no margin of the lease",
        "lease_margin",
        EXECUTION,
        "self.lease.allows_send and self.time_left",
        "self.time_left",
        "a_thawed_worker_whose_lease_is_over_does_not_send",
    ),
    mutant(
        "no margin of the attempt's deadline",
        "deadline_margin",
        EXECUTION,
        "self.lease.allows_send and self.time_left > 0",
        "self.lease.allows_send",
        "a_send_after_the_attempts_deadline_is_not_made",
    ),
    mutant(
        "a beat renews a closed row",
        "closed_row",
        STATEMENTS,
        "WHERE w.id = %(worker)s AND w.closed_at IS NULL\n",
        "WHERE w.id = %(worker)s\n",
        "a_worker_that_was_taken_for_dead_cannot_beat_itself_back_to_life",
    ),
    mutant(
        "no pause after a restart of PostgreSQL",
        "restart_pause",
        LEASES,
        "  AND pg_postmaster_start_time() + make_interval(secs => %s) < statement_timestamp()",
        "  AND %s > 0",
        "tests/runs/engine/test_recovery.py::"
        "test_after_a_restart_of_postgresql_every_worker_has_one_lease_to_beat_again",
    ),
    Mutant(
        "a living worker's runs are taken over",
        ("dead_owner_only",),
        (
            Edit(
                LEASES,
                "SELECT r.id, r.worker_id, w.closed_at IS NOT NULL FROM",
                "SELECT r.id, r.worker_id, true FROM",
            ),
            Edit(
                LEASES,
                " AND (w.closed_at IS NOT NULL OR r.wake_at < agentops_now() - interval '2 seconds')",
                "",
            ),
        ),
        (f"{RULES}a_run_is_not_taken_from_a_worker_that_lives",),
    ),
    mutant(
        "a run may kill workers for ever",
        "close_dead_attempt",
        CLOSING,
        "if run.lone_crashes >= limits.crash_limit:",
        "if False:",
        "a_run_that_kills_each_worker_ends_in_the_dead_letter",
    ),
    mutant(
        "a stray run stays with its worker",
        "reconcile",
        WORKER,
        "for run_id, epoch in strays.keys() & self._strays.keys():",
        "for run_id, epoch in set[tuple[uuid.UUID, int]]():",
        "a_claim_whose_answer_is_lost_is_handed_back",
    ),
    mutant(
        "the sentinel leaves a worker alone whose lease is over",
        "kill_expired",
        "agentops/cluster/sentinel.py",
        "if worker.id in expired:",
        "if False:",
        "tests/cluster/test_kill.py::test_a_stopped_worker_whose_lease_is_over_is_killed_and_reaped",
    ),
    # --- what an earlier attempt left open
    mutant(
        "a silent sender counts as dead",
        "reaped",
        DOUBT,
        "return _Doubt(False, False, None)",
        "return _Doubt(True, True, None)",
        "what_is_absent_is_not_sent_again_while_its_sender_may_still_act",
    ),
    mutant(
        "absent is absent at once",
        "settled",
        DOUBT,
        "may_send = doubt.sender_ended and doubt.settled",
        "may_send = doubt.sender_ended",
        "what_is_absent_is_not_sent_again_before_the_settle_time_has_passed",
    ),
    mutant(
        "the settle time runs from the intent",
        "settle_from_end",
        DOUBT,
        "settles_at = min(ends) + tool.settle",
        "settles_at = cast(datetime, record.first_sent_at) + tool.settle",
        "the_settle_time_runs_from_the_senders_end_and_not_from_its_intent",
    ),
    Mutant(
        "whether it may be sent again is decided after the provider was asked",
        ("flags_before_query",),
        (
            Edit(DOUBT, "    may_send = doubt.sender_ended and doubt.settled\n", ""),
            Edit(
                DOUBT,
                "    if not may_send:\n",
                "    doubt = yield Block(lambda: _look_at_sender(record, tool))\n"
                "    if not (doubt.sender_ended and doubt.settled):\n",
            ),
        ),
        (f"{RULES}whether_it_may_be_sent_again_is_decided_before_the_provider_is_asked",),
    ),
    mutant(
        "a second send under the first one's intent",
        "restamp",
        STATEMENTS,
        "SET intent_epoch = %(epoch)s, intent_worker_id = %(worker)s, intent_at = agentops_now(),\n    attempt_no",
        "SET intent_at = agentops_now(),\n    attempt_no",
        "a_second_send_is_the_new_senders_and_not_the_dead_ones",
    ),
    mutant(
        "an outcome is taken whoever's it is",
        "intent_fences_outcome",
        SENDING,
        "if operation.status == OpStatus.PENDING and mine:",
        "if operation.status == OpStatus.PENDING:",
        "an_error_that_arrives_late_says_nothing_about_the_newer_send",
    ),
    mutant(
        "the window of a key is not looked at in its new intent",
        "key_window",
        STATEMENTS,
        "  AND (%(window)s::float8 IS NULL OR o.first_sent_at + make_interval(secs => %(window)s) > agentops_now())\n",
        "",
        "a_key_is_not_used_again_once_its_window_has_passed_between_decision_and_intent",
    ),
    mutant(
        "a key is used until its window's last second",
        "window_margin",
        DOUBT,
        "window = tool.idempotent - timedelta(seconds=visit.execution.lease.seconds)",
        "window = tool.idempotent",
        "a_key_is_not_used_again_with_less_than_a_lease_of_its_window_left",
    ),
    mutant(
        "a call that ended counts for nothing",
        "call_ended",
        DOUBT,
        "ends = [record.call_ended_at] if record.call_ended_at else []",
        "ends: list[datetime] = []",
        "a_call_that_ended_without_an_answer_is_over_although_its_worker_lives_on",
    ),
    mutant(
        "it is looked for for ever",
        "give_up_to_person",
        DOUBT,
        "if looks >= max(limits.max_attempts, LOOKS):",
        "if False:",
        "a_person_is_asked_when_nobody_can_prove_that_the_sender_has_ended",
    ),
    mutant(
        "“it did not happen” is believed",
        "no_needs_proof",
        "runs/services/doubt.py",
        "if not proof.accepted:",
        "if False:",
        "it_did_not_happen_is_not_accepted_while_the_request_can_land",
    ),
    mutant(
        "a worker that is declared gone is not proof",
        "declare_gone",
        "runs/services/doubt.py",
        ' gone_by = %s,"\n            " reaped_at = statement_timestamp()"\n',
        ' gone_by = %s"\n',
        "a_worker_that_nobody_reaps_can_be_declared_gone",
    ),
    mutant(
        "an outcome leaves its run in attention",
        "outcome_rearms",
        SENDING,
        "        lifecycle.rearm_after_outcome(run, execution.actor)\n",
        "",
        "an_outcome_that_arrives_while_people_are_asked_lets_the_run_go_on",
    ),
    mutant(
        "people are asked although the outcome is there",
        "outcome_rearms",
        EXECUTOR,
        "        if operation.status != OpStatus.PENDING:\n            lifecycle.requeue(run)\n            return\n",
        "",
        "nobody_is_asked_about_an_outcome_that_has_arrived_meanwhile",
    ),
    mutant(
        "a run ends with an effect in doubt",
        "doubt_before_end",
        "runs/lifecycle.py",
        "    if doubtful:\n        ask_doubt(run, doubtful[0], actor)\n        return\n    run.status = status\n",
        "    run.status = status\n",
        "a_run_that_is_given_up_with_an_effect_in_doubt_asks_a_person",
    ),
    mutant(
        "a retry takes the next key whatever is under way",
        "same_key_until_settled",
        "runs/services/retry.py",
        "            operation.status = OpStatus.PENDING if operation.earlier_send_open else OpStatus.RETRY\n"
        "            operation.generation += not operation.earlier_send_open\n",
        "            operation.status = OpStatus.RETRY\n            operation.generation += 1\n",
        "a_refused_effect_keeps_its_key_while_an_earlier_send_can_land",
    ),
    mutant(
        "a retry sends again behind a send that may have landed",
        "same_key_until_settled",
        "runs/services/retry.py",
        "OpStatus.PENDING if operation.earlier_send_open else OpStatus.RETRY",
        "OpStatus.RETRY",
        "a_retry_does_not_send_again_when_the_provider_may_have_forgotten_the_key_of_an_earlier_send",
    ),
    # --- cancel
    mutant(
        "an intent does not look at the cancel",
        "cancel_checked_in_intent",
        STATEMENTS,
        '"r.cancel_requested_at IS NULL OR r.compensating",',
        '"true",',
        "no_intent_follows_a_cancel",
    ),
    mutant(
        "an intent of a compensation is refused by the cancel",
        "compensation_exempt",
        STATEMENTS,
        '"r.cancel_requested_at IS NULL OR r.compensating",',
        '"r.cancel_requested_at IS NULL",',
        "compensations_begin_although_cancel_was_asked_for",
    ),
    mutant(
        "a goto does not look at the cancel",
        "cancel_beats_result",
        STATEMENTS,
        '"r.cancel_requested_at IS NULL AND (r.deadline_at IS NULL',
        '"(r.deadline_at IS NULL',
        "a_cancel_beats_the_checkpoint_that_it_meets",
    ),
    mutant(
        "a complete does not look at the cancel",
        "cancel_beats_result",
        STATEMENTS,
        '_NO_DOUBT = """r.cancel_requested_at IS NULL\n      AND NOT EXISTS',
        '_NO_DOUBT = """NOT EXISTS',
        "a_cancel_beats_the_checkpoint_that_it_meets",
    ),
    mutant(
        "under a cancel a pending effect is sent again",
        "cancel_asks",
        DOUBT,
        "if in_window and not stop:",
        "if in_window:",
        "under_a_cancel_a_pending_effect_is_asked_about_and_not_sent",
    ),
    # --- waits and approvals
    mutant(
        "what is already settled is not looked at when a wait opens",
        "reread_waits",
        EXECUTOR,
        "            settled = sum(self._already_settled(run, operation) for operation in opened) > 0\n",
        "            settled = False\n",
        "a_signal_that_comes_while_its_wait_opens_is_found",
    ),
    mutant(
        "a decided request can be decided again",
        "winner_guard",
        "approvals/services.py",
        "    _check_open(actor, approval)\n    if version != approval.version or",
        "    if version != approval.version or",
        "of_two_opposite_decisions_the_second_is_told_that_it_lost",
    ),
    mutant(
        "a vote counts whatever it was shown",
        "version_guard",
        "approvals/services.py",
        "if version != approval.version or not constant_time_compare(digest, approval.digest):",
        "if False:",
        "a_vote_on_the_version_before_the_edit_does_not_count",
    ),
    mutant(
        "an intent believes what its attempt was told of the approval",
        "intent_rechecks",
        EFFECTS,
        'if not approvals.confirm(confirmed, approval.true_result["version"]):',
        "if False:",
        "an_intent_looks_at_its_approval_again",
    ),
    # --- beyond the model
    mutant(
        "a batch waits for locked runs",
        "batch",
        STATEMENTS,
        'self.sql.replace("{wait}", "SKIP LOCKED")',
        'self.sql.replace("{wait}", "")',
        "tests/runs/engine/test_batches.py::test_a_locked_run_holds_up_no_other_member",
    ),
    mutant(
        "a batch whose answer is lost counts as refused",
        "batch",
        "runs/engine/batches.py",
        "error=str(error))\n            return {}, True\n",
        "error=str(error))\n            return {}, False\n",
        "tests/runs/engine/test_batches.py::test_a_batch_whose_answer_is_lost_is_applied_once_for_each",
    ),
    mutant(
        "a run completes with an effect in doubt",
        "doubt_before_end",
        STATEMENTS,
        "\n      AND NOT EXISTS (SELECT FROM runs_operation o WHERE o.run_id = r.id AND o.status = 'pending')\n",
        "\n",
        "tests/runs/engine/test_batches.py::test_a_run_with_an_effect_in_doubt_does_not_complete_with_its_batch",
    ),
    mutant(
        "what is executed is not compared with what was voted on",
        "digest",
        "approvals/waits.py",
        'if not codec.is_keyed_digest(recorded["arguments"], approval.digest) or not _carried(approval):',
        "if not _carried(approval):",
        "tests/approvals/test_decide.py::test_arguments_changed_after_the_vote_do_not_pass",
    ),
    mutant(
        "an operation with other arguments is taken for the recorded one",
        "divergence",
        REQUESTS,
        "if not same:",
        "if False:",
        "tests/runs/engine/test_steps.py::test_divergence_stops_before_a_second_effect",
    ),
    mutant(
        "history can be changed",
        "append_only",
        "runs/migrations/0003_retention.py",
        "        RETURN OLD;\n    END IF;\n    RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP"
        " USING ERRCODE = 'restrict_violation';\n",
        "        RETURN OLD;\n    END IF;\n    RETURN coalesce(NEW, OLD);\n",
        "tests/runs/test_schema.py::test_not_even_the_owner_changes_history",
    ),
)
