"""Generated files: what a model makes is kept outside the history, which has a reference to it."""

from __future__ import annotations

from turnlane.activities.asking import asked
from turnlane.activities.clock import utc_now
from turnlane.activities.failing import failing_as, persist
from turnlane.activities.providers.base import GeneratedFile
from turnlane.agent.agent import Agent
from turnlane.agent.files import FileQuestion, Upload
from turnlane.records.files import blob_reference
from turnlane.records.messages import FilePart
from turnlane.records.steps import Fence
from turnlane.store.protocol import Store


class GeneratedFiles:
    """Keeps what a model generates outside the history."""

    def __init__(self, store: Store, agent: Agent, fence: Fence) -> None:
        self._store = store
        self._agent = agent
        self._fence = fence

    async def keep(self, file: GeneratedFile) -> FilePart:
        """Persist a file where the agent says, else in the conversation's store, and return the part that refers to it.

        The same file again, from a step that is made once more, is the same file in the store.
        """
        reference = await self._persisted(file)
        return FilePart(media_type=file.media_type, reference=reference, filename=file.filename)

    async def _persisted(self, file: GeneratedFile) -> str:
        persist_file = self._agent.persist_generated_file
        if persist_file is None:
            blob = await persist(
                lambda: self._store.put_blob(self._fence.conversation_id, file.data, file.media_type, utc_now())
            )
            return blob_reference(blob.id)
        upload = Upload(data=file.data, media_type=file.media_type, filename=file.filename)
        question = FileQuestion(conversation_id=self._fence.conversation_id, run_id=self._fence.run_id)
        with failing_as("PERSIST_FILE_FAILED", "run %s: keeping a generated file", self._fence.run_id):
            return await asked(lambda: persist_file(upload, question))
