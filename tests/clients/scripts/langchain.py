"""langchain-openai: text, a stream, an object and a tool loop, over both APIs."""

import json
import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Sum(BaseModel):
    """A sum's result."""

    answer: int


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
    answers[name] = {
        "text": text,
        "streamed": streamed,
        "object": model.with_structured_output(Sum).invoke("What is 127 + 385?").answer,
        "calls": [call["args"] for call in turn.tool_calls],
        "after_tool": with_tool.invoke([question, turn, *results]).text,
    }
print(json.dumps(answers))
