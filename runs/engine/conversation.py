"""What a step writes beside its operations, durable at once: the conversation, and identifiers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, NoReturn

from runs import codec, redaction
from runs.engine import statements
from runs.engine.execution import dumps
from runs.engine.values import check_size
from runs.engine.visit import Visit
from runs.errors import AgentopsError, InvalidInput
from runs.models.run import new_id


class Messages:
    """The run's conversation, oldest first. `add` keys an entry by (visit, position): re-execution does not repeat it."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._seen: list[dict[str, Any]] | None = None

    def _load(self) -> list[dict[str, Any]]:
        if self._seen is None:
            execution = self._visit.execution
            rows = execution.database.all(statements.MESSAGES, {"run": execution.run_id})
            # Messages of this visit are matched as the body comes to them again.
            earlier = [row for row in rows if row[0] < execution.step_seq]
            contents = execution.whole([row[3] for row in earlier])
            self._seen = [
                {"role": row[2], "content": codec.decode(redaction.true_value(content, row[4]))}
                for row, content in zip(earlier, contents, strict=True)
            ]
        return self._seen

    def add(self, role: str, content: Any) -> None:
        """Append an entry, visible at once. Raises Diverged if another one is recorded at this place."""
        visit = self._visit
        visit.check_open()
        encoded = codec.encode(content, path="message")
        check_size("message", encoded, "message")
        display, sealed = redaction.split(encoded)
        visit.write(
            statements.MESSAGE,
            {
                "id": new_id(),
                "position": visit.next_message(),
                "role": role,
                "content": dumps(display),
                "sealed": sealed,
                "digest": codec.digest([role, encoded]),
            },
        )
        self._load().append({"role": role, "content": codec.decode(encoded)})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(list(self._load()))

    def __len__(self) -> int:
        return len(self._load())


class External(MutableMapping[str, Any]):
    """Identifiers elsewhere (transactions, sessions); durable as soon as they are set."""

    def __init__(self, visit: Visit) -> None:
        self._visit = visit

    def __getitem__(self, name: str) -> Any:
        return codec.decode(self._visit.execution.external[name])

    def __setitem__(self, name: str, value: Any) -> None:
        if name == codec.TAG:
            raise InvalidInput(
                f"an external identifier cannot have the name {name}, which marks tagged values"
            )
        encoded = codec.encode(value, path=name)
        if self._visit.execution.external.get(name) == encoded:
            return
        self._visit.check_open()
        self._visit.write(statements.EXTERNAL, {"added": dumps({name: encoded})})
        self._visit.execution.external[name] = encoded

    def __delitem__(self, name: str) -> NoReturn:
        raise AgentopsError("an external identifier stays: it says what happened elsewhere")

    def __iter__(self) -> Iterator[str]:
        return iter(self._visit.execution.external)

    def __len__(self) -> int:
        return len(self._visit.execution.external)
