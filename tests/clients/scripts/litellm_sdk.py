"""litellm: chat by two of its providers, streamed, a tool loop, an object; the other three APIs."""

import json
import os

import litellm
from pydantic import BaseModel


class Sum(BaseModel):
    """A sum's result."""

    answer: int


URL, KEY = f"{os.environ['ROSE_URL']}/v1", os.environ["ROSE_KEY"]
SUM = [{"role": "user", "content": "What is 127 + 385?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "The weather in a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": WEATHER}]
options = {"api_base": URL, "api_key": KEY, "temperature": 0, "num_retries": 0}


def chat(provider: str) -> dict[str, object]:
    """Text, the same streamed, and a tool loop."""
    model = f"{provider}/rose-demo"
    message = litellm.completion(model=model, messages=SUM, reasoning_effort="high", **options).choices[0].message
    streamed, usage = "", None
    stream = litellm.completion(
        model=model, messages=SUM, stream=True, stream_options={"include_usage": True}, **options
    )
    for chunk in stream:
        streamed += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = getattr(chunk, "usage", None) or usage
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    turn = litellm.completion(model=model, messages=messages, tools=TOOLS, **options).choices[0].message
    (call,) = turn.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "clear"}'}
    messages += [turn.model_dump(exclude_none=True), result]
    final = litellm.completion(model=model, messages=messages, tools=TOOLS, **options).choices[0].message
    return {
        "text": message.content,
        "reasoning": message.reasoning_content,
        "streamed": streamed,
        "usage": usage.completion_tokens,
        "call": [call.function.name, json.loads(call.function.arguments)],
        "final": final.content,
        "object": litellm.completion(model=model, messages=SUM, response_format=Sum, **options)
        .choices[0]
        .message.content,
    }


response = litellm.responses(model="openai/rose-demo", input="What is 127 + 385?", **options)
events = list(litellm.responses(model="openai/rose-demo", input="What is 127 + 385?", stream=True, **options))
completion = litellm.text_completion(
    model="text-completion-openai/rose-demo", prompt="127 + 385 =", max_tokens=4, **options
)
message = litellm.completion(
    model="anthropic/rose-demo", messages=SUM, max_tokens=2000, **options | {"api_base": os.environ["ROSE_URL"]}
)
print(
    json.dumps(
        {
            "openai": chat("openai"),
            "hosted_vllm": chat("hosted_vllm"),
            "anthropic": message.choices[0].message.content,
            "responses": [item.content[0].text for item in response.output if item.type == "message"],
            "responses_streamed": "".join(e.delta for e in events if e.type == "response.output_text.delta"),
            "completion": [completion.choices[0].text, completion.usage.completion_tokens],
        }
    )
)
