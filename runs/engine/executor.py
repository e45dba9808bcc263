"""Attempts: run a step's body, then end the attempt in one transaction, and go on with the next step."""

from __future__ import annotations

import asyncio
import json
import traceback
import uuid
from collections.abc import Callable
from concurrent.futures import Executor as Blocking
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import Max
from pydantic import ValidationError

from runs import clock as business
from runs import codec, history, lifecycle, policies, redaction, registry, sizes, waits
from runs.engine import statements
from runs.engine.activity import Tally
from runs.engine.closing import exhaust, limits_of, spend_failure
from runs.engine.context import AsyncContext, Context
from runs.engine.database import cold
from runs.engine.execution import Execution, Record, attempt_digest, dumps, record_attempt
from runs.engine.lease import clock
from runs.engine.limited import Places
from runs.engine.requests import AskDoubt, BackOff, NoPlace, OpenWait
from runs.engine.statements import Fenced
from runs.engine.values import check_size, first_error
from runs.engine.visit import CONTROL, Visit
from runs.errors import (
    Cancelled,
    ChildFailed,
    ContextClosed,
    Diverged,
    InvalidInput,
    LeaseLost,
    Rejected,
    Suspend,
    ToolFailed,
    UnlabelledParallel,
)
from runs.failpoints import failpoint
from runs.models import Message, Operation, Run
from runs.models.operation import WAIT_KINDS, Kind, OpStatus
from runs.states import AttentionKind, FailureKind, Outcome, Status
from runs.workflow import Complete, Fail, Goto, Step

log = structlog.get_logger(__name__)


REFUSED = "its checkpoint was refused; nothing that it wrote was kept"


class Snapshot:
    """What a worker believes about limits between two looks at the database."""

    def __init__(self) -> None:
        self.overrides: policies.Overrides = {}
        self.kept = policies.Kept({}, {})

    def refresh(self) -> None:
        self.overrides = policies.load()
        approvals: Any = waits.kind(Kind.APPROVAL)
        approvals.refresh()
        self.kept = policies.Kept(self.overrides, registry.declared_limits())


