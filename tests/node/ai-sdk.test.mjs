// Vercel's AI SDK against a gateway with the scripted engine: the tool round trip, plain and streamed, and an object,
// through its providers for Chat Completions, Responses and Messages. Environment as in sdks.test.mjs.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const { API_KEY: apiKey, BASE_URL: baseURL, MODEL: name } = process.env;
globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ apiKey, baseURL });
const models = {
  chat: openai.chat(name),
  responses: openai.responses(name),
  messages: createAnthropic({ apiKey, baseURL })(name),
  compatible: createOpenAICompatible({ name: "gateway", apiKey, baseURL, includeUsage: true, supportsStructuredOutputs: true })(name),
};
const pair = z.object({ a: z.number().int(), b: z.number().int() });
const calls = [];
const tools = {
  add: tool({
    description: "Add two integers",
    inputSchema: pair,
    execute: async ({ a, b }) => {
      calls.push([a, b]);
      return `It is ${a + b}`;
    },
  }),
};
const common = { prompt: "Use add on 2 and 3", tools, stopWhen: stepCountIs(3), maxRetries: 0 };

for (const [api, model] of Object.entries(models)) {
  test(`${api}: a tool goes round`, async () => {
    calls.length = 0;
    const { text, steps, totalUsage } = await generateText({ model, ...common });
    assert.deepEqual(calls, [[2, 3]]);
    assert.match(text, /It is 5/);
    assert.equal(steps.length, 2);
    assert.equal(steps[0].finishReason, "tool-calls");
    assert.ok(totalUsage.totalTokens > 0);
  });

  test(`${api}: a tool goes round in streams`, async () => {
    calls.length = 0;
    const result = streamText({ model, ...common, onError: ({ error }) => assert.fail(String(error)) });
    const parts = [];
    for await (const part of result.fullStream) parts.push(part.type);
    assert.deepEqual(calls, [[2, 3]]);
    assert.match(await result.text, /It is 5/);
    for (const type of ["tool-input-start", "tool-call", "tool-result", "text-delta", "finish"]) {
      assert.ok(parts.includes(type), `${type} is missing of ${parts}`);
    }
    assert.ok(!parts.includes("error"));
  });

  test(`${api}: an object is held to its schema`, async () => {
    const { output } = await generateText({ model, prompt: "3 and 4", output: Output.object({ schema: pair }), maxRetries: 0 });
    assert.ok(pair.safeParse(output).success);
  });
}
