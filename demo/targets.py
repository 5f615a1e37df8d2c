"""From an example to token ids: the prompt as serving renders it, and the tokens the model is to write."""

from dataclasses import dataclass

from demo.tasks.example import Example, Reply
from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Encoded:
    """Prompt and target of one example, as token ids."""

    prompt: list[int]
    target: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)


class Encoder:
    """Encodes examples for one tokenizer, with the renderer that serves requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._format = get_format("harmony", tokenizer)

    def __call__(self, example: Example) -> Encoded:
        """The example's ids."""
        return Encoded(self._format.render(example.conversation), self.reply(example.reply))

    def reply(self, reply: Reply) -> list[int]:
        """What the model writes after `<|start|>assistant`, to the token that ends its turn."""
        ids: list[int] = []
        if reply.reasoning is not None:
            ids += self._message("analysis", reply.reasoning, "<|end|>")
            ids += [self._special("<|start|>"), *self._tokenizer.encode("assistant")]
        if reply.call is None:
            return ids + self._message("final", reply.content, "<|return|>")
        header = self._tokenizer.encode(f"commentary to=functions.{reply.call.name} ")
        ids += [self._special("<|channel|>"), *header, self._special("<|constrain|>")]
        ids += [*self._tokenizer.encode("json"), self._special("<|message|>")]
        return [*ids, *self._tokenizer.encode(reply.call.json), self._special("<|call|>")]

    def _message(self, channel: str, text: str, end: str) -> list[int]:
        encode = self._tokenizer.encode
        return [self._special("<|channel|>"), *encode(channel), self._special("<|message|>"), *encode(text),
                self._special(end)]  # fmt: skip

    def _special(self, name: str) -> int:
        token_id = self._tokenizer.special_id(name)
        assert token_id is not None, name
        return token_id
