"""openai-agents with the tools that the server runs: whole, streamed, and with all that came given back."""

import asyncio
import json
import os

from agents import Agent, CodeInterpreterTool, OpenAIResponsesModel, Runner, WebSearchTool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=f"{os.environ['ROSE_URL']}/v1", api_key=os.environ["ROSE_KEY"])
python = CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}})


async def main() -> None:
    agent = Agent(
        name="tides",
        tools=[python, WebSearchTool()],
        model=OpenAIResponsesModel(model="rose-test", openai_client=client),
    )
    whole = await Runner.run(agent, "When is it high?")
    streamed = Runner.run_streamed(agent, "When is it high?")
    async for _ in streamed.stream_events():
        pass
    again = await Runner.run(agent, [*whole.to_input_list(), {"role": "user", "content": "And in Oban?"}])
    answers = {
        "items": [item.raw_item.type for item in whole.new_items],
        "streamed_items": [item.raw_item.type for item in streamed.new_items],
        "texts": [run.final_output for run in (whole, streamed, again)],
    }
    print(json.dumps(answers))


asyncio.run(main())
