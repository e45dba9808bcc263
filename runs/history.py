"""History of large states: patches, and a snapshot now and then.

What an attempt left is in `runs_attempt.state_after`: the state in full (small), a marker of a blob (a snapshot), or a patch
against what the attempt before it left. The run's row then holds a pointer to the attempt that changed its state last, so that
a step costs what it changed. A small state stands in full in the run's row; of what follows each other in one claim, the first
attempt keeps it in full as well, and the next ones the top-level values that they set.

Patches are made of encoded values (`runs.codec`) and applied to them. One is recorded only if it makes exactly the new canonical
text, and reading it back compares a checksum. Where redaction hides something, `state_after` tells what people may see, and
`state_after_sealed` the truth, both as patches.
"""

import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import connection

from runs import blobs, codec, redaction
from runs.blobs import Packed
from runs.codec import TAG

PATCH, SET, POINTER = "patch", "set", "history"
#: A snapshot is due at the latest after so many patches: reading a state back reads no more rows.
MOST_PATCHES = 500
#: So many attempts in a row keep only what they set of a small state.
MOST_SETS = 50
#: Characters of a small state below which keeping it in full is as cheap.
WORTH_SETTING = 100
#: Containers and texts whose JSON is shorter are replaced as a whole.
WORTH_A_LOOK = 200

#: The attempts that changed the state, from one backwards. The primary key's index, read backwards.
KEPT = """
SELECT step_seq, attempt_no, state_after, state_after_sealed FROM runs_attempt
WHERE run_id = %(run)s AND (step_seq, attempt_no) <= (%(seq)s, %(attempt)s) AND state_after IS NOT NULL
ORDER BY step_seq DESC, attempt_no DESC LIMIT %(limit)s
"""