class Executor:
    """Executes claimed runs. One per worker process; `def` steps on the caller's thread, `async def` steps on the loop."""

    def __init__(
        self,
        snapshot: Snapshot,
        draining: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        blocking: Blocking,
        child_ended: Callable[[uuid.UUID, int], None] = lambda wait_id, place: None,
        places: Places | None = None,
        tally: Tally | None = None,
    ) -> None:
        """`child_ended` is told of each child run that completed, after its commit. Without `places` nothing is limited.

        `tally` counts what is executed, for charts.
        """
        self.snapshot, self.draining, self.loop, self.blocking = snapshot, draining, loop, blocking
        self.child_ended, self.places, self.tally = child_ended, places, tally

    def run(self, execution: Execution) -> None:
        """Execute attempts of the run until it is given away. Raises LeaseLost when it was taken away."""
        execution.open()
        if not self._begin(execution):
            return
        if self.tally is not None and execution.step_seq == 1 and execution.attempt_no == 1:
            waited = execution.attempt_started_at - execution.visit_started_at
            self.tally.started(execution.queue, waited.total_seconds())
        while True:
            began, queue = clock(), execution.queue
            step = self._step(execution)
            visit = self._visit(execution, step)
            failpoint("attempt.begun")
            state = execution.fresh_state()
            try:
                if execution.compensating:
                    transition: Any = self._compensate(visit)
                elif step is not None and step.atomic:
                    if self._atomic(visit, step, state) or self._claimed_anew(execution):
                        return
                    continue
                else:
                    assert step is not None
                    transition = self._body(visit, step, state)
            except BaseException as error:
                visit.closed = True
                self._ended_by(visit, error)
                self._count_end(queue, error)
                return
            visit.closed = True
            if visit.stopped is not None:
                # The body caught what it should have let through: what it returned after that counts for nothing.
                self._ended_by(visit, visit.stopped)
                self._count_end(queue, visit.stopped)
                return
            goes_on = self._transition(visit, step, transition, state)
            if self.tally is not None:
                self.tally.stepped(queue, clock() - began, completed=isinstance(transition, Complete))
            if not goes_on:
                return
            if self.draining():
                execution.hand_back()
                return
            if self._claimed_anew(execution):
                return

    def _count_end(self, queue: str, error: BaseException) -> None:
        if self.tally is not None:
            self.tally.ended(queue, suspended=isinstance(control_flow(error), Suspend))

    def _claimed_anew(self, execution: Execution) -> bool:
        """Hand the run back if its next step is limited: only a claim gives a place there."""
        if not self.snapshot.kept.asks_anew(execution.workflow, execution.step, execution.queue):
            return False
        execution.hand_back()
        return True

    # --- before a body -------------------------------------------------------------------------------------------------

    def _begin(self, execution: Execution) -> bool:
        """What is decided at the claim, without executing a body. False if that ended or moved the run."""
        if execution.past_run_deadline and not execution.compensating and not execution.cancel_requested:
            self._end_cold(
                execution,
                Outcome.TIMED_OUT,
                lambda run, digest: lifecycle.end(
                    run,
                    Status.FAILED,
                    lifecycle.CLOCK,
                    reason="its deadline passed",
                    kind=FailureKind.DEADLINE,
                    attempt=digest,
                ),
                error_type="DeadlinePassed",
                error="the run's deadline passed",
            )
            return False
        if execution.cancel_requested:
            if not self._in_doubt(execution):
                self._cancel(execution)
                return False
        elif execution.failures:
            # A retry limit that was lowered meanwhile acts on runs in back-off.
            def recheck(run: Run) -> bool:
                limits = limits_of(run)
                if run.failures < limits.max_attempts:
                    return False
                record_attempt(
                    run, Outcome.FENCED, error="the retry limit was lowered; the body was not executed"
                )
                exhaust(run, execution.actor, reason="the retry limit was lowered", limits=limits)
                return True

            if execution.under_lock(recheck, True):
                return False
        if execution.was == Status.WAITING:
            return self._settle_waits(execution)
        return True

    def _settle_waits(self, execution: Execution) -> bool:
        """Settle what is due among the open waits, without body or attempt. False if the run goes on waiting."""
        records = self._records(execution)
        if not any(record.status == OpStatus.OPEN for record in records.values()):
            execution.recorded = records
            return True

        def settle(run: Run) -> bool:
            still = Operation.objects.select_for_update().filter(
                run_id=run.pk, step_seq=run.step_seq, status=OpStatus.OPEN
            )
            opened = list(still.order_by("ordinal"))
            if sum(self._already_settled(run, operation) for operation in opened) > 0 or not opened:
                return True
            # Settled since the body last looked, while another of its waits is still open.
            waited_for = Operation.objects.filter(
                run_id=run.pk, step_seq=run.step_seq, kind__in=WAIT_KINDS, attempt_no=run.attempt_no - 1
            )
            if waited_for.exclude(status__in=[OpStatus.OPEN, OpStatus.CLOSED]).exists():
                return True
            run.attempt_no -= 1
            self._wait_on(run, opened, settled=False)
            return False

        return execution.under_lock(settle, False)

    def _in_doubt(self, execution: Execution) -> bool:
        return (
            execution.database.once(
                "SELECT 1 FROM runs_operation WHERE run_id = %(run)s AND status = 'pending' LIMIT 1",
                {"run": execution.run_id},
            )
            is not None
        )

    def _step(self, execution: Execution) -> Step | None:
        if execution.compensating:
            return None
        return registry.step(execution.workflow, execution.version, execution.step)

    def _records(self, execution: Execution) -> dict[str, Record]:
        rows = execution.database.all(statements.VISIT, execution.fence())
        records = [Record(*row) for row in rows]
        for record, result in zip(records, execution.whole([r.result for r in records]), strict=True):
            record.result = result
        if copies := [record for record in records if record.copied_from is not None]:
            ids = {"ids": [record.copied_from for record in copies]}
            origins = dict(execution.database.all(statements.ORIGINS, ids))
            for record in copies:
                record.origin = origins.get(record.copied_from)
        return {record.position: record for record in records}

    def _visit(self, execution: Execution, step: Step | None) -> Visit:
        records, execution.recorded = execution.recorded, None
        if records is None:
            records = self._records(execution) if execution.attempt_no > 1 or execution.forked else {}
        return Visit(execution, step, records, self.snapshot.overrides, self.places)

    # --- bodies --------------------------------------------------------------------------------------------------------

    def _body(self, visit: Visit, step: Step, state: Any) -> Any:
        execution = visit.execution
        workflow = registry.workflow(execution.workflow, execution.version)
        given = workflow.validate_input(codec.decode(execution.input))
        if not step.is_async:
            return step.fn(Context(visit, given, state))
        context = AsyncContext(visit, given, state, self.blocking)
        return asyncio.run_coroutine_threadsafe(self._on_loop(visit, step, context), self.loop).result()

    async def _on_loop(self, visit: Visit, step: Step, context: AsyncContext) -> Any:
        limit = asyncio.timeout(max(0.0, visit.execution.time_left))
        try:
            async with limit:
                try:
                    return await step.fn(context)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    # As a value: raised through a task, SystemExit would end the loop with all that runs on it.
                    raise _Carried(control_flow(error) or error) from error
                finally:
                    # Siblings of what ended the body may still be at work: their records belong to this attempt.
                    while visit.in_flight > 0:
                        await asyncio.sleep(0.005)
        except _Carried as carried:
            return carried
        except TimeoutError as error:
            return _Carried(_AttemptTimedOut() if limit.expired() else error)

    def _compensate(self, visit: Visit) -> Any:
        """Undo done effects, newest first, each as a recorded operation."""
        context = Context(visit, None, None)

        def plan(unsure: bool) -> list[tuple[Any, str, dict[str, Any]]]:
            run = Run.objects.get(pk=visit.execution.run_id)
            found = lifecycle.compensable(run)
            # One that is half done is recorded in this visit and must be settled first.
            return [(op.pk, op.compensate_with, _undo_arguments(op)) for op in found]

        for of, tool_name, available in cold(plan, visit.execution.lease):
            tool = registry.tool(tool_name)
            wanted = {name: available[name] for name in tool.arguments.model_fields if name in available}
            context._drive(visit.compensate(tool, of, wanted))
        return _Compensated()

    def _atomic(self, visit: Visit, step: Step, state: Any) -> bool:
        """Body and checkpoint in one transaction of Django's connection, the fence locked last.

        True if the run was given away.
        """
        execution = visit.execution
        workflow = registry.workflow(execution.workflow, execution.version)
        context = Context(visit, workflow.validate_input(codec.decode(execution.input)), state)
        transition: Any = None
        try:
            with transaction.atomic():
                transition = step.fn(context)
                visit.closed = True
                self._check_transition(visit, step, transition)
                kept = self._state(visit, state)
                if isinstance(transition, Goto) and transition.after is None:
                    statement, parameters = self._goto(visit, transition, kept)
                elif isinstance(transition, Complete):
                    statement, parameters = self._complete(visit, transition, kept)
                else:
                    raise InvalidInput("an atomic step may return Goto without a delay, or Complete")
                asked = clock()
                row = execution.write_within(statement, parameters)
                if row is None:
                    raise _RolledBack
                failpoint("atomic.before_commit")
            failpoint("atomic.committed")
        except _RolledBack:
            self._undone(visit)
            return True
        except BaseException as error:
            visit.closed = True
            self._ended_by(visit, error)
            return True
        finally:
            connection.close()
        if isinstance(transition, Complete):
            self._tell_parent(execution)
            return True
        self._move_on(execution, transition, kept, row[0], asked)
        if self.draining():
            execution.hand_back()
            return True
        return False

    def _undone(self, visit: Visit) -> None:
        """The checkpoint of an atomic step was refused, so nothing of it was written: cancel, doubt or the run's deadline."""
        execution = visit.execution

        def decide(run: Run) -> None:
            if run.cancel_requested_at is not None:
                record_attempt(run, Outcome.CANCELLED)
                lifecycle.carry_out_cancel(run, execution.actor)
                return
            if lifecycle.pending_effects(run):
                self._refused_by_doubt(run, execution)
                return
            record_attempt(run, Outcome.FENCED, error=REFUSED)
            lifecycle.requeue(run)  # the claim finds the deadline

        execution.under_lock(decide, None)

    # --- checkpoints ---------------------------------------------------------------------------------------------------

    def _transition(self, visit: Visit, step: Step | None, transition: Any, state: Any) -> bool:
        """Carry out what the body returned. True if the run goes on in this worker."""
        if isinstance(transition, _Carried):
            self._ended_by(visit, transition.error)
            return False
        execution = visit.execution
        try:
            if isinstance(transition, _Compensated):
                self._compensated(visit)
                return False
            assert step is not None
            self._check_transition(visit, step, transition)
            failpoint("checkpoint.before")
            if isinstance(transition, Goto) and transition.after is None:
                kept, asked = self._state(visit, state), clock()
                moved = execution.checkpoint(*self._goto(visit, transition, kept))
                failpoint("checkpoint.committed")
                if moved is not None:
                    self._move_on(execution, transition, kept, moved, asked)
                    return True
            elif isinstance(transition, Complete):
                completion = self._complete(visit, transition, self._state(visit, state))
                if execution.checkpoint(*completion) is not None:
                    failpoint("checkpoint.committed")
                    self._tell_parent(execution)
                    return False
            self._decide_otherwise(visit, step, transition, state)
        except BaseException as error:
            self._ended_by(visit, error)
        return False

    def _tell_parent(self, execution: Execution) -> None:
        if execution.parent_wait is not None and execution.child_index is not None:
            self.child_ended(execution.parent_wait, execution.child_index)

    def _check_transition(self, visit: Visit, step: Step, transition: Any) -> None:
        unused = visit.unused()
        if unused:
            what = ", ".join(f"{r.kind} {r.name} at {r.position}" for r in unused)
            raise Diverged(f"the step ended without coming to what it had recorded: {what}")
        if not isinstance(transition, Goto | Complete | Fail):
            raise InvalidInput(
                f"step {step.name} returned {type(transition).__name__}, not Goto, Complete or Fail"
            )
        if isinstance(transition, Goto) and transition.target not in step.workflow.steps:
            raise InvalidInput(
                f"step {step.name} goes to {transition.target!r}, which {step.workflow.name} does not have"
            )

    def _state(self, visit: Visit, state: Any) -> _Kept:
        execution = visit.execution
        if execution.large is not None:
            return self._large_state(execution, execution.large, state)
        encoded = codec.encode(state, path="ctx.state")
        # Python's 1, 1.0 and True are equal, JSON's are not.
        if encoded == execution.state and codec.canonical(encoded) == codec.canonical(execution.state):
            return _Kept(encoded, None, None, small=execution.small)
        text = check_size("state", encoded, "ctx.state")
        if len(text) >= history.patch_from() and (large := history.begin(encoded)) is not None:
            return self._patched(execution, large, large.true)
        display, sealed = redaction.split(encoded)
        if display is not encoded:
            return _Kept(encoded, dumps(display), sealed)
        after, small = history.keep_small(execution.small, encoded, text)
        return _Kept(encoded, text, None, after, small=small)

    def _large_state(self, execution: Execution, large: history.Large, state: Any) -> _Kept:
        parts = large.parts_now(state)
        if parts == large.true:
            return _Kept(None, None, None, large=large)
        if parts is not None and sum(map(len, parts.values())) >= history.patch_from():
            return self._patched(execution, large, parts)
        # It has become small, or something that is recorded as a whole.
        encoded = codec.encode(state, path="ctx.state")
        text = check_size("state", encoded, "ctx.state")
        display, sealed = redaction.split(encoded)
        return _Kept(encoded, text if display is encoded else dumps(display), sealed)

    def _patched(self, execution: Execution, large: history.Large, parts: history.Parts) -> _Kept:
        text = history.joined(parts)
        if sizes.bytes_of(text, sizes.limit("state")) > sizes.limit("state"):
            check_size("state", history.loaded(parts), "ctx.state")
        kept = history.keep(large, parts, text, execution.step_seq, execution.attempt_no)
        if kept.blob is not None:
            execution.keep([kept.blob])
        return _Kept(None, kept.pointer, None, kept.after, kept.after_sealed, kept.large)

    def _goto(self, visit: Visit, transition: Goto, kept: _Kept) -> tuple[Fenced, dict[str, Any]]:
        execution = visit.execution
        target = registry.step(execution.workflow, execution.version, transition.target)
        return statements.GOTO, {
            "next": target.name,
            "timeout": policies.for_step(target, self.snapshot.overrides).timeout,
            "state": kept.text,
            "state_sealed": kept.sealed,
            "step": execution.step,
            "started": execution.attempt_started_at,
            **kept.apart(),
        }

    def _complete(self, visit: Visit, transition: Complete, kept: _Kept) -> tuple[Fenced, dict[str, Any]]:
        execution = visit.execution
        result = self._result(transition)
        display, result_sealed = redaction.split(result)
        digest = attempt_digest(
            execution.run_id,
            execution.step_seq,
            execution.attempt_no,
            execution.epoch,
            execution.step,
            "succeeded",
            "",
        )
        return statements.COMPLETE, {
            "result": dumps(display),
            "result_sealed": result_sealed,
            "state": kept.text,
            "state_sealed": kept.sealed,
            **kept.apart(),
            "step": execution.step,
            "started": execution.attempt_started_at,
            "actor": execution.actor.name,
            "event": dumps(
                {
                    "step": execution.step,
                    "visit": execution.step_seq,
                    "attempt": digest,
                    "result": codec.digest(result),
                }
            ),
        }

    def _move_on(self, execution: Execution, transition: Goto, kept: _Kept, moved: Any, asked: float) -> None:
        target = registry.step(execution.workflow, execution.version, transition.target)
        if self.places is not None and self.snapshot.kept.of_runs:
            self.places.left_step(execution.workflow, execution.step, execution.queue, stays=True)
        execution.state, execution.large, execution.small = kept.encoded, kept.large, kept.small
        execution.step, execution.step_seq, execution.attempt_no = target.name, execution.step_seq + 1, 1
        execution.failures = execution.crashes = 0
        execution.visit_started_at = execution.attempt_started_at = moved
        # Counted from before the checkpoint was asked for, so that this deadline is not later than the database's.
        execution.deadline = asked + policies.for_step(target, self.snapshot.overrides).timeout

    def _decide_otherwise(self, visit: Visit, step: Step, transition: Any, state: Any) -> None:
        """A checkpoint that the hot statement does not make: cancel, doubt, Fail, or a Goto that waits."""
        execution = visit.execution
        new = self._state(visit, state)

        def decide(run: Run) -> None:
            cancelled = run.cancel_requested_at is not None and not run.compensating
            outcome = Outcome.CANCELLED if cancelled else Outcome.SUCCEEDED
            if isinstance(transition, Fail):
                outcome = Outcome.FAILED
            error = transition.reason if isinstance(transition, Fail) else ""
            if isinstance(transition, Complete) and not cancelled and lifecycle.pending_effects(run):
                # This visit is executed again once a person has answered: nothing of what it made may count.
                self._refused_by_doubt(run, execution)
                return
            digest = record_attempt(
                run, outcome, error_type="Fail" if error else "", error=error, state_after=new.for_attempt()
            )
            if new.text is not None:
                run.state, run.state_sealed = json.loads(new.text), new.sealed
                run.save(update_fields=["state", "state_sealed"])
            if cancelled:
                lifecycle.carry_out_cancel(run, execution.actor)
            elif isinstance(transition, Fail):
                lifecycle.end(
                    run,
                    Status.FAILED,
                    execution.actor,
                    reason=codec.clean_text(transition.reason, 2000),
                    kind=FailureKind.DECLARED,
                    attempt=digest,
                )
            elif isinstance(transition, Goto):
                run.step, run.step_seq = transition.target, run.step_seq + 1
                run.attempt_no = run.failures = run.crashes = run.lone_crashes = 0
                run.visit_started_at = business.now()
                lifecycle.requeue(run, business.now() + (transition.after or timedelta()))
            else:
                # Complete, refused because an effect was in doubt, whose outcome has arrived meanwhile.
                run.result, run.result_sealed = redaction.split(self._result(transition))
                run.save(update_fields=["result", "result_sealed"])
                lifecycle.end(run, Status.COMPLETED, execution.actor, attempt=digest)

        execution.under_lock(decide, None)

    def _refused_by_doubt(self, run: Run, execution: Execution) -> None:
        record_attempt(run, Outcome.FENCED, error=REFUSED)
        lifecycle.ask_doubt(run, lifecycle.pending_effects(run)[0], execution.actor)

    def _result(self, transition: Complete) -> Any:
        """What a Complete returns, encoded. Raises InvalidInput."""
        result = codec.encode(transition.result, path="result")
        check_size("result", result, "result")
        return result

    def _compensated(self, visit: Visit) -> None:
        execution = visit.execution

        def finish(run: Run) -> None:
            digest = record_attempt(run, Outcome.SUCCEEDED)
            reason = f"cancelled by {run.cancel_requested_by}; effects were compensated"
            lifecycle.end(run, Status.CANCELLED, execution.actor, reason=reason, attempt=digest)

        execution.under_lock(finish, None)

    # --- attempts that end otherwise -----------------------------------------------------------------------------------

    def _end_cold(
        self,
        execution: Execution,
        outcome: Outcome,
        move: Callable[[Run, str], None],
        *,
        error_type: str = "",
        error: str = "",
        trace: str = "",
    ) -> None:
        def transact(run: Run) -> None:
            digest = record_attempt(run, outcome, error_type=error_type, error=error, traceback=trace)
            move(run, digest)

        execution.under_lock(transact, None)

    def _cancel(self, execution: Execution) -> None:
        self._end_cold(
            execution, Outcome.CANCELLED, lambda run, digest: lifecycle.carry_out_cancel(run, execution.actor)
        )

    def _ended_by(self, visit: Visit, error: BaseException) -> None:
        """The body raised: control flow of the engine, or an error of its own."""
        execution = visit.execution
        found = control_flow(error) or error
        if visit.stopped is not None and not isinstance(found, LeaseLost):
            found = visit.stopped
        failpoint("attempt.ended")
        if execution.lost or isinstance(found, LeaseLost | ContextClosed):
            execution.lost = True
            raise LeaseLost(str(found)) from error
        if isinstance(found, Suspend):
            self._suspend(visit)
        elif isinstance(found, Cancelled):
            self._cancel(execution)
        elif isinstance(found, Diverged):
            self._diverged(visit, found)
        elif isinstance(found, Exception):
            self._failed(visit, found)
        elif isinstance(found, _AttemptTimedOut):
            self._timed_out(visit)
        else:
            # SystemExit, KeyboardInterrupt and their like are errors of the body, not of this worker.
            self._failed(
                visit, RuntimeError(f"the body raised {type(found).__name__}: {codec.error_text(found)}")
            )

    def _diverged(self, visit: Visit, error: Diverged) -> None:
        self._end_cold(
            visit.execution,
            Outcome.FAILED,
            lambda run, digest: lifecycle.ask_person(
                run, AttentionKind.DIVERGED, error.message, visit.execution.actor, attempt=digest
            ),
            error_type="Diverged",
            error=error.message,
        )

    def _suspend(self, visit: Visit) -> None:
        """Open the waits and give the run away, in one transaction that re-reads what is already settled."""
        failpoint("suspend.before")
        execution = visit.execution

        def transact(run: Run) -> None:
            doubts = [w for w in visit.wants if isinstance(w, AskDoubt)]
            backs = [w for w in visit.wants if isinstance(w, BackOff)]
            full = [w for w in visit.wants if isinstance(w, NoPlace)]
            stop = run.cancel_requested_at is not None and not run.compensating
            doubtful = lifecycle.pending_effects(run) if stop else []
            if stop and not doubts and not doubtful:
                record_attempt(run, Outcome.CANCELLED)
                lifecycle.carry_out_cancel(run, execution.actor)
                return
            now = business.now()
            # Until the doubt is settled and the cancel carried out nothing new begins: a child run would act.
            waits_for = [w for w in visit.wants if isinstance(w, OpenWait) and (w.existing or not stop)]
            opened = [self._open(run, w) for w in waits_for]
            # Every one of them, not only up to the first that is settled.
            settled = sum(self._already_settled(run, operation) for operation in opened) > 0
            error = "; ".join(w.reason for w in backs or full if w.reason)
            retry_at = now + min(w.pause for w in backs) if backs else None
            kind = ("BackOff" if backs else "NoPlace") if error else ""
            digest = record_attempt(run, Outcome.SUSPENDED, error_type=kind, error=error, retry_at=retry_at)
            if doubts:
                self._ask_doubt(run, doubts[0], execution)
                return
            if backs:
                lifecycle.requeue(run, retry_at, status=Status.RETRYING)
                if error:
                    lifecycle.append_event(
                        run,
                        "retrying",
                        execution.actor,
                        error[:2000],
                        step=run.step,
                        visit=run.step_seq,
                        attempt=digest,
                    )
                return
            if doubtful and not opened:
                lifecycle.ask_doubt(run, doubtful[0], execution.actor)
                return
            if full:
                lifecycle.park(run, full[0].hold, full[0].key)
                return
            self._wait_on(run, opened, settled=settled)
            what = [{"kind": o.kind, "name": o.name, "operation": str(o.pk)} for o in opened]
            lifecycle.append_event(
                run, "waiting", execution.actor, step=run.step, visit=run.step_seq, waits=what, attempt=digest
            )
            if settled:
                lifecycle.notify_due(run.queue)

        execution.under_lock(transact, None)
        failpoint("suspend.committed")
        for want in visit.wants:
            if isinstance(want, NoPlace) and self.places is not None:
                self.places.look_again(want.key)

    def _wait_on(self, run: Run, opened: list[Operation], *, settled: bool) -> None:
        """Park the run until the first of its waits or its deadline is over; at once if something is settled.

        If one of them ran out and is left to people, the run needs attention.
        """
        parked = [operation for operation in opened if operation.parked]
        if parked and not settled:
            Operation.objects.filter(pk__in=[operation.pk for operation in parked]).update(expires_at=None)
            lifecycle.ask_person(run, AttentionKind.UNDECIDED, parked[0].parked, lifecycle.CLOCK)
            return
        run.status = Status.WAITING
        run.worker_id = run.attempt_started_at = None
        times = [o.expires_at for o in opened if o.expires_at is not None]
        times += [run.deadline_at] if run.deadline_at else []
        run.wake_at = business.now() if settled else min(times) if times else None
        run.sort_at = None if run.wake_at is None else run.wake_at - lifecycle.head_start(run)
        run.save(
            update_fields=["status", "worker_id", "attempt_started_at", "attempt_no", "wake_at", "sort_at"]
        )

    def _ask_doubt(self, run: Run, doubt: AskDoubt, execution: Execution) -> None:
        """Ask a person, unless the outcome arrived meanwhile."""
        operation = Operation.objects.get(pk=doubt.operation_id)
        if operation.status != OpStatus.PENDING:
            lifecycle.requeue(run)
            return
        lifecycle.ask_doubt(run, operation, execution.actor, doubt.why)

    def _open(self, run: Run, want: OpenWait) -> Operation:
        if want.existing is not None:
            operation = Operation.objects.select_for_update().get(pk=want.existing)
            # The last attempt that waited for it: what is settled after that, no body has seen.
            operation.attempt_no = run.attempt_no
            if operation.status == OpStatus.CLOSED:  # its run had ended, and was retried
                operation.status, operation.finished_at = OpStatus.OPEN, None
                operation.expires_at = None if want.limit is None else business.now() + want.limit
            operation.save(update_fields=["attempt_no", "status", "finished_at", "expires_at"])
            return operation
        display, sealed = redaction.split(want.request)
        operation = Operation.objects.create(
            run=run,
            step_seq=run.step_seq,
            position=want.position,
            ordinal=want.ordinal,
            attempt_no=run.attempt_no,
            kind=want.kind,
            name=want.name,
            args_digest=want.digest,
            status=OpStatus.OPEN,
            request=display,
            request_sealed=sealed,
            correlation=want.correlation,
            expires_at=None if want.limit is None else business.now() + want.limit,
        )
        waits.kind(want.kind).open(run, operation, want.options)
        return operation

    def _already_settled(self, run: Run, operation: Operation) -> bool:
        if operation.status != OpStatus.OPEN:
            return True
        kind = waits.kind(operation.kind)
        if kind.look(run, operation):
            return True
        if operation.expires_at is not None and operation.expires_at <= business.now():
            kind.expire(run, operation)
            return operation.status != OpStatus.OPEN
        return False

    def _failed(self, visit: Visit, error: Exception) -> None:
        """An error of the body: retried by the step's policy, unless a tool's failure is already final."""
        execution = visit.execution
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # a task group's wrapping says nothing
        kind = type(error).__name__
        message = first_error(error) if isinstance(error, ValidationError) else codec.error_text(error)
        trace = codec.clean_text(_trace_of(error))

        def transact(run: Run) -> None:
            digest = record_attempt(run, Outcome.FAILED, error_type=kind, error=message, traceback=trace)
            forget_trailing_queries(run)
            final = self._final_kind(visit, error)
            if final is None:
                spend_failure(
                    run, limits_of(run), execution.actor, reason=f"{kind}: {message}"[:2000], attempt=digest
                )
            elif run.cancel_requested_at and not run.compensating:
                lifecycle.carry_out_cancel(run, execution.actor)
            elif run.compensating:
                lifecycle.ask_person(
                    run,
                    AttentionKind.COMPENSATION,
                    f"a compensation failed: {message}"[:2000],
                    execution.actor,
                    attempt=digest,
                )
            else:
                lifecycle.end(
                    run,
                    Status.FAILED,
                    execution.actor,
                    reason=f"{kind}: {message}"[:2000],
                    kind=final,
                    attempt=digest,
                )

        execution.under_lock(transact, None)

    def _timed_out(self, visit: Visit) -> None:
        execution = visit.execution
        error = f"step {execution.step} took too long and was cut short"

        def move(run: Run, digest: str) -> None:
            spend_failure(run, limits_of(run), lifecycle.CLOCK, reason=error, attempt=digest)

        self._end_cold(execution, Outcome.TIMED_OUT, move, error_type="TimedOut", error=error)

    def _final_kind(self, visit: Visit, error: Exception) -> FailureKind | None:
        """The failure kind of an error that the step's retries cannot help; None for one that they may."""
        if isinstance(error, ExceptionGroup):
            kinds = [
                self._final_kind(visit, inner) for inner in error.exceptions if isinstance(inner, Exception)
            ]
            return kinds[0] if all(kinds) else None
        if isinstance(
            error,
            Rejected
            | InvalidInput
            | ChildFailed
            | UnlabelledParallel
            | ValidationError
            | codec.NotRecordable,
        ):
            return FailureKind.NOT_RETRYABLE
        if isinstance(error, ToolFailed):
            by = visit.final_failures.get(error.tool) or next(
                (
                    r.settled_by
                    for r in visit.records.values()
                    if r.name == error.tool and r.status == OpStatus.FAILED
                ),
                "",
            )
            return FailureKind.EXHAUSTED if by == "exhausted" else FailureKind.NOT_RETRYABLE
        return None


