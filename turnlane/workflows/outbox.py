"""The outbox: transitions leave the lane in the order they were decided, in batches, each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from turnlane.records.errors import ConversationPurgedError, LaneSupersededError, TurnlaneError
from turnlane.records.lane import LaneSettings
from turnlane.records.mutations import CommitAnswer, CommitBatch, CommitOutcome, Landing, Mutation
from turnlane.workflows.calls import COMMIT, Outage, store_call
from turnlane.workflows.until import until

BATCH_COUNT = 200
BATCH_BYTES = 96 * 1024

OnCommit = Callable[[Landing], None]
Learned = Callable[[str | None, Landing], None]
OnLoss = Callable[[TurnlaneError], None]


@dataclass
class _Entry:
    mutation: Mutation
    run_id: str | None
    on_commit: OnCommit | None
    on_loss: OnLoss | None
    followers: list[tuple[Callable[[], None], OnLoss]] = field(default_factory=list)

    def committed(self, landing: Landing) -> None:
        """Tell everyone who waited for this entry."""
        if self.on_commit is not None:
            self.on_commit(landing)
        for callback, _ in self.followers:
            callback()

    def abandoned(self, error: TurnlaneError) -> None:
        """Tell everyone who waited for this entry that it is not known to be stored."""
        if self.on_loss is not None:
            self.on_loss(error)
        for _, on_loss in self.followers:
            on_loss(error)


class Outbox:
    """Holds decided mutations until the store has them.

    `lost` is set, for good, when the store refuses this incarnation of the lane; whoever waits for what is not known
    to be committed by then is told so.
    """

    def __init__(self, conversation_id: str, outage: Outage) -> None:
        self._conversation_id = conversation_id
        self._outage = outage
        self._entries: deque[_Entry] = deque()
        self._in_flight = 0
        self.lost: TurnlaneError | None = None
        self.has_stored = False

    def put(
        self,
        mutation: Mutation,
        run_id: str | None,
        on_commit: OnCommit | None = None,
        on_loss: OnLoss | None = None,
    ) -> None:
        """Queue a mutation; exactly one of the callbacks is called when it is stored, or lost."""
        if self.lost is not None:
            if on_loss is not None:
                on_loss(self.lost)
            return
        self._entries.append(_Entry(mutation, run_id, on_commit, on_loss))

    def after(self, callback: Callable[[], None], on_loss: OnLoss) -> None:
        """Call `callback` once everything decided so far is in the store: at once if it is already."""
        if self.lost is not None:
            on_loss(self.lost)
        elif not self._entries:
            callback()
        else:
            self._entries[-1].followers.append((callback, on_loss))

    @property
    def is_empty(self) -> bool:
        """True when everything decided so far is in the store (or lost)."""
        return not self._entries

    def outstanding(self, run_id: str) -> int:
        """How many queued mutations will still move this run's revision."""
        return sum(1 for entry in self._waiting() if entry.run_id == run_id)

    @property
    def outstanding_versions(self) -> int:
        """How many queued mutations will still move the version."""
        return sum(1 for entry in self._waiting() if entry.mutation.effect.type != "append-event")

    def _waiting(self) -> list[_Entry]:
        return list(self._entries)[self._in_flight :]

    async def mirror(self, epoch: Callable[[], int], settings: Callable[[], LaneSettings], learned: Learned) -> None:
        """Commit what is queued, for ever. `learned` hears each result before the entry's own callback."""
        while True:
            await until(lambda: bool(self._entries) or self.lost is not None)
            if self.lost is not None:
                return
            batch = self._next_batch()
            self._in_flight = len(batch)
            try:
                reply = await self._commit(epoch(), batch, settings())
            except TurnlaneError as error:
                self.lose(error)
                return
            if self.lost is None:
                self._settle(batch, reply, learned)

    def _next_batch(self) -> list[_Entry]:
        batch: list[_Entry] = []
        size = 0
        for entry in self._entries:
            size += entry.mutation.size
            if batch and (size > BATCH_BYTES or len(batch) == BATCH_COUNT):
                break
            batch.append(entry)
        return batch

    async def _commit(self, epoch: int, batch: list[_Entry], settings: LaneSettings) -> CommitAnswer:
        mutations = tuple(entry.mutation for entry in batch)
        commit = CommitBatch(conversation_id=self._conversation_id, epoch=epoch, mutations=mutations)
        return await store_call(COMMIT, commit, CommitAnswer, settings, self._outage)

    def _settle(self, batch: list[_Entry], reply: CommitAnswer, learned: Learned) -> None:
        if reply.outcome is CommitOutcome.PURGED:
            self.lose(ConversationPurgedError("the conversation was purged"))
            return
        if reply.outcome is not CommitOutcome.APPLIED:
            self.lose(LaneSupersededError(f"this incarnation of the lane was {reply.outcome.value}"))
            return
        self.has_stored = True
        for entry, landing in zip(batch, reply.landings, strict=True):
            self._entries.popleft()
            self._in_flight -= 1
            learned(entry.run_id, landing)
            entry.committed(landing)

    def lose(self, error: TurnlaneError) -> None:
        """Give up what is not known to be stored, and tell everyone who waits for it. The first error stands."""
        if self.lost is not None:
            return
        self.lost = error
        entries, self._entries, self._in_flight = list(self._entries), deque(), 0
        for entry in entries:
            entry.abandoned(error)
