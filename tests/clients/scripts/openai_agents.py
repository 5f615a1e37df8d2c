"""openai-agents: a tool loop, whole and streamed, and a typed answer, over both APIs."""

import asyncio
import json
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{os.environ['ROSE_URL']}/v1", api_key=os.environ["ROSE_KEY"])


class Sum(BaseModel):
    """A sum's result."""

    answer: int


calls: list[str] = []


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    calls.append(city)
    return '{"temperature": 21, "sky": "clear"}'


async def typed(model: type) -> int:
    """A sum as an object of a class."""
    agent = Agent(
        name="sums",
        output_type=Sum,
        model=model(model="rose-demo", openai_client=client),
        model_settings=ModelSettings(temperature=0),
    )
    return (await Runner.run(agent, "What is 127 + 385?")).final_output.answer


async def main() -> None:
    answers = {}
    for name, model in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatCompletionsModel)):
        agent = Agent(
            name="weather",
            tools=[get_weather],
            model=model(model="rose-demo", openai_client=client),
            model_settings=ModelSettings(temperature=0),
        )
        whole = await Runner.run(agent, "What is the weather in Paris?")
        streamed = Runner.run_streamed(agent, "What is the weather in Paris?")
        text = ""
        async for event in streamed.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        answers[name] = {
            "whole": whole.final_output,
            "streamed": [text, streamed.final_output],
            "items": [type(item).__name__ for item in whole.new_items],
            "streamed_items": [type(item).__name__ for item in streamed.new_items],
            "typed": await typed(model),
        }
    answers["calls"] = calls
    print(json.dumps(answers))


asyncio.run(main())
