"""The verbs: everything that people and systems may do to runs. Console, command line and API call these alike."""

from runs.services.cancel import cancel, preview_cancel
from runs.services.doubt import (
    Proof,
    answer_doubt,
    declare_gone,
    preview_answer_doubt,
    preview_declare_gone,
    proof_of,
)
from runs.services.force_resume import force_resume, preview_force_resume
from runs.services.limits import (
    clear_limits,
    known_names,
    pause_workflow,
    preview_pause_workflow,
    preview_resume_workflow,
    preview_set_limits,
    resume_workflow,
    set_limits,
)
from runs.services.retry import preview_retry, retry
from runs.services.signal import Received, preview_signal, receive_signal
from runs.services.start import Batch, Refused, Started, start, start_many
from runs.services.verb import Consequence, Done

__all__ = [
    "Batch",
    "Consequence",
    "Done",
    "Proof",
    "Received",
    "Refused",
    "Started",
    "answer_doubt",
    "cancel",
    "clear_limits",
    "declare_gone",
    "force_resume",
    "known_names",
    "pause_workflow",
    "preview_answer_doubt",
    "preview_cancel",
    "preview_declare_gone",
    "preview_force_resume",
    "preview_pause_workflow",
    "preview_resume_workflow",
    "preview_retry",
    "preview_set_limits",
    "preview_signal",
    "proof_of",
    "receive_signal",
    "resume_workflow",
    "retry",
    "set_limits",
    "start",
    "start_many",
]
