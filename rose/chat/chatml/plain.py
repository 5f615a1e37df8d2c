"""The template for a checkpoint that brings none: ChatML, with tools and reasoning in their usual tags.

Reasoning is shown to the model from the last user's message on, so inside a running tool loop, as most models of this
kind were trained.
"""

PLAIN_TEMPLATE = """\
{%- set has_head = messages and messages[0].role == "system" %}
{%- if has_head or tools %}
    {{- "<|im_start|>system\\n" }}
    {%- if has_head %}
        {{- messages[0].content }}
    {%- endif %}
    {%- if tools %}
        {{- ("\\n\\n" if has_head else "") ~ "# Tools\\n\\nYou may call these functions:\\n<tools>" }}
        {%- for tool in tools %}
            {{- "\\n" ~ (tool | tojson) }}
        {%- endfor %}
        {{- "\\n</tools>\\n\\nA call ends your message, and looks like this:\\n<tool_call>\\n" }}
        {{- '{"name": "function", "arguments": {"parameter": "value"}}' ~ "\\n</tool_call>" }}
    {%- endif %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- set last.user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- "<|im_start|>assistant\\n" }}
        {%- if message.reasoning_content and loop.index0 > last.user %}
            {{- "<think>\\n" ~ message.reasoning_content ~ "\\n</think>\\n\\n" }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {%- set arguments = call.function.arguments %}
            {{- ("\\n" if message.content or not loop.first else "") ~ '<tool_call>\\n{"name": ' }}
            {{- (call.function.name | tojson) ~ ', "arguments": ' }}
            {{- arguments if arguments is string else arguments | tojson }}
            {{- "}\\n</tool_call>" }}
        {%- endfor %}
        {{- "<|im_end|>\\n" }}
    {%- elif message.role == "tool" %}
        {{- "<|im_start|>tool\\n<tool_response>\\n" ~ message.content ~ "\\n</tool_response><|im_end|>\\n" }}
    {%- elif not (loop.first and has_head) %}
        {{- "<|im_start|>" ~ message.role ~ "\\n" ~ message.content ~ "<|im_end|>\\n" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|im_start|>assistant\\n" }}
{%- endif %}
"""
