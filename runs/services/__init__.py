"""The verbs: everything that people and systems may do to runs. Console, command line and API call these alike."""

from runs.services.cancel import cancel, cancel_progress, preview_cancel
from runs.services.doubt import (
    Proof,
    answer_doubt,
    declare_gone,
    preview_answer_doubt,
    preview_declare_gone,
    proof_of,
)
from runs.services.edit_state import edit_state, preview_edit_state
from runs.services.export import export_bundle
from runs.services.force_resume import force_resume, preview_force_resume
from runs.services.fork import fork, preview_fork
from runs.services.kill import kill, preview_kill
from runs.services.limit_previews import (
    preview_pause,
    preview_pause_workflow,
    preview_resume,
    preview_resume_workflow,
    preview_set_limits,
    preview_sort_waiting,
)
from runs.services.limits import (
    clear_limits,
    end_temporary_limit,
    known_names,
    pause_scope,
    pause_workflow,
    resume_scope,
    resume_workflow,
    revert_limits,
    set_limits,
    sort_waiting,
)
from runs.services.prioritise import preview_prioritise, prioritise
from runs.services.retry import preview_retry, retry
from runs.services.signal import Received, preview_signal, receive_signal
from runs.services.skip import preview_skip, skip
from runs.services.start import Batch, Refused, Started, start, start_many
from runs.services.verb import Consequence, Done, Line
from runs.services.workers import ask_worker, preview_ask_worker

__all__ = [
    "Batch",
    "Consequence",
    "Done",
    "Line",
    "Proof",
    "Received",
    "Refused",
    "Started",
    "answer_doubt",
    "ask_worker",
    "cancel",
    "cancel_progress",
    "clear_limits",
    "declare_gone",
    "edit_state",
    "end_temporary_limit",
    "export_bundle",
    "force_resume",
    "fork",
    "kill",
    "known_names",
    "pause_scope",
    "pause_workflow",
    "preview_answer_doubt",
    "preview_ask_worker",
    "preview_cancel",
    "preview_declare_gone",
    "preview_edit_state",
    "preview_force_resume",
    "preview_fork",
    "preview_kill",
    "preview_pause",
    "preview_pause_workflow",
    "preview_prioritise",
    "preview_resume",
    "preview_resume_workflow",
    "preview_retry",
    "preview_set_limits",
    "preview_signal",
    "preview_skip",
    "preview_sort_waiting",
    "prioritise",
    "proof_of",
    "receive_signal",
    "resume_scope",
    "resume_workflow",
    "retry",
    "revert_limits",
    "set_limits",
    "skip",
    "sort_waiting",
    "start",
    "start_many",
]
