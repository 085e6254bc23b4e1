"""Approvals in the store: which calls wait, how each was decided, and what a run's answers are about.

A call that waits is an open call with an approval id. Its answer is written down with the admission of the
input that carries it; from then on it is decided, whatever becomes of the run that is to act on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, and_, bindparam, select, update

from turnlane.records.approvals import (
    AnsweredCall,
    ApprovalState,
    AskedApproval,
    CallOrigin,
    PendingApproval,
    RunAnswers,
    StoredApproval,
)
from turnlane.records.base import JsonObject, canonical_json
from turnlane.records.errors import StoreIntegrityError
from turnlane.records.ledger import LedgerKind
from turnlane.records.messages import (
    Message,
    Part,
    Role,
    ToolApprovalRequestPart,
    ToolApprovalResponsePart,
    ToolCallPart,
    ToolOutcome,
)
from turnlane.records.steps import Fence
from turnlane.store.content import CALLS_OF_STEP, MODEL, gather, load_messages, select_content
from turnlane.store.pages import check_limit
from turnlane.store.rows import load_ids, load_parts
from turnlane.store.statements import Key, chunks, find_row
from turnlane.store.tables import CONVERSATION, IS_PENDING, MESSAGE, RUN, SEGMENT, RunRow, SegmentRow
from turnlane.store.work import Work

ASKED = 128
"""How many pending approvals a head names: the latest."""

_OF_MESSAGE = and_(MESSAGE.c.conversation_id == SEGMENT.c.conversation_id, MESSAGE.c.id == SEGMENT.c.message_id)
_OF_RUN = and_(RUN.c.conversation_id == MESSAGE.c.conversation_id, RUN.c.assistant_message_id == MESSAGE.c.id)

_MODEL = SEGMENT.alias("model")

_CALLS = (
    select(
        SEGMENT.c.conversation_id,
        SEGMENT.c.message_id,
        SEGMENT.c.step,
        SEGMENT.c.slot,
        SEGMENT.c.call_id,
        SEGMENT.c.approval_id,
        SEGMENT.c.approval,
        SEGMENT.c.approval_expires_at,
        SEGMENT.c.parts.is_not(None).label("is_finished"),
        _MODEL.c.parts.label("said"),
        RUN.c.id.label("run_id"),
        RUN.c.terminal_reason,
        MESSAGE.c.compacted,
    )
    .join(MESSAGE, _OF_MESSAGE)
    .join(RUN, _OF_RUN)
    .outerjoin(
        _MODEL,
        and_(
            _MODEL.c.conversation_id == SEGMENT.c.conversation_id,
            _MODEL.c.message_id == SEGMENT.c.message_id,
            _MODEL.c.step == SEGMENT.c.step,
            _MODEL.c.slot == 0,
            _MODEL.c.kind == MODEL,
        ),
    )
)

_BY_ID = _CALLS.where(
    SEGMENT.c.conversation_id == bindparam("conversation_id"),
    SEGMENT.c.approval_id.in_(bindparam("ids", expanding=True)),
)

_WAITING = (IS_PENDING, SEGMENT.c.parts.is_(None), MESSAGE.c.compacted.is_(False))

_PENDING = _CALLS.where(*_WAITING, RUN.c.terminal_reason.is_not(None))

_ASKED = (
    select(SEGMENT.c.approval_id, SEGMENT.c.approval_expires_at, RUN.c.id, RUN.c.terminal_reason)
    .join(MESSAGE, _OF_MESSAGE)
    .join(RUN, _OF_RUN)
    .where(SEGMENT.c.conversation_id == bindparam("conversation_id"), *_WAITING)
    .order_by(MESSAGE.c.position.desc(), SEGMENT.c.step.desc(), SEGMENT.c.slot.desc())
)

_ANSWERING = select_content().where(
    MESSAGE.c.conversation_id == bindparam("conversation_id"),
    MESSAGE.c.id.in_(bindparam("ids", expanding=True)),
    MESSAGE.c.role == Role.TOOL,
)

_UNFINISHED = select(SEGMENT).where(
    SEGMENT.c.conversation_id == bindparam("conversation_id"),
    SEGMENT.c.approval_id.in_(bindparam("ids", expanding=True)),
    SEGMENT.c.parts.is_(None),
)

_OPEN_SIBLINGS = select(SEGMENT.c.approval_id, SEGMENT.c.approval, SEGMENT.c.approval_expires_at).where(
    *CALLS_OF_STEP, SEGMENT.c.approval_id.is_not(None), SEGMENT.c.parts.is_(None)
)

_CONTEXT_OF_ASKING = (
    select(RUN.c.context)
    .join(
        SEGMENT,
        and_(SEGMENT.c.conversation_id == RUN.c.conversation_id, SEGMENT.c.message_id == RUN.c.assistant_message_id),
    )
    .where(SEGMENT.c.conversation_id == bindparam("conversation_id"), SEGMENT.c.approval_id == bindparam("approval"))
)


class _Said(NamedTuple):
    """What a step's output says of its calls, by call id: each call, and what is asked about it."""

    calls: dict[str, ToolCallPart]
    questions: dict[tuple[str, str], ToolApprovalRequestPart]


