"""Pages about runs and the verbs on them: one thin function per page and one per verb."""
