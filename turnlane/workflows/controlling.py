"""Controlling: the handlers by which callers act on runs, waiting tools and the conversation."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turnlane.records.compaction import CompactReply
    from turnlane.records.durable import DeliveryReply
    from turnlane.records.lane import ControlReply, RunRequest
    from turnlane.workflows.arguments import (
        AbandonArgument,
        CompactArgument,
        DeliveryArgument,
        ModelArgument,
        PurgeArgument,
        RunArgument,
    )
    from turnlane.workflows.calls import as_failure
    from turnlane.workflows.compaction import Compactor
    from turnlane.workflows.control import Control
    from turnlane.workflows.deliveries import Deliveries


class Controlling:
    """The handlers of a lane that control it."""

    _control: Control
    _deliveries: Deliveries
    _compactor: Compactor

    @workflow.update(name="interrupt")
    async def interrupt(self, request: RunArgument) -> ControlReply:
        """Ask a run to stop; answers when the request is durable. A run that is not running is a conflict."""
        return await self._control.interrupt(request)

    @workflow.signal(name="interrupt")
    async def interrupt_signal(self, request: RunArgument) -> None:
        """Ask a run to stop, for a caller that cannot wait."""
        await self._control.interrupt_quietly(request)

    @workflow.signal(name="stop")
    async def stop_signal(self) -> None:
        """Ask the run in flight to stop; the queue goes on."""
        await self._control.interrupt_quietly(RunRequest())

    @workflow.update(name="cancel")
    async def cancel(self, request: RunArgument) -> ControlReply:
        """End a run that still waits."""
        return await self._control.cancel(request)

    @workflow.update(name="abandon")
    async def abandon(self, request: AbandonArgument) -> ControlReply:
        """Give a run up for good. Needs the caller's word that nobody works on it."""
        return await self._control.abandon(request)

    @workflow.update(name="purge")
    async def purge(self, request: PurgeArgument) -> ControlReply:
        """Delete the conversation for ever, unless it has active runs. The lane ends with it."""
        return await self._control.purge(request)

    @workflow.update(name="deliver")
    async def deliver(self, delivery: DeliveryArgument) -> DeliveryReply:
        """Keep an event that tool bodies may wait for; the first delivery stands. Answers when it is durable."""
        return await self._deliveries.deliver(delivery)

    @deliver.validator
    def _check_delivery(self, delivery: DeliveryArgument) -> None:
        error = self._deliveries.objection(delivery)
        if error is not None:
            raise as_failure(error)

    @workflow.signal(name="deliver")
    async def deliver_signal(self, delivery: DeliveryArgument) -> None:
        """Keep an event, for a caller that cannot wait."""
        await self._deliveries.deliver_quietly(delivery)

    @workflow.update(name="choose_model")
    async def choose_model(self, request: ModelArgument) -> ControlReply:
        """Choose the model of the runs to come by its key."""
        return await self._control.choose_model(request)

    @workflow.update(name="compact")
    async def compact(self, request: CompactArgument) -> CompactReply:
        """Replace the older part of the conversation by a summary; answers when that is durable, or `again`."""
        return await self._compactor.ask(request)

    @compact.validator
    def _check_compact(self, request: CompactArgument) -> None:
        error = self._compactor.objection()
        if error is not None:
            raise as_failure(error)
