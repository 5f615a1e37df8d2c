// @openai/agents: a tool loop, whole and streamed, over both APIs, and a typed answer.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are found from the working folder, which is the client's own, not from this file's.
const require = createRequire(`${process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run, setTracingDisabled, tool } =
  await load("@openai/agents");
const { default: OpenAI } = await load("openai");
const { z } = await load("zod");

setTracingDisabled(true);
const client = new OpenAI({ baseURL: `${process.env.ROSE_URL}/v1`, apiKey: process.env.ROSE_KEY, maxRetries: 0 });
const modelSettings = { temperature: 0 };
const answers = {};
for (const [name, Model] of [["responses", OpenAIResponsesModel], ["chat", OpenAIChatCompletionsModel]]) {
  const calls = [];
  const get_weather = tool({
    name: "get_weather",
    description: "The weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      calls.push(city);
      return '{"temperature": 21, "sky": "clear"}';
    },
  });
  const model = new Model(client, "rose-demo");
  const weather = new Agent({ name: "weather", model, modelSettings, tools: [get_weather] });
  const whole = await run(weather, "What is the weather in Paris?");
  const streamed = await run(weather, "What is the weather in Paris?", { stream: true });
  let text = "";
  for await (const piece of streamed.toTextStream()) text += piece;
  await streamed.completed;
  const outputType = z.object({ answer: z.int() });
  const sums = new Agent({ name: "sums", model, modelSettings, outputType });
  const typed = await run(sums, "What is 127 + 385? Answer as JSON.");
  answers[name] = {
    whole: whole.finalOutput,
    streamed: text,
    calls,
    items: whole.newItems.map((item) => item.type),
    typed: typed.finalOutput,
  };
}
console.log(JSON.stringify(answers));
