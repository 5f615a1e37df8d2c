"""anthropic: text, a streamed tool loop with thinking, a count, and an error."""

import json
import os

import anthropic

client = anthropic.Anthropic(base_url=os.environ["ROSE_URL"], api_key=os.environ["ROSE_KEY"], max_retries=0)
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "get_weather", "description": "The weather in a city.", "input_schema": schema}]
options = {"model": "rose-demo", "max_tokens": 4000, "extra_body": {"temperature": 0}}
sum_question = [{"role": "user", "content": "What is 127 + 385?"}]
text = client.messages.create(messages=sum_question, **options).content[0].text

options |= {"tools": tools, "thinking": {"type": "enabled", "budget_tokens": 3000}}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
with client.messages.stream(messages=messages, **options) as stream:
    turn = stream.get_final_message()
(call,) = [block for block in turn.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
messages += [{"role": "assistant", "content": turn.content}, {"role": "user", "content": [result]}]
final = client.messages.create(messages=messages, **options)
try:
    client.messages.create(model="another", max_tokens=1, messages=sum_question)
except anthropic.NotFoundError as error:
    not_found = error.body["error"]["type"]
print(
    json.dumps(
        {
            "text": text,
            "call": call.input,
            "kinds": [block.type for block in final.content],
            "final": final.content[-1].text,
            "count": client.messages.count_tokens(model="rose-demo", messages=sum_question).input_tokens,
            "not_found": not_found,
        }
    )
)
