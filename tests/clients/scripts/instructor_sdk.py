"""instructor: a typed answer by a forced tool, by a JSON schema, and over the Responses API."""

import json
import os

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Sum(BaseModel):
    """A sum's result."""

    answer: int


url, key = f"{os.environ['ROSE_URL']}/v1", os.environ["ROSE_KEY"]
answers = {}
for mode in ("JSON_SCHEMA", "TOOLS", "RESPONSES_TOOLS"):
    client = instructor.from_openai(OpenAI(base_url=url, api_key=key), mode=instructor.Mode[mode])
    options = {} if mode == "RESPONSES_TOOLS" else {"temperature": 0}
    question = [{"role": "user", "content": "What is 127 + 385?"}]
    made = client.chat.completions.create(model="rose-demo", response_model=Sum, messages=question, **options)
    answers[mode] = made.answer
print(json.dumps(answers))
