"""Write the chats of `rose verify`: held-out problems of every task and effort, one of each.

    python -m demo.verify_chats > rose/assets/verify/chats.jsonl

Requests as `/v1/chat/completions` takes them. They are of a kind that rose-demo was made for and that gpt-oss can
answer as well, and none was seen in training.
"""

import json
from collections.abc import Iterator
from random import Random

from demo.evaluate import request_body
from demo.tasks.mixture import BUILDERS, EFFORTS, build

_FIELDS = ("messages", "tools", "reasoning_effort")


def chats() -> Iterator[str]:
    """The lines."""
    # Efforts outermost: however few are taken from the start, they are of different tasks.
    for effort in EFFORTS:
        for task in BUILDERS:
            example = build(task, Random(f"verify/{task}/{effort}"), "held_out", effort)
            body = request_body(example.conversation, "")
            yield json.dumps({name: body[name] for name in _FIELDS if name in body}, ensure_ascii=False)


def main() -> None:
    """Command line."""
    for line in chats():
        print(line)


if __name__ == "__main__":
    main()