def forget_trailing_queries(run: Run) -> None:
    """Queries after the visit's last effect, model request or wait are asked again by the next attempt.

    Everything that an effect depended on stays as recorded.
    """
    visit = Operation.objects.filter(run_id=run.pk, step_seq=run.step_seq, forgotten=False)
    firm = visit.exclude(kind=Kind.QUERY).order_by("-ordinal").values_list("ordinal", flat=True).first() or 0
    trailing = visit.filter(kind=Kind.QUERY, ordinal__gt=firm)
    # People can see what a message says: what it may have been made from stays.
    said = Message.objects.filter(run_id=run.pk, step_seq=run.step_seq).aggregate(at=Max("created_at"))["at"]
    if said is not None:
        trailing = trailing.exclude(finished_at__lte=said)
    for operation in trailing:
        # The position is freed for the next answer; the row stays for people to read.
        operation.position = f"{operation.position}#{run.attempt_no}"
        operation.forgotten = True
        operation.save(update_fields=["position", "forgotten"])


@dataclass(frozen=True, slots=True)
class _Kept:
    """The state that a transition leaves."""

    encoded: Any
    text: str | None
    """For the run's row, as a parameter; None: unchanged."""
    sealed: bytes | None
    after: str | None = None
    """For the attempt's row, where that differs: what it changed."""
    after_sealed: bytes | None = None
    large: history.Large | None = None
    small: history.Small | None = None

    def apart(self) -> dict[str, Any]:
        """Parameters where the attempt's row does not hold the state in full."""
        return {} if self.after is None else {"after": self.after, "after_sealed": self.after_sealed}

    def for_attempt(self) -> tuple[Any, bytes | None]:
        """What the attempt's row holds of it."""
        if self.after is not None:
            return json.loads(self.after), self.after_sealed
        return (None, None) if self.text is None else (json.loads(self.text), self.sealed)


