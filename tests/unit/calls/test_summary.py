"""Summaries of conversations that the model which writes them cannot take at once."""

from __future__ import annotations

import pytest

from perdure import Agent, Compaction
from perdure.calls.call import RequestCall
from perdure.calls.summary import Summariser
from perdure.errors import ContextLengthError
from perdure.testing import ScriptedProvider
from perdure.types.messages import Message
from tests.unit.calls.build import compact_call, request_call

ENOUGH = 60


class Narrow:
    """A model that takes so many characters, and sums up anything in ``says``."""

    def __init__(self, window: int, says: str) -> None:
        self.window, self.says = window, says
        self.paid: list[str] = []
        self.refused = 0

    async def __call__(self, call: RequestCall) -> Message:
        text = "\n".join(message.text for message in call.request.messages)
        assert len(self.paid) + self.refused < ENOUGH, "it would go on for ever"
        if len(text) > self.window:
            self.refused += 1
            raise ContextLengthError("too long")
        self.paid.append(text)
        return Message.assistant(self.says)


async def summed_up(model: Narrow, texts: list[str], prompt: str = "Sum up.") -> str:
    call = request_call(compact_call(), Agent("a", ScriptedProvider([])), is_summary=True)
    said = [Message.user(text) for text in texts]
    asked = Compaction.summarise(at=1000, prompt=prompt)
    return await Summariser(call, model, asked).summarise(said, said)


@pytest.mark.parametrize("lengths", [[8000], [3000, 8000], [3000, 8000, 2000], [8000] * 7, [10, 10, 8000]])
@pytest.mark.parametrize("says", ["S" * 30, "S" * 3000])
async def test_texts_longer_than_the_window_of_the_model_come_to_an_end(lengths: list[int], says: str) -> None:
    model = Narrow(6000, says)
    texts = [chr(ord("a") + place) * length for place, length in enumerate(lengths)]
    assert await summed_up(model, texts) == says
    assert len(model.paid) <= 2 * len(lengths) + 1
    assert all(any(text[:10] in asked for asked in model.paid) for text in texts), "each was told of"


@pytest.mark.parametrize("texts", [["Hello."], ["x" * 8000] * 5, [""]])
async def test_a_prompt_longer_than_the_window_is_refused_and_nothing_is_paid(texts: list[str]) -> None:
    model = Narrow(6000, "S")
    with pytest.raises(ContextLengthError):
        await summed_up(model, texts, prompt="p" * 6001)
    assert model.paid == []
