"""Prompts by Jinja templates, compared with `transformers`, which defined what such templates may use."""

import json

import pytest
import tokenizers
import transformers

from rose.chat.chatml.format import ChatMLFormat
from rose.chat.conversation import Conversation, FunctionTool, Message, ToolCall
from rose.chat.registry import get_format
from rose.chat.tokenizer import load_tokenizer
from rose.errors import CheckpointError, ConfigError, RequestError
from tests.chat.subjects import THINKING_TEMPLATE
from tests.chat.tokenizers_for_tests import chatml_tokenizer

# Written for these tests; each uses what some published family of templates does.
LOOPS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- 'Functions:' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=0, searching=true) %}
{%- for message in messages[::-1] %}
    {%- set i = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = i %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thoughts = message.reasoning_content | default('', true) %}
        {%- if '</think>' in message.content %}{% set content = message.content.split('</think>')[-1] %}
        {%- else %}{% set content = message.content %}{%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or thoughts) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function or call %}
            {{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

MACROS = """\
{%- macro describe(properties, depth) -%}
    {%- for name, schema in properties | dictsort -%}
        {{ '  ' * depth }}- {{ name }} ({{ schema.type | upper }})
        {%- if schema.enum is defined %} of {{ schema.enum | join(', ') }}{% endif %}
        {%- if schema.description %}: {{ schema.description | trim }}{% endif %}
        {%- if schema.properties is mapping %}{{ '\\n' ~ describe(schema.properties, depth + 1) }}{% endif %}
        {%- if not loop.last %}{{ '\\n' }}{% endif %}
    {%- endfor -%}
{%- endmacro -%}
{{- bos_token | default('') }}
{%- for message in messages if message.role != 'nobody' -%}
    {%- if message.role == 'tool' %}{%- set role = 'ipython' %}{% else %}{% set role = message['role'] %}{% endif -%}
    <|im_start|>{{ role }}
{{ message.content | trim }}
    {%- if message.tool_calls is defined and message.tool_calls -%}
        {%- for call in message.tool_calls -%}
            {%- for key, value in call.function.arguments.items() %}
                {{- '\\n' ~ call.function.name ~ '.' ~ key ~ '=' }}
                {{- value | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}
            {%- endfor -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if loop.last %}{% break %}{% endif -%}
    <|im_end|>
{% endfor -%}
<|im_end|>
{% if tools is not none %}{% for tool in tools %}{{ tool.function.name }}
{{ describe(tool.function.parameters.properties, 1) }}
{{ tool.function | tojson(indent=2) }}
{% endfor %}{% endif -%}
{%- if add_generation_prompt %}{% generation %}<|im_start|>assistant
{% endgeneration %}{% endif %}
"""

NESTED = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "description": " Where, é? ", "enum": ["Oban", "Ælfrey 😀"]},
        "when": {"type": "object", "properties": {"hour": {"type": "integer"}}},
    },
}
TOOLS = (FunctionTool("tide", 'When it is "high" & low.', NESTED), FunctionTool("wind", "Blows.", NESTED))
SAID = {"place": "Æ 'x' \"y\" 😀", "hours": [4, 16.5], "now": True, "note": None}
SAID_TEXT = json.dumps(SAID, ensure_ascii=False)
MESSAGES = (
    Message("system", "Be brief: <b>1 < 2</b> & é."),
    Message("user", "  High tide?\n"),
    Message("assistant", "At 4.", reasoning="\nKnown.\n"),
    Message("user", "And wind?"),
    Message("assistant", "", reasoning="Look.", tool_calls=(ToolCall("a", "tide", SAID_TEXT),)),
    Message("tool", "[4, 16]", tool_call_id="a"),
    Message("tool", "calm", tool_call_id="a"),
)
CHATS = {
    "one message": Conversation(MESSAGES[1:2]),
    "instructions": Conversation(MESSAGES[:2]),
    "turns": Conversation(MESSAGES[:4]),
    "a tool loop": Conversation(MESSAGES, tools=TOOLS),
    "tools alone": Conversation(MESSAGES[1:2], tools=TOOLS[:1]),
}