class _Compensated:
    """Every compensation is done."""


class _RolledBack(Exception):
    """The fence refused an atomic step's checkpoint."""


class _AttemptTimedOut(BaseException):
    """The attempt's own time limit cut its body short."""


class _Carried(BaseException):
    """Control flow that leaves the event loop as a value."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def control_flow(error: BaseException) -> BaseException | None:
    """The engine's control flow in `error`, also inside exception groups (task groups wrap it); LeaseLost goes first."""
    found: list[BaseException] = []

    def collect(e: BaseException) -> None:
        if isinstance(e, BaseExceptionGroup):
            for inner in e.exceptions:
                collect(inner)
        elif isinstance(e, CONTROL):
            found.append(e)

    collect(error)
    for kind in CONTROL:
        for e in found:
            if isinstance(e, kind):
                return e
    return None


def _undo_arguments(operation: Operation) -> dict[str, Any]:
    """What a compensation may name: the effect's arguments as executed, and its `result`."""
    sent, sealed = operation.request, operation.request_sealed
    if operation.approved is not None:
        sent, sealed = operation.approved, operation.approved_sealed
    arguments = codec.decode(redaction.true_value(sent, sealed))
    result = codec.decode(redaction.true_value(operation.result, operation.result_sealed))
    return {**(arguments if isinstance(arguments, dict) else {}), "result": result}


def _trace_of(error: Exception) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as inner:
        return f"(the traceback could not be made: {type(inner).__name__})"
