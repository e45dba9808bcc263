"""What can go wrong, by who should know about it."""

from collections.abc import Mapping
from typing import Any


class AgentopsError(Exception):
    """Base of the errors that this project raises on purpose."""


# --- what a tool may raise: it decides what its provider's answer means -----------------------------------------------


class ToolError(AgentopsError):
    """A tool's definite answer: what was asked for did not happen."""


class Retryable(ToolError):
    """It certainly did not happen; trying again may help. `retry_after` in seconds, where the provider said so."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotRetryable(ToolError):
    """It certainly did not happen and trying again cannot help."""


class OutcomeUnknown(AgentopsError):
    """It may have happened. Any error of an effect that nothing classifies is taken for this."""


# --- what user code sees ---------------------------------------------------------------------------------------------


class ToolFailed(AgentopsError):
    """A tool failed for good; recorded, so that re-execution raises it again."""

    def __init__(self, tool: str, error_type: str, message: str) -> None:
        super().__init__(f"{tool}: {message}")
        self.tool, self.error_type, self.message = tool, error_type, message


class Rejected(ToolFailed):
    """People did not allow the call; `verdict` is 'rejected' or 'expired'."""

    def __init__(
        self, tool: str, verdict: str, by: str, reason: str, questions: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        super().__init__(tool, "Rejected", f"{verdict} by {by}" + (f": {reason}" if reason else ""))
        self.verdict, self.by, self.reason = verdict, by, reason
        self.questions = questions
        """What people asked back before they decided: text, by, and the answer, if there was one."""


class WaitExpired(AgentopsError):
    """The time limit of a wait passed; recorded, so that re-execution raises it again."""


class ChildFailed(AgentopsError):
    """Child runs did not complete, and the step had asked to be told so; recorded. `ends` says what became of each."""

    def __init__(self, message: str, ends: Any) -> None:
        super().__init__(message)
        self.ends = ends


class UnlabelledParallel(AgentopsError):
    """Two operations without labels overlap in time: their order, and so their identity, is chance. Give each a `label=`."""


class InvalidInput(AgentopsError):
    """Input, state, result or arguments do not fit their declared type; the message names the path."""


class ContextClosed(BaseException):
    """`ctx` was used after its attempt had ended. Not an Exception, so that no `except Exception` goes on."""


# --- control flow of the engine: user code must let these through ---------------------------------------------------


class Suspend(BaseException):
    """The attempt ends here and the run goes on later."""


class LeaseLost(BaseException):
    """This worker no longer owns the run; nothing that it still does counts."""


class Cancelled(BaseException):
    """Cancel was asked for; no forward operation starts any more."""


class Diverged(BaseException):
    """The code does not do what its record says it did."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# --- verbs -----------------------------------------------------------------------------------------------------------


class VerbError(AgentopsError):
    """A verb was refused; nothing changed. The message says why and what to do."""

    status = 400


class NotAllowed(VerbError):
    """The actor lacks the permission for this verb."""

    status = 403


class NotFound(VerbError):
    """There is no such run, operation, approval or worker."""

    status = 404


class StateMismatch(VerbError):
    """The run or approval is not (or no longer) in a state in which this verb applies."""

    status = 409


class Stale(StateMismatch):
    """The page was older than the run: look at the fresh view and decide again."""


class Conflict(VerbError):
    """The same key was used before for something else."""

    status = 409

    def __init__(self, message: str, existing: Any = None) -> None:
        super().__init__(message)
        self.existing = existing


class Invalid(VerbError):
    """The verb's own arguments are not acceptable."""


class Unavailable(VerbError):
    """The database did not let the verb through, which passes; its transaction was rolled back."""

    status = 503


class NotFresh(NotAllowed):
    """This needs a sign-in that is not older than `minutes`: sign in again, then decide again."""

    def __init__(self, minutes: int) -> None:
        super().__init__(
            f"this needs a sign-in within the last {minutes} minutes: sign in again, then decide"
        )
        self.minutes = minutes


class Asked(VerbError):
    """Nothing was done: others have to approve it first, and have been asked. `url` leads to the request."""

    status = 202

    def __init__(self, message: str, url: str = "") -> None:
        super().__init__(message)
        self.url = url