def as_openai(chat: Conversation) -> tuple[list[dict], list[dict] | None]:
    messages = []
    for message in chat.messages:
        written = {"role": message.role, "content": message.content}
        if message.reasoning:
            written["reasoning_content"] = message.reasoning
        if message.tool_calls:
            written["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        messages.append(written)
    tools = [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in chat.tools
    ]
    return messages, tools or None


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return chatml_tokenizer()


@pytest.fixture
def checkpoint(tmp_path, backend):
    """Writes a checkpoint's folder, and returns it."""

    def write(config: dict | str | None = None, template: str | None = None):
        backend.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            (tmp_path / "tokenizer_config.json").write_text(text)
        if template is not None:
            (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return write


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS.keys())
@pytest.mark.parametrize("template", [LOOPS, MACROS, THINKING_TEMPLATE], ids=["loops", "macros", "thinking"])
def test_prompts_are_those_of_transformers(checkpoint, backend, template: str, chat: Conversation) -> None:
    folder = checkpoint({"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}}, template)
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(backend.to_str()),
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        chat_template=template,
    )
    messages, tools = as_openai(chat)
    expected = oracle.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    ours = get_format("auto", folder)
    assert isinstance(ours, ChatMLFormat)
    assert ours.render(chat) == expected


def prompt_of(folder, chat: Conversation) -> str:
    return load_tokenizer(folder).decode(get_format("chatml", folder).render(chat), keep_special=True)


HI = Conversation((Message("user", "hi"),))


def test_the_file_of_its_own_counts_before_the_config(checkpoint) -> None:
    assert prompt_of(checkpoint({"chat_template": "config"}), HI) == "config"
    assert prompt_of(checkpoint({"chat_template": "config"}, "file"), HI) == "file"


def test_a_template_for_tools_is_taken_for_chats_with_tools(checkpoint) -> None:
    named = [{"name": "tool_use", "template": "with tools"}, {"name": "default", "template": "without"}]
    folder = checkpoint({"chat_template": named})
    assert prompt_of(folder, HI) == "without"
    assert prompt_of(folder, Conversation(HI.messages, tools=TOOLS)) == "with tools"


def test_the_date_of_the_conversation_is_the_templates_clock(checkpoint) -> None:
    folder = checkpoint(template="{{ strftime_now('%d %b %Y') if strftime_now is defined else 'no date' }}")
    assert prompt_of(folder, Conversation(HI.messages, current_date="2026-01-31")) == "31 Jan 2026"
    assert prompt_of(folder, HI) == "no date"
    with pytest.raises(RequestError, match="2026-13-41"):
        prompt_of(folder, Conversation(HI.messages, current_date="2026-13-41"))


def test_reasoning_effort_reaches_the_template(checkpoint) -> None:
    folder = checkpoint(template="{{ reasoning_effort }}")
    assert prompt_of(folder, Conversation(HI.messages, reasoning_effort="high")) == "high"


def test_a_templates_refusal_is_the_clients(checkpoint) -> None:
    folder = checkpoint(template="{{ raise_exception('Roles must alternate!') }}")
    with pytest.raises(RequestError, match="cannot write this conversation: Roles must alternate!") as refused:
        prompt_of(folder, HI)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{% set ns = namespace(**{'__class__': 1}) %}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ dict.mro() }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_refusal(checkpoint, template: str) -> None:
    with pytest.raises(RequestError, match="chat template cannot write"):
        prompt_of(checkpoint(template=template), HI)


@pytest.mark.parametrize(
    ("config", "template", "message"),
    [
        (None, "{% if %}", r"chat_template\.jinja: not a usable chat template"),
        ({"chat_template": "{{"}, None, r"tokenizer_config\.json: not a usable chat template"),
        ({"chat_template": 3}, None, "neither a template nor a list"),
        ({"chat_template": [{"name": "default"}]}, None, "neither a template nor a list"),
        ("{", None, r"tokenizer_config\.json: not JSON"),
        ("[" * 100_000, None, r"tokenizer_config\.json: not JSON"),
        ("[]", None, "not a JSON object"),
    ],
)
def test_a_damaged_file_is_named(checkpoint, config, template, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        get_format("chatml", checkpoint(config, template))


def test_the_end_of_the_turn_is_also_the_checkpoints_own(checkpoint, backend) -> None:
    folder = checkpoint({"eos_token": {"content": "<tool_response>"}})
    stops = get_format("chatml", folder).stop_token_ids
    names = ("<|im_end|>", "<|endoftext|>", "<tool_response>", "</tool_call>")
    assert set(stops) == {backend.token_to_id(name) for name in names}


# Which format a checkpoint has.


def bare(tmp_path, *specials: str):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in specials])
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_checkpoint_of_no_format_is_told_so(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no chat format suits .* --chat-format takes one of chatml, harmony"):
        get_format("auto", bare(tmp_path, "<|bos|>"))
    with pytest.raises(CheckpointError, match=r"no token <\|im_end\|>"):
        get_format("chatml", tmp_path)


def test_a_template_is_enough(tmp_path) -> None:
    folder = bare(tmp_path, "<|eot|>")
    config = {"chat_template": "{{ messages[0].content }}<|eot|>", "eos_token": "<|eot|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    chat = get_format("auto", folder)
    assert (chat.name, chat.stop_token_ids) == ("chatml", (2,))
    assert chat.render(Conversation((Message("user", "ab"),))) == [0, 1, 2]


def test_harmony_comes_first(tmp_path, tiny_backend) -> None:
    tiny_backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text("gpt-oss brings one, too")
    assert get_format("auto", tmp_path).name == "harmony"
