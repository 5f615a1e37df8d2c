"""langchain-openai: text, a stream and a tool loop, over both APIs."""

import json
import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"temperature": 21, "sky": "clear"}'


answers = {}
for name, use_responses_api in (("responses", True), ("chat", False)):
    model = ChatOpenAI(
        base_url=f"{os.environ['ROSE_URL']}/v1",
        api_key=os.environ["ROSE_KEY"],
        model="rose-demo",
        temperature=0,
        use_responses_api=use_responses_api,
    )
    text = model.invoke("What is 127 + 385?").text
    streamed = "".join(chunk.text for chunk in model.stream("What is 127 + 385?"))
    with_tool = model.bind_tools([get_weather])
    question = HumanMessage("What is the weather in Paris?")
    turn = with_tool.invoke([question])
    results = [get_weather.invoke(call) for call in turn.tool_calls]
    answers[name] = [text, streamed, with_tool.invoke([question, turn, *results]).text]
print(json.dumps(answers))
