"""What the lines of a chat do that begin with a slash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from turnlane.agent.files import Upload
from turnlane.client.cli.send import read_upload
from turnlane.client.cli.wording import call_words, code_mark, question_words, short_id, unknown_words, usage_words
from turnlane.records.admissions import Policy
from turnlane.records.approvals import PendingApproval
from turnlane.records.compaction import CompactionResult
from turnlane.records.errors import ApprovalNotPendingError, InvalidInputError, RunNotFoundError

if TYPE_CHECKING:
    from turnlane.client.cli.chat import Chat

HELP = """\
/policy NAME            what the next inputs do to the answer in flight: queue, inject, interrupt, interrupt-next,
                        supersede
/file PATH              send a file along with your next line
/queue                  the runs that are active or wait
/cancel RUN             take a queued run out; the beginning of its id is enough
/interrupt              stop the answer in flight, as Ctrl-C does
/approvals              the calls that wait for approval
/approve [ID] [REASON]  let such a call be made; the id may be left out while one waits
/deny [ID] [REASON]     forbid it; the model is told why
/model [KEY]            which model answers, or another one from now on; `/model -` is the agent's own
/compact [force]        replace the older part of the conversation by a summary
/spend                  what the conversation spent
/quit                   leave; the conversation goes on, and `--conversation ID` takes it up again"""

APPROVAL_PREFIX = "apr-"

_OUTCOMES = {
    CompactionResult.APPLIED: "a summary stands where the older part stood",
    CompactionResult.NOT_NEEDED: "not needed yet; `/compact force` does it all the same",
    CompactionResult.NOTHING: "there is nothing old enough to sum up",
    CompactionResult.CONFLICT: "the conversation moved on meanwhile; try again",
    CompactionResult.CANCELLED: "it was called off",
    CompactionResult.FAILED: "it failed",
}


class Commands:
    """Does what a line of a chat asks for."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._known: dict[str, Callable[[str], Awaitable[None]]] = {
            "/policy": self._policy,
            "/file": self._file,
            "/queue": self._queue,
            "/cancel": self._cancel,
            "/interrupt": self._interrupt,
            "/approvals": self._approvals,
            "/approve": lambda given: self._respond(given, True),
            "/deny": lambda given: self._respond(given, False),
            "/model": self._model,
            "/compact": self._compact,
            "/spend": self._spend,
        }

    async def __call__(self, line: str) -> None:
        """Do it, or tell what can be done. Raises what a client raises."""
        name, _, argument = line.partition(" ")
        known = self._known.get(name)
        if known is None:
            self._chat.out.say(HELP)
        else:
            await known(argument.strip())

    # --- the next input -------------------------------------------------------------------------

    async def _policy(self, name: str) -> None:
        chat = self._chat
        if name and name not in list(Policy):
            raise InvalidInputError(f"a policy is one of {', '.join(Policy)}")
        chat.policy = Policy(name) if name else chat.policy
        chat.out.say(f"policy: {chat.policy.value if chat.policy else 'the agent decides'}", "dim")

    async def _file(self, path: str) -> None:
        chat = self._chat
        if path:
            chat.files.append(await asyncio.to_thread(_upload, path))
        names = ", ".join(upload.filename or upload.media_type for upload in chat.files)
        chat.out.say(f"goes along with your next line: {names or 'no file'}", "dim")

    # --- runs -----------------------------------------------------------------------------------

    async def _queue(self, _: str) -> None:
        chat = self._chat
        lines = await chat.client.runs(chat.conversation_id)
        for line in lines:
            chat.out.record(line)
            chat.out.say(f"{line.id}  {line.state.value}")
        if not lines:
            chat.out.say("nothing is active or waits", "dim")

    async def _cancel(self, beginning: str) -> None:
        chat = self._chat
        if not beginning:
            raise InvalidInputError("/cancel needs a run, or the beginning of its id; /queue lists them")
        found = [line.id for line in await chat.client.runs(chat.conversation_id) if line.id.startswith(beginning)]
        if len(found) != 1:
            raise RunNotFoundError(f"{len(found)} active runs begin with {beginning!r}; /queue lists them")
        await chat.client.cancel(chat.conversation_id, found[0])

    async def _interrupt(self, _: str) -> None:
        self._chat.interrupt()

    # --- approvals ------------------------------------------------------------------------------

    async def _pending(self) -> tuple[PendingApproval, ...]:
        """What waits for approval; of a pipe, once everything before this line was answered."""
        chat = self._chat
        if chat.is_piped:
            await chat.until_answered()
        return await chat.client.pending_approvals(chat.conversation_id)

    async def _approvals(self, _: str) -> None:
        pending = await self._pending()
        for question in pending:
            self._chat.out.record(question)
            self._chat.out.say(f"{short_id(question.approval_id)}  {question_words(question)}")
        if not pending:
            self._chat.out.say("nothing waits for approval", "dim")

    async def _respond(self, given: str, approved: bool) -> None:
        chat = self._chat
        question, reason = chosen(await self._pending(), given)
        ticket = await chat.client.respond(
            chat.conversation_id, question.approval_id, approved, reason=reason or None, responder=chat.responder
        )
        chat.note(ticket, f"{'approve' if approved else 'deny'} {call_words(question)}")

    # --- the conversation -----------------------------------------------------------------------

    async def _model(self, key: str) -> None:
        chat = self._chat
        if key:
            await chat.client.choose_model(chat.conversation_id, None if key == "-" else key, agent=chat.agent)
        shown = await chat.client.chosen_model(chat.conversation_id)
        chat.out.record({"ok": True, "conversation_id": chat.conversation_id, "model": shown})
        chat.out.say(f"model: {shown or 'the agent decides'}", "dim")

    async def _compact(self, word: str) -> None:
        if word not in ("", "force"):
            raise InvalidInputError("/compact takes nothing, or the word force")
        self._chat.start(self._compacted(force=word == "force"))

    async def _compacted(self, *, force: bool) -> None:
        chat = self._chat
        reply = await chat.client.compact(chat.conversation_id, force=force)
        chat.out.record({"ok": True, "conversation_id": chat.conversation_id, **reply.model_dump(mode="json")})
        outcome = _OUTCOMES[reply.outcome or CompactionResult.FAILED]
        chat.out.say(f"compaction: {outcome}{code_mark(reply.failure)}", "dim")

    async def _spend(self, _: str) -> None:
        chat = self._chat
        if chat.is_piped:
            await chat.until_answered()
        spent = await chat.client.spend(chat.conversation_id)
        chat.out.record(spent)
        chat.out.say(f"{spent.runs} ended runs: {usage_words(spent.total)}")
        if spent.missing and spent.costs:
            chat.out.say(unknown_words(spent), "dim")
        if spent.active is not None:
            chat.out.say(f"the answer in flight: {usage_words(spent.active)}")


def _upload(path: str) -> Upload:
    return read_upload(Path(path).expanduser())


def chosen(pending: tuple[PendingApproval, ...], given: str) -> tuple[PendingApproval, str]:
    """The approval that a line means, and the reason in it.

    With exactly one that waits the id may be left out; a word that looks like an id is always taken for one, so that
    no answer reaches a question that it was not meant for.
    """
    word, _, rest = given.partition(" ")
    named = [question for question in pending if len(word) > len(APPROVAL_PREFIX) and _is_called(question, word)]
    if len(named) == 1:
        return named[0], rest.strip()
    if not named and not word.startswith(APPROVAL_PREFIX) and len(pending) == 1:
        return pending[0], given
    if not pending:
        raise ApprovalNotPendingError("nothing waits for approval")
    if word.startswith(APPROVAL_PREFIX):
        raise ApprovalNotPendingError(f"{len(named)} approvals that wait begin with {word!r}; /approvals lists them")
    raise ApprovalNotPendingError(f"{len(pending)} approvals wait: name one by its id; /approvals lists them")


def _is_called(question: PendingApproval, word: str) -> bool:
    return question.approval_id.startswith(word)
