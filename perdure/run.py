"""``Run``: one conversation, seen from outside: what can be read of it, and what steers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temporalio.service import RPCError

from .answering import answer
from .approving import decide, revoke
from .differing import Difference, difference
from .errors import InvalidInputError, RunClosedError, RunStuckError
from .following import begun
from .forking import fork
from .loop import read_limits
from .loop.overrides import merged
from .reading import NO_WORKER, Reading
from .runs import closed_status
from .sealing import Auth, sealed
from .sending import deliver, ended, reopen, reopening
from .told import pause_heard
from .translate import closed_error
from .turn import Turn
from .types.approval import DecidedApproval, StandingApproval
from .types.files import Asked
from .types.interface import Override
from .workflow_tasks import failing_task

__all__ = ["NO_WORKER", "Run"]


class Run(Reading):
    """A conversation. Making a handle asks nothing of the server. ``handle`` is Temporal's own.

    Every verb that steers takes ``by``, who does it; by default the client's ``actor``.
    """

    async def send(
        self,
        message: Asked | None,
        *,
        message_id: str | None = None,
        task_id: str | None = None,
        override: Override | Mapping[str, Any] | None = None,
        auth_context: Auth | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Turn:
        """Send a message (text, or a list of texts and ``File``) and get the turn that it joins or opens; the same
        ``message_id`` twice counts once.

        ``task_id`` names the turn that the message opens; the name of an earlier turn is not given a second time: the
        ``task_id`` of what this returns is the turn's.

        A conversation that has ended goes on from its end, in a new execution with what the last one was started with.
        None asks for a turn without a message. ``auth_context``, ``auth_ref``: see ``Client.send``.
        Raises ``RunNotFoundError``, ``InvalidInputError``.
        """
        auth = sealed(self.client.temporal, self.id, auth_context, auth_ref)
        return await deliver(self, message, message_id=message_id, task_id=task_id, override=override, by=by, auth=auth)

    async def children(self) -> list[Run]:
        """The runs that its calls of other agents, and branches of its steps, have begun so far, in their order. Needs
        the store.

        A call that was not let begin is among them, and its run is not found. Raises ``TranscriptUnavailableError``.
        """
        return [self.client.run(name) for name in await begun(self)]

    def turn(self, task_id: str | None = None) -> Turn:
        """The turn of that id; without one the present turn, or the last one. Nothing is asked of the server yet."""
        return Turn(self, task_id)

    async def inject(self, message: Asked, *, id: str | None = None, by: str | None = None) -> None:
        """Send a message that joins the conversation at the next iteration; the same ``id`` twice counts once.

        Raises ``RunClosedError``, ``RunNotFoundError``; for a long message ``StoreMismatchError`` where this client
        has another store than the run.
        """
        await self._signal_message("inject_user_message", message, id, by)

    async def interrupt(self, message: Asked | None = None, *, id: str | None = None, by: str | None = None) -> None:
        """Stop the model call and the tools that are in flight. What was finished is kept; every open call gets a
        result that says so. With a message the turn goes on with it; without one it ends (``finish_reason`` is
        ``"interrupted"``), and a session waits for the next message. Between two turns there is nothing to stop.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        if message is None:
            await self._signal("interrupt", {"by": by or self.client.actor})
        else:
            await self._signal_message("interrupt", message, id, by)

    async def close(self, *, by: str | None = None) -> None:
        """End a session after its current turn. Raises ``RunClosedError``, ``RunNotFoundError``."""
        await self._signal("close", {"by": by or self.client.actor})

    async def resume(self, *, limits: Mapping[str, Any] | None = None, by: str | None = None) -> None:
        """Let a paused run try the same step again; open a run that failed, was cancelled, was terminated or timed
        out once more, from where its conversation ended.

        ``limits`` raises limits: ``{"cost_usd": 5, "max_iterations": 80, "turn": {"tokens": 50_000}}``. They are what
        the run may use from its start, not what is added; those of a turn are for the present one. Of several people
        who raise one the highest counts. A run that is paused at a limit goes on when that is raised. One that is
        opened again begins to count anew.

        Raises ``RunClosedError`` for a run that has completed: send it a message instead; ``RunStuckError`` for one
        whose workflow task fails again and again; ``InvalidInputError`` for ``limits`` that do not fit.
        """
        raised = read_limits(limits).model_dump(mode="json", exclude_none=True) if limits else {}
        closed = await ended(self)
        if closed is None:
            if (failing := await failing_task(self.client.temporal, await self.describe())) is not None:
                raise RunStuckError(f"run {self.id!r} is not paused: {failing}", hint=failing.way_out)
            await pause_heard(self)
            said = {"limits": raised} if raised else {}
            await self._signal("resume", {**said, "by": by or self.client.actor})
        elif closed.state == "completed":
            raise RunClosedError(f"run {self.id!r} has completed", hint="Send it a message, and it goes on from there.")
        else:
            start = await reopening(self)
            if raised:
                start["override"] = merged(start.get("override") or {}, {"limits": raised})
            self.handle = await reopen(self, start, by=by)

    async def cancel(self, *, by: str | None = None) -> None:
        """Cancel the run: what is in flight is stopped, what is finished is kept, the transcript is closed.

        Raises ``RunClosedError``, ``RunNotFoundError``.
        """
        # Temporal takes the cancellation of a run that has ended without a word.
        if closed_status(await self.describe()) is not None:
            raise closed_error(self.id)
        try:
            # The handle may be of an execution that has failed since, and somebody else has opened the run again.
            await self.client.temporal.get_workflow_handle(self.id).cancel(reason=f"by {by or self.client.actor}")
        except RPCError as error:
            raise self.translated(error) from error

    async def fork(
        self,
        message: Asked | None = None,
        *,
        at: int | None = None,
        id: str | None = None,
        model: str | tuple[str, ...] | None = None,
        results: Mapping[str, str] | None = None,
        override: Override | Mapping[str, Any] | None = None,
        auth_context: Auth | None = None,
        auth_ref: str | None = None,
        by: str | None = None,
    ) -> Run:
        """Start another run that goes on from here, or from behind iteration ``at`` as ``perdure show`` numbers it.

        It shares what was said before, so it costs one row however long that is, and each goes on by itself. It has
        the run's agent, mode, context and override; ``model`` and ``override`` change the agent. ``results`` puts
        other texts in the place of tool results, by call id; without ``at`` it goes on behind their calls. A call
        that has not finished gets a result that says so. Without a message the model is asked on the conversation as
        it stands; where that ends with a reply, the fork waits for a message. On whose behalf it acts is not taken
        over: ``auth_context``, ``auth_ref``.

        Raises ``InvalidInputError`` for an iteration or call that there is not, ``RunExistsError`` for a known ``id``,
        ``RunNotFoundError``, ``TranscriptUnavailableError`` without a store.
        """
        return await fork(
            self,
            message,
            at=at,
            id=id,
            model=model,
            results=results,
            override=override,
            auth=(auth_context, auth_ref),
            by=by,
        )

    async def diff(self, other: Run) -> Difference:
        """Where this conversation and ``other`` part. Raises as :meth:`transcript`."""
        if not isinstance(other, Reading):
            raise InvalidInputError(f"{other!r:.100} is no run", hint="Of one that has an id: client.run(id).")
        return difference(await self.transcript(), await other.transcript())

    async def approve(
        self,
        call_id: str | None = None,
        *,
        by: str | None = None,
        comment: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
        hash: str | None = None,
    ) -> DecidedApproval:
        """Approve a call that waits, by default the only one; with ``arguments``, to be made with these instead.

        ``hash`` is that of what was looked at, as ``status``, the event and ``on_approval`` hooks show it: what waits
        with another one is not approved. Without it, what waits under the id at this moment is.
        ``always`` approves every call of the tool in this conversation, also those that wait beside it, until
        :meth:`revoke`. Whoever sends the same decision once more gets it back.
        The tool checks changed arguments as it does the model's: what does not fit is an error for the model.
        Raises ``ApprovalDecidedError`` (it names who was quicker), ``ApprovalExpiredError``, ``InvalidInputError`` for
        a call that does not wait and for an approval by who asked for the call, where that is not allowed;
        ``RunClosedError``, ``RunNotFoundError``.
        """
        changes: dict[str, Any] = {"arguments": arguments, "always": always}
        return await decide(self, call_id, "approve", by=by, comment=comment, digest=hash, **changes)

    async def deny(
        self, call_id: str | None = None, *, by: str | None = None, comment: str | None = None
    ) -> DecidedApproval:
        """Deny a call that waits, by default the only one: the model is told who did, and the ``comment``.

        Of its tool no approval stands any longer. Raises as :meth:`approve`.
        """
        return await decide(self, call_id, "deny", by=by, comment=comment)

    async def answer(
        self,
        call_id: str | None = None,
        value: Any = None,
        *,
        error: str | None = None,
        by: str | None = None,
        hash: str | None = None,
    ) -> DecidedApproval:
        """Answer a call that waits for it, by default the only one: what its tool asks (``ctx.ask``), or the result of
        a call that a client runs (``callback_tool``).

        ``value`` is plain JSON, or what pydantic makes that of; a long text goes by way of the store. ``error`` says
        why there is none: a callback's result is that error, and ``ctx.ask`` raises it. Whoever sends the same answer
        once more gets back what it was: of a call that asks again, each further question is answered under its
        ``hash``, as ``status`` shows it.
        Raises ``ApprovalDecidedError`` (it names who was quicker), ``ApprovalExpiredError``, ``InvalidInputError`` for
        a call that waits for no answer and for what does not fit its form; ``RunClosedError``, ``RunNotFoundError``.
        """
        return await answer(self, call_id, value, error=error, by=by, digest=hash)

    async def revoke(self, tool: str, *, by: str | None = None) -> list[StandingApproval]:
        """Let later calls of ``tool`` wait again, which somebody has approved for ``always``; what had stood.

        Raises ``InvalidInputError`` where nothing does, ``RunClosedError``, ``RunNotFoundError``.
        """
        return await revoke(self, tool, by)

    async def _signal_message(self, name: str, message: Asked, id: str | None, by: str | None) -> None:
        sent = await self.client.as_message(message, id, by=by)
        if sent.store_id is not None:  # the run would refuse it, and nobody would hear of that
            self.check_store((await self.status()).store_id, sent.store_id)
        await self._signal(name, sent.model_dump(mode="json", exclude_none=True))

    async def _signal(self, name: str, *args: Any) -> None:
        try:
            await self.handle.signal(name, args=args)
        except RPCError as error:
            raise self.translated(error) from error