# --- reads --------------------------------------------------------------------------------------


def pending_approvals(
    connection: Connection, conversation_id: str | None, now: datetime, limit: int, tenant: str | None
) -> tuple[PendingApproval, ...]:
    """Return the calls that wait for approval, oldest first: of one conversation, or of all of them."""
    query = _PENDING
    if conversation_id is not None:
        query = query.where(SEGMENT.c.conversation_id == conversation_id)
    if tenant is not None:
        query = query.join(CONVERSATION, CONVERSATION.c.id == SEGMENT.c.conversation_id)
        query = query.where(CONVERSATION.c.tenant == tenant)
    places = (SEGMENT.c.conversation_id, MESSAGE.c.position, SEGMENT.c.step, SEGMENT.c.slot)
    query = query.where((SEGMENT.c.approval_expires_at.is_(None)) | (SEGMENT.c.approval_expires_at > now))
    rows = connection.execute(query.order_by(*places).limit(check_limit(limit))).all()
    said = _said(rows)
    return tuple(request for row in rows if (request := _request(row, said)) is not None)


def find_approvals(connection: Connection, conversation_id: str, ids: Sequence[str]) -> dict[str, StoredApproval]:
    """Return the approvals that exist among `ids`, however they stand."""
    found: dict[str, StoredApproval] = {}
    for chunk in chunks(ids):
        rows = connection.execute(_BY_ID, {"conversation_id": conversation_id, "ids": chunk}).all()
        said = _said(rows)
        found |= {row.approval_id: _approval(row, said) for row in rows}
    return found


def _approval(row: Any, said: Mapping[Key, _Said]) -> StoredApproval:
    return StoredApproval(
        run_id=row.run_id,
        message_id=row.message_id,
        step=row.step,
        slot=row.slot,
        call_id=row.call_id,
        state=ApprovalState(row.approval),
        expires_at=row.approval_expires_at,
        is_finished=row.is_finished,
        is_open=row.terminal_reason is not None and not row.compacted,
        request=_request(row, said),
    )


def _said(calls: Sequence[Any]) -> dict[Key, _Said]:
    """Return the output of every step that one of these calls belongs to, parsed once however many are its own."""
    texts = {_step_of(call): call.said for call in calls}
    return {step: _said_in(load_parts(text)) for step, text in texts.items()}


def _step_of(row: Any) -> Key:
    return (row.conversation_id, row.message_id, row.step)


def _said_in(parts: Sequence[Part]) -> _Said:
    # From the end: of two under one id the first one counts.
    calls = (part for part in reversed(parts) if isinstance(part, ToolCallPart))
    questions = (part for part in reversed(parts) if isinstance(part, ToolApprovalRequestPart))
    return _Said(
        {call.call_id: call for call in calls}, {(asked.call_id, asked.approval_id): asked for asked in questions}
    )


def _request(row: Any, said: Mapping[Key, _Said]) -> PendingApproval | None:
    """The question as it stands in the message; None if the message does not hold both call and question."""
    step = said[_step_of(row)]
    call, asked = step.calls.get(row.call_id), step.questions.get((row.call_id, row.approval_id))
    if call is None or asked is None:
        return None
    return PendingApproval(
        conversation_id=row.conversation_id,
        run_id=row.run_id,
        message_id=row.message_id,
        approval_id=row.approval_id,
        call_id=row.call_id,
        tool_name=call.tool_name,
        input=call.input,
        signature=asked.signature,
        reason=asked.reason,
        expires_at=row.approval_expires_at,
    )


def load_answers(connection: Connection, conversation_id: str, run_id: str, now: datetime) -> RunAnswers:
    """Return the approval answers among a run's inputs, each with the call that it is about."""
    run = find_row(connection, RunRow, conversation_id, run_id)
    ids = load_ids(run.input_ids) if run is not None else ()
    inputs = load_messages(connection, conversation_id, ids)
    said = [inputs[name].message for name in ids if name in inputs]
    answers = [part for message in said for part in answers_of(message)]
    found = find_approvals(connection, conversation_id, list({answer.approval_id: None for answer in answers}))
    answered = tuple(AnsweredCall(answer=answer, approval=found.get(answer.approval_id)) for answer in answers)
    only_answers = all(message.role is Role.TOOL for message in said)
    waits = only_answers and _has_open_siblings(connection, conversation_id, found, now)
    return RunAnswers(calls=answered, waits=waits)


def _has_open_siblings(
    connection: Connection, conversation_id: str, found: dict[str, StoredApproval], now: datetime
) -> bool:
    """Whether a step of these approvals has other calls that still wait for an answer, or for its execution."""
    for message_id, step in {(approval.message_id, approval.step) for approval in found.values()}:
        where = {"conversation_id": conversation_id, "message_id": message_id, "step": step}
        for row in connection.execute(_OPEN_SIBLINGS, where):
            lapsed = row.approval == ApprovalState.PENDING and _has_lapsed(row.approval_expires_at, now)
            if row.approval_id not in found and not lapsed:
                return True
    return False


