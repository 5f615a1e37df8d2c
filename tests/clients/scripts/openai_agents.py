"""openai-agents: a tool loop, whole and streamed, over both APIs."""

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

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{os.environ['ROSE_URL']}/v1", api_key=os.environ["ROSE_KEY"])


@function_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"temperature": 21, "sky": "clear"}'


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
        async for _ in streamed.stream_events():
            pass
        answers[name] = [whole.final_output, streamed.final_output]
    print(json.dumps(answers))


asyncio.run(main())
