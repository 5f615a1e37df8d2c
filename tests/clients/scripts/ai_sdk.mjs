// The Vercel AI SDK: a tool loop and an object, whole and streamed, with each of its providers.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// Packages are found from the working folder, which is the client's own, not from this file's.
const require = createRequire(`${process.cwd()}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, Output, streamText, tool, stepCountIs } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { z } = await load("zod");

const options = { baseURL: `${process.env.ROSE_URL}/v1`, apiKey: process.env.ROSE_KEY };
const openai = createOpenAI(options);
const compatible = createOpenAICompatible({
  name: "rose",
  includeUsage: true,
  supportsStructuredOutputs: true,
  ...options,
});
const get_weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async () => ({ temperature: 21, sky: "clear" }),
});
const models = {
  responses: openai.responses("rose-demo"),
  chat: openai.chat("rose-demo"),
  compatible: compatible("rose-demo"),
};
const answers = {};
for (const [name, model] of Object.entries(models)) {
  const request = {
    model,
    temperature: 0,
    prompt: "What is the weather in Paris?",
    tools: { get_weather },
    stopWhen: stepCountIs(3),
  };
  const whole = await generateText(request);
  const output = Output.object({ schema: z.object({ answer: z.int() }) });
  const sum = { model, temperature: 0, prompt: "What is 127 + 385?", output };
  answers[name] = {
    texts: [whole.text, await streamText(request).text],
    calls: whole.steps.flatMap((step) => step.toolCalls.map((call) => call.input)),
    objects: [(await generateText(sum)).output, await streamText(sum).output],
  };
}
console.log(JSON.stringify(answers));