def _has_lapsed(expires_at: datetime | None, now: datetime) -> bool:
    return expires_at is not None and expires_at <= now


def answers_of(message: Message) -> tuple[ToolApprovalResponsePart, ...]:
    """The approval answers that an input carries."""
    if message.role is not Role.TOOL:
        return ()
    return tuple(part for part in message.parts if isinstance(part, ToolApprovalResponsePart))


def asked_approvals(
    connection: Connection, conversation_id: str
) -> tuple[tuple[AskedApproval, ...], dict[str, tuple[AskedApproval, ...]]]:
    """Return what waits for an answer, oldest first and at most the latest few; and, by run, what live ones ask."""
    ended: list[AskedApproval] = []
    live: dict[str, tuple[AskedApproval, ...]] = {}
    for row in connection.execute(_ASKED, {"conversation_id": conversation_id}):
        asked = AskedApproval(approval_id=row.approval_id, expires_at=row.approval_expires_at)
        if row.terminal_reason is None:
            live[row.id] = (asked, *live.get(row.id, ()))
        elif len(ended) < ASKED:
            ended.append(asked)
    return tuple(reversed(ended)), live


def answers_among(
    connection: Connection, conversation_id: str, ids: Sequence[str]
) -> dict[str, tuple[ToolApprovalResponsePart, ...]]:
    """Return the approval answers of those of the inputs that carry any."""
    found: dict[str, tuple[ToolApprovalResponsePart, ...]] = {}
    for chunk in chunks(ids):
        rows = connection.execute(_ANSWERING, {"conversation_id": conversation_id, "ids": chunk})
        found |= {stored.row.id: answers_of(stored.message) for stored in gather(rows)}
    return found


# --- writes, within the transaction of their mutation -------------------------------------------


def take_answers(work: Work, run: RunRow, message: Message, at: datetime) -> None:
    """Write down what an admitted input decides. Of two answers to one approval the first stands.

    The run that acts on it has the context of the run that asked, unless it came with its own.
    """
    answers = answers_of(message)
    if not answers:
        return
    found = find_approvals(work.connection, work.conversation_id, [answer.approval_id for answer in answers])
    for answer in answers:
        approval = found.get(answer.approval_id)
        if approval is not None and _decide(work, answer):
            work.record(LedgerKind.APPROVAL_DECIDED, at, _described(answer, approval, message))
    if run.context is None:
        asking = {"conversation_id": work.conversation_id, "approval": answers[0].approval_id}
        run.context = work.connection.execute(_CONTEXT_OF_ASKING, asking).scalar()


def _decide(work: Work, answer: ToolApprovalResponsePart) -> bool:
    state = ApprovalState.APPROVED if answer.approved else ApprovalState.DENIED
    where = (
        SEGMENT.c.conversation_id == work.conversation_id,
        SEGMENT.c.approval_id == answer.approval_id,
        SEGMENT.c.approval == ApprovalState.PENDING,
        SEGMENT.c.parts.is_(None),
    )
    return work.connection.execute(update(SEGMENT).where(*where).values(approval=state)).rowcount > 0


def _described(answer: ToolApprovalResponsePart, approval: StoredApproval, message: Message) -> JsonObject:
    """Who decided what about which call, by ids and a digest of the arguments."""
    responder = (message.metadata or {}).get("responder")
    request = approval.request
    return {
        "approval_id": answer.approval_id,
        "call_id": approval.call_id,
        "tool_name": None if request is None else request.tool_name,
        "input_sha256": None if request is None else hashlib.sha256(canonical_json(request.input).encode()).hexdigest(),
        "decision": ApprovalState.APPROVED.value if answer.approved else ApprovalState.DENIED.value,
        "input_message_id": message.id,
        "responder": responder if isinstance(responder, str) else None,
    }


def unfinished_answers(work: Work, run: RunRow) -> list[SegmentRow]:
    """Return the calls that a run was to act on and did not."""
    given = answers_among(work.connection, work.conversation_id, load_ids(run.input_ids))
    ids = list(dict.fromkeys(answer.approval_id for answers in given.values() for answer in answers))
    found: list[SegmentRow] = []
    for chunk in chunks(ids):
        rows = work.connection.execute(_UNFINISHED, {"conversation_id": work.conversation_id, "ids": chunk})
        found.extend(cast(list[SegmentRow], rows.all()))
    return found


def seated(fence: Fence, assistant_id: str, origin: CallOrigin | None) -> tuple[Fence, str]:
    """Return a fence and a message id that name the place of a call: where it was asked for."""
    if origin is None:
        return fence, assistant_id
    return fence.model_copy(update={"run_id": origin.run_id, "step": origin.step}), origin.message_id


def check_decided(call: SegmentRow, outcome: ToolOutcome | None = None) -> None:
    """Refuse to make a call that nobody approved, and a success of one that was denied; `outcome` is its result's."""
    if call.approval_id is None or call.approval == ApprovalState.APPROVED:
        return
    told = call.approval == ApprovalState.DENIED and outcome not in (None, ToolOutcome.SUCCESS)
    if call.parts is None and not told:
        raise StoreIntegrityError("a call that nobody approved", call_id=call.call_id, approval=call.approval)
