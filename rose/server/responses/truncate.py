"""`truncation: auto`: the oldest turns of a chat give way when it has become too long."""

import dataclasses
from collections.abc import Awaitable, Callable

from rose.chat.conversation import Conversation


async def drop_oldest_turns(
    conversation: Conversation, render: Callable[[Conversation], Awaitable[list[int]]], max_prompt_tokens: int
) -> Conversation:
    """The conversation with as few turns as possible missing from its beginning, so that its prompt fits.

    Instructions at the head stay. When not even the last turn fits, the conversation comes back whole, to be refused.
    """
    starts = _turn_starts(conversation)
    if not starts or len(await render(conversation)) <= max_prompt_tokens:
        return conversation
    low, high = 1, len(starts) - 1  # the first turn to keep is among these
    best: Conversation | None = None
    while low <= high:
        middle = (low + high) // 2
        kept = conversation.messages[: starts[0]] + conversation.messages[starts[middle] :]
        shorter = dataclasses.replace(conversation, messages=kept)
        if len(await render(shorter)) <= max_prompt_tokens:
            best, high = shorter, middle - 1
        else:
            low = middle + 1
    return best or conversation


def _turn_starts(conversation: Conversation) -> list[int]:
    """Where the turns begin: at the head of the chat proper, and at every later message of the user."""
    messages, first = conversation.messages, conversation.num_leading
    later = [i for i, message in enumerate(messages) if i > first and message.role == "user"]
    return [first, *later] if first < len(messages) else []
