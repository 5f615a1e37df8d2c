"""One checkpoint for each way that a chat format can come: what the contract's tests and the fuzzer are run on."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tokenizers

from rose.chat.format import ChatFormat
from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer, load_tokenizer
from tests.chat import chatml_streams, harmony_streams
from tests.chat.tokenizers_for_tests import chatml_tokenizer, tiny_tokenizer

Streams = Callable[[Tokenizer, Sequence[int], str], bool]

# Like those of models that always think: the prompt opens the reasoning. Texts are shown as they are.
THINKING_TEMPLATE = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'tool' %}{{- '<tool_response>' + m.content + '</tool_response>' }}
{%- else %}
{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- if loop.first and tools %}
{{- '<|im_start|>system\\n' + tools | tojson(indent=2) + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{% endif %}
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A format with the tokenizer of a checkpoint.

    file: the tokenizer's. answer and call: how the model writes reasoning and one of these, with `$` before what varies
    and the marks spelled; opened: what of it the prompt has written already. pieces and has_text: for streams without
    sense.
    """

    chat: ChatFormat
    tokenizer: Tokenizer
    file: Path
    answer: str
    call: str
    pieces: Sequence[Sequence[int]]
    has_text: Streams
    opened: str = ""

    def sample(self, form: str, **texts: str) -> list[int]:
        """The ids of `answer` or `call` with these texts in their places, from behind the prompt."""
        whole = form
        for name, text in texts.items():
            whole = whole.replace(f"${name}", text)
        assert whole.startswith(self.opened)
        return self.tokenizer.encode_with_special(whole.removeprefix(self.opened))


@cache
def subject(name: str) -> Subject:
    """The subject called `name`; its files are kept to the end of the process."""
    return _SUBJECTS[name]()


def _harmony() -> Subject:
    chat, tokenizer, file = _checkpoint(tiny_tokenizer())
    think = "<|channel|>analysis<|message|>$reasoning<|end|><|start|>assistant"
    return Subject(
        chat,
        tokenizer,
        file,
        answer=think + "<|channel|>final<|message|>$content<|return|>",
        call=think + "<|channel|>commentary to=functions.$name <|constrain|>json<|message|>$arguments<|call|>",
        pieces=harmony_streams.pieces(tokenizer),
        has_text=harmony_streams.has_text,
    )


def _chatml(*, has_tags: bool, template: str | None = None, opened: str = "") -> Subject:
    chat, tokenizer, file = _checkpoint(chatml_tokenizer(has_tags=has_tags), template)
    think = "<think>\n$reasoning\n</think>\n\n"
    return Subject(
        chat,
        tokenizer,
        file,
        answer=think + "$content<|im_end|>",
        call=think + '<tool_call>\n{"name": "$name", "arguments": $arguments}\n</tool_call>',
        pieces=chatml_streams.pieces(tokenizer),
        has_text=chatml_streams.has_text,
        opened=opened,
    )


_SUBJECTS: Mapping[str, Callable[[], Subject]] = {
    "harmony": _harmony,
    "chatml": lambda: _chatml(has_tags=True),
    "chatml-spelled": lambda: _chatml(has_tags=False),
    "chatml-thinking": lambda: _chatml(has_tags=True, template=THINKING_TEMPLATE, opened="<think>\n"),
}
SUBJECTS = tuple(_SUBJECTS)


def _checkpoint(backend: tokenizers.Tokenizer, template: str | None = None) -> tuple[ChatFormat, Tokenizer, Path]:
    folder = Path(tempfile.mkdtemp(prefix="rose-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "tokenizer.json"
    backend.save(str(file))
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = load_tokenizer(file)
    return get_format("auto", tokenizer), tokenizer, file