type Rows = Callable[[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]
type Parts = dict[str, str]
"""Canonical text of each top-level value."""


class HistoryDamaged(ValueError):
    """The recorded changes of a state do not lead to it."""


def patch_from() -> int:
    """Bytes of JSON from which on a state is recorded as patches."""
    at: int = settings.AGENTOPS_PATCH_BYTES
    return at


def is_large(encoded: Any) -> bool:
    """Whether an encoded state is recorded as patches."""
    return len(_text(encoded)) >= patch_from()


# --- patches -------------------------------------------------------------------------------------------------------------

type Change = list[Any]
"""`[path]`: the key is gone. `[path, value]`: the value is there now. `[path, at, count, new]`: of a list or text, `count` from
`at` on are replaced by `new`. A path is a list of keys and indexes."""


def changes(old: Any, new: Any) -> list[Change]:
    """What makes `new` of `old`, both encoded; they share what they have in common."""
    found: list[Change] = []
    _compare(old, new, [], found)
    return found


def _compare(old: Any, new: Any, path: list[str | int], found: list[Change]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        found += [[[*path, key]] for key in old if key not in new]
        for key, value in new.items():
            if key not in old:
                found.append([[*path, key], value])
            elif old[key] != value:
                _compare(old[key], value, [*path, key], found)
    elif isinstance(old, list) and isinstance(new, list):
        _compare_lists(old, new, path, found)
    elif isinstance(old, str) and isinstance(new, str) and len(new) > WORTH_A_LOOK:
        first, last = _same_start(old, new), 0
        last = _same_start(old[first:][::-1], new[first:][::-1])
        found.append([path, first, len(old) - first - last, new[first : len(new) - last]])
    elif not path:
        raise TypeError("two roots that are no containers have no changes")
    else:
        found.append([path, new])


def _compare_lists(old: list[Any], new: list[Any], path: list[str | int], found: list[Change]) -> None:
    first, shorter = 0, min(len(old), len(new))
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    if len(old) == len(new):
        for index in range(first, len(new) - last):
            if old[index] != new[index]:
                _compare(old[index], new[index], [*path, index], found)
    else:
        found.append([path, first, len(old) - first - last, new[first : len(new) - last]])


def _same_start(old: str, new: str) -> int:
    """How many characters both begin with; by halving, as comparing slices is quick and comparing characters is not."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def apply(document: Any, made: Sequence[Change]) -> Any:
    """Carry `made` out on `document`, which is changed. Raises HistoryDamaged where they do not fit."""
    try:
        for path, *what in made:
            *way, last = path
            inside = document
            for key in way:
                inside = inside[key]
            if not what:
                del inside[last]
            elif len(what) == 1:
                inside[last] = what[0]
            else:
                at, count, new = what
                there = inside[last]
                if not 0 <= at <= at + count <= len(there):
                    raise IndexError(f"{at} + {count} of {len(there)}")
                inside[last] = there[:at] + new + there[at + count :]
    except (LookupError, TypeError, ValueError) as error:
        raise HistoryDamaged(f"a recorded change does not fit: {type(error).__name__} {error}") from None
    return document


def told(document: Any, made: Sequence[Change]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `made` changes in `document`, for people: values before and after, by path. Carries it out.

    Raises HistoryDamaged.
    """
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for change in made:
        if not (change and change[0]):
            raise HistoryDamaged("a recorded change says not of what")
        path, *what = change
        where = path_text(path)
        there = _value_at(document, path)
        if len(what) == 3:
            if not isinstance(there, list | str):
                raise HistoryDamaged(f"a recorded change does not fit: {where} is no list and no text")
            at, count, new = what
            where = f"{where}[{at}:{at + count}]"
            before |= {where: there[at : at + count]} if count else {}
            after |= {where: new} if new else {}
        else:
            before |= {} if there is _NOTHING else {where: there}
            after |= {where: what[0]} if what else {}
        apply(document, [[path, *what]])
    return before, after


_NOTHING = object()


def _value_at(document: Any, path: Sequence[str | int]) -> Any:
    try:
        for key in path:
            document = document[key]
    except (LookupError, TypeError):
        return _NOTHING
    return document


def path_text(path: Sequence[str | int]) -> str:
    """A path as people write it: `documents[3].body`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


# --- texts ---------------------------------------------------------------------------------------------------------------

_QUICK = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _text(encoded: Any) -> str:
    return _QUICK.encode(encoded)


def parts_of(encoded: Any) -> Parts | None:
    """None for what is no plain dict: such a state is never patched."""
    if not isinstance(encoded, dict) or TAG in encoded:
        return None
    return {key: _text(value) for key, value in encoded.items()}


def joined(parts: Parts) -> str:
    """The canonical text of the whole."""
    return "{" + ",".join(f"{_text(key)}:{parts[key]}" for key in sorted(parts)) + "}"


def loaded(parts: Parts) -> Any:
    return {key: json.loads(text) for key, text in parts.items()}


def _patch(old: Parts, new: Parts) -> tuple[list[Change], str]:
    """The changes between two states, and their text. Only top-level values whose text differs are looked into."""
    made: list[Change] = [[[key]] for key in old if key not in new]
    for key, text in new.items():
        before = old.get(key)
        if before == text:
            continue
        value = json.loads(text)
        if before is None or len(text) <= WORTH_A_LOOK:
            made.append([[key], value])
            continue
        document = {key: json.loads(before)}
        detailed = changes(document, {key: value})
        # Python's 1, 1.0 and True are equal, JSON's are not: what such a difference hid is seen here.
        if len(_text(detailed)) < len(text) and _text(apply(document, detailed)[key]) == text:
            made += json.loads(_text(detailed))
        else:
            made.append([[key], value])
    return made, _text(made)


# --- while a run executes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """A large state as a checkpoint records it."""

    pointer: str
    """For the run's row."""
    after: str
    """For the attempt's row: snapshot or patch."""
    after_sealed: bytes | None
    blob: Packed | None
    large: "Large"
    """What the next step's changes are counted from."""


@dataclass(frozen=True, slots=True)
class Large:
    """A large state in the memory of the worker that executes its run."""

    true: Parts
    shown: Parts
    """What people may see; the same object where that is all of it."""
    patches: int
    """Since the last snapshot; 0 for none yet, so that a snapshot comes next."""
    patched: int
    """Bytes of them."""
    begun: bool
    """There is a snapshot."""

    def fresh(self) -> Any:
        """The state as a step may change it. Python's objects come straight from the text where no tag is in it."""
        return {
            key: codec.decode(json.loads(text)) if TAG in text else json.loads(text)
            for key, text in sorted(self.true.items())
        }

    def parts_now(self, state: Any) -> Parts | None:
        """The parts after a step; a top-level value whose text did not change is not encoded anew.

        None if the state cannot be patched any more. Raises NotRecordable.
        """
        if not isinstance(state, dict) or TAG in state:
            return None
        made: Parts = {}
        for key, value in state.items():
            before = self.true.get(key) if isinstance(key, str) else None
            if before is not None and TAG not in before and _quickly(value) == before:
                made[key] = before
                continue
            for name, encoded in codec.encode({key: value}, path="ctx.state").items():
                made[name] = _text(encoded)
        return made

    def shown_now(self, parts: Parts) -> Parts:
        """What people may see of `parts`."""
        shown, hidden = dict(parts), False
        for key, text in parts.items():
            if self.true.get(key) == text and key in self.shown:
                shown[key] = self.shown[key]
            else:
                value = {key: json.loads(text)}
                display = redaction.redact(value)
                if display is not value:
                    shown[key] = _text(display[key])
            hidden = hidden or shown[key] != text
        return shown if hidden else parts


def _quickly(value: Any) -> str | None:
    """The text of a value that JSON holds as it is; None if a closer look is needed."""
    try:
        return _QUICK.encode(value)
    except (TypeError, ValueError, RecursionError):
        return None


def begin(encoded: Any) -> Large | None:
    """The history of a state that has none yet: its first record will be a snapshot. None if it cannot be patched."""
    parts = parts_of(encoded)
    if parts is None:
        return None
    blank = Large({}, {}, 0, 0, False)
    return Large(parts, blank.shown_now(parts), 0, 0, False)


def keep(before: Large, parts: Parts, text: str, step_seq: int, attempt_no: int) -> Kept:
    """Record `parts`, whose joined text is `text`, as left by this attempt: a patch, or a snapshot if one is due."""
    shown = before.shown_now(parts)
    shown_text = text if shown is parts else joined(shown)
    pointer = _text(
        {TAG: POINTER, "v": {"seq": step_seq, "attempt": attempt_no, "bytes": len(shown_text.encode())}}
    )
    if before.begun and before.patches < MOST_PATCHES:
        made, made_text = _patch(before.shown, shown)
        patched = before.patched + len(made_text)
        if patched <= len(shown_text) // 2:
            after = {TAG: PATCH, "v": {"changes": made, "sum": _sum(shown_text)}}
            sealed = None
            if before.shown is not before.true or shown is not parts:
                true_changes = _patch(before.true, parts)[0]
                sealed = redaction.seal({TAG: PATCH, "v": {"changes": true_changes, "sum": _sum(text)}})
            large = Large(parts, shown, before.patches + 1, patched, True)
            return Kept(pointer, _text(after), sealed, None, large)
    blob = blobs.pack(shown_text.encode())
    sealed = None if shown is parts else redaction.seal(json.loads(text))
    return Kept(pointer, _text(blob.marker), sealed, blob, Large(parts, shown, 0, 0, True))


@dataclass(frozen=True, slots=True)
class Small:
    """A small state that the attempt before has recorded, in the memory of the worker that goes on with its run."""

    parts: Parts
    sets: int
    """Attempts since one that kept it in full."""


def keep_small(before: Small | None, encoded: Any, text: str) -> tuple[str | None, Small | None]:
    """For the attempt's row, what `encoded`, of which people may see all, sets in the state before; None: keep it in full."""
    if len(text) < WORTH_SETTING or (parts := parts_of(encoded)) is None:
        return None, None
    if before is None or before.sets >= MOST_SETS or not before.parts.keys() <= parts.keys():
        return None, Small(parts, 0)
    new = {key: json.loads(value) for key, value in parts.items() if before.parts.get(key) != value}
    after = _text({TAG: SET, "v": new})
    if len(after) > len(text) // 2:
        return None, Small(parts, 0)
    return after, Small(parts, before.sets + 1)


def _sum(text: str) -> int:
    return zlib.crc32(text.encode())


# --- reading back --------------------------------------------------------------------------------------------------------


def is_pointer(state: Any) -> bool:
    """Whether a run's row holds a pointer in place of its state."""
    return isinstance(state, dict) and state.get(TAG) == POINTER


def is_patch(after: Any) -> bool:
    """Whether an attempt's row holds changes and not the state in full."""
    return isinstance(after, dict) and after.get(TAG) in (PATCH, SET)


def changes_of(after: Any) -> list[Change]:
    """What an attempt's row changes of the state before it."""
    if after[TAG] == SET:
        return [[[key], value] for key, value in after["v"].items()]
    made: list[Change] = after["v"]["changes"]
    return made


def size_of(pointer: Any) -> int:
    """Bytes of the state that a pointer leads to."""
    size: int = pointer["v"]["bytes"]
    return size


@dataclass(frozen=True, slots=True)
class Restored:
    """A state as an attempt left it."""

    shown: Any
    """Encoded, as people may see it."""
    true: Any
    """Encoded; None where it was not asked for."""
    patches: int
    patched: int


def _with_django(statement: str, parameters: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return [
        tuple(json.loads(v) if i == 2 and isinstance(v, str) else v for i, v in enumerate(row))
        for row in found
    ]


def restored(
    run_id: uuid.UUID, step_seq: int, attempt_no: int, *, open_seal: bool = False, read: Rows = _with_django
) -> Restored | None:
    """The state as the run's last change up to this attempt left it; None if there was none.

    Raises HistoryDamaged, BlobDamaged, and ValueError if it is to be opened and no key can.
    """
    rows: list[tuple[Any, ...]] = []
    seq, attempt = step_seq, attempt_no
    while True:
        found = read(KEPT, {"run": run_id, "seq": seq, "attempt": attempt, "limit": 50})
        for row in found:
            rows.append(row)
            if not is_patch(row[2]):
                return _replayed(rows[::-1], open_seal, read)
        if len(found) < 50:
            if rows:
                raise HistoryDamaged(f"run {run_id}: the snapshot before visit {rows[-1][0]} is missing")
            return None
        seq, attempt = rows[-1][0], rows[-1][1] - 1


def _replayed(rows: Sequence[tuple[Any, ...]], open_seal: bool, read: Rows) -> Restored:
    (_, _, base, base_sealed), *patches = rows
    shown = blobs.whole([base], lambda keys: read(blobs.READ, {"keys": list(keys)}))[0]
    hidden = open_seal and any(sealed is not None for *_, sealed in rows)
    true = None
    if hidden:
        true = redaction.unseal(base_sealed) if base_sealed is not None else json.loads(_text(shown))
    patched = 0
    for _, _, after, sealed in patches:
        made = changes_of(after)
        patched += len(_text(made))
        if hidden:
            opened = after if sealed is None else redaction.unseal(sealed)
            true = apply(true, json.loads(_text(changes_of(opened))))
        shown = apply(shown, made)
    if patches and patches[-1][2][TAG] == PATCH:
        _check(shown, patches[-1], patches[-1][2]["v"]["sum"])
        if hidden and patches[-1][3] is not None:
            _check(true, patches[-1], redaction.unseal(patches[-1][3])["v"]["sum"])
    return Restored(shown, (true if hidden else shown) if open_seal else None, len(patches), patched)


def _check(encoded: Any, row: tuple[Any, ...], expected: int) -> None:
    if _sum(_text(encoded)) != expected:
        raise HistoryDamaged(f"the state after visit {row[0]} try {row[1]} is not what was recorded")


def opened(
    run_id: uuid.UUID, state: Any, sealed: bytes | memoryview | None, read: Rows
) -> tuple[Any, Large | None]:
    """The true state of a run that was claimed, and its history if it is a large one. See `restored` for errors."""
    if not is_pointer(state):
        return redaction.true_value(state, sealed), None
    at = state["v"]
    back = restored(run_id, at["seq"], at["attempt"], open_seal=True, read=read)
    if back is None:
        raise HistoryDamaged(f"run {run_id}: what its state points to is missing")
    true, shown = parts_of(back.true), parts_of(back.shown)
    if true is None or shown is None:
        return back.true, None
    return None, Large(true, true if true == shown else shown, back.patches, back.patched, True)


def displayed(run_id: uuid.UUID, state: Any) -> Any:
    """The state in a run's row as people may see it. Raises HistoryDamaged, BlobDamaged."""
    if not is_pointer(state):
        return blobs.whole([state])[0]
    back = restored(run_id, state["v"]["seq"], state["v"]["attempt"])
    if back is None:
        raise HistoryDamaged(f"run {run_id}: what its state points to is missing")
    return back.shown


def whole(run_id: uuid.UUID, state: Any, sealed: bytes | memoryview | None) -> Restored:
    """The state in a run's row, shown and true, in full. Raises HistoryDamaged, BlobDamaged, ValueError (see `restored`)."""
    if not is_pointer(state):
        return Restored(blobs.whole([state])[0], redaction.true_value(state, sealed), 0, 0)
    back = restored(run_id, state["v"]["seq"], state["v"]["attempt"], open_seal=True)
    if back is None:
        raise HistoryDamaged(f"run {run_id}: what its state points to is missing")
    return back


@dataclass(frozen=True, slots=True)
class Written:
    """A state as a person's verb records it: for the run's row, and for that of the attempt."""

    state: Any
    state_sealed: bytes | None
    after: Any
    after_sealed: bytes | None


def written(run_id: uuid.UUID, encoded: Any, step_seq: int, attempt_no: int) -> Written:
    """Record a state that no execution made, in full or as a snapshot, so that whatever follows is counted from it.

    A blob is written with Django's connection, in its transaction.
    """
    if is_large(encoded) and (large := begin(encoded)) is not None:
        kept = keep(large, large.true, joined(large.true), step_seq, attempt_no)
        if kept.blob is not None:
            blobs.write(run_id, [kept.blob])
        return Written(json.loads(kept.pointer), None, json.loads(kept.after), kept.after_sealed)
    display, sealed = redaction.split(encoded)
    return Written(display, sealed, display, sealed)


def walk(run_id: uuid.UUID) -> Iterator[tuple[int, int, Any]]:
    """Every recorded state of a run as people may see it, oldest first: visit, try, canonical text.

    Raises HistoryDamaged, BlobDamaged.
    """
    rows = _with_django(KEPT, {"run": run_id, "seq": 2**31 - 1, "attempt": 2**31 - 1, "limit": None})
    return walked(run_id, [row[:3] for row in reversed(rows)], lambda after: blobs.whole([after])[0])


def walked(
    run_id: uuid.UUID, rows: Iterable[tuple[int, int, Any]], whole: Callable[[Any], Any]
) -> Iterator[tuple[int, int, str]]:
    """`walk` over these rows, oldest first: visit, try, what the attempt's row holds. `whole` reads what lies apart."""
    shown: Any = None
    for seq, attempt, after in rows:
        if is_patch(after):
            if shown is None:
                raise HistoryDamaged(f"run {run_id}: the snapshot before visit {seq} is missing")
            shown = apply(shown, changes_of(after))
            if after[TAG] == PATCH:
                _check(shown, (seq, attempt), after["v"]["sum"])
        else:
            # Later changes are made to it, and what it was read from stays as it is.
            shown = json.loads(_text(whole(after)))
        yield seq, attempt, _text(shown)
