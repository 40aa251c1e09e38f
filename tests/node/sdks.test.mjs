// openai-node and @anthropic-ai/sdk against a gateway with the scripted engine: streams, tools, structured output,
// errors. BASE_URL ends in /v1; API_KEY and MODEL come from the environment.
import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { API_KEY: apiKey, BASE_URL: baseURL, MODEL: model } = process.env;
const openai = new OpenAI({ apiKey, baseURL, maxRetries: 0 });
const anthropic = new Anthropic({ apiKey, baseURL: baseURL.replace(/\/v1$/, ""), maxRetries: 0 });

const parameters = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};
const question = [{ role: "user", content: "Use add on 2 and 3" }];
const sum = { a: 2, b: 3 };

test("openai: a chat stream is assembled", async () => {
  const stream = openai.chat.completions.stream({
    model,
    messages: [{ role: "user", content: "PACE:2 SAY: one two three" }],
    stream_options: { include_usage: true },
  });
  const chunks = [];
  stream.on("chunk", (chunk) => chunks.push(chunk));
  const answer = await stream.finalChatCompletion();
  assert.equal(answer.choices[0].message.content, "one two three");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.completion_tokens, 3);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.match(answer.system_fingerprint, /^fp_/);
});

test("openai: chat tools are run and answered", async () => {
  const called = [];
  const add = {
    name: "add",
    description: "Add two integers",
    parameters,
    parse: JSON.parse,
    function: ({ a, b }) => {
      called.push({ a, b });
      return `It is ${a + b}`;
    },
  };
  const runner = openai.chat.completions.runTools({ model, messages: question, tools: [{ type: "function", function: add }] });
  assert.match(await runner.finalContent(), /It is 5/);
  assert.deepEqual(called, [sum]);
});

test("openai: chat tool calls stream under one id", async () => {
  const tools = [{ type: "function", function: { name: "add", parameters } }];
  const stream = await openai.chat.completions.create({ model, messages: question, tools, tool_choice: "required", stream: true });
  const ids = [];
  let text = "";
  let reason = null;
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    for (const call of choice.delta.tool_calls ?? []) {
      assert.equal(call.index, 0);
      if (call.id) ids.push(call.id);
      text += call.function.arguments;
    }
    reason = choice.finish_reason ?? reason;
  }
  assert.equal(ids.length, 1);
  assert.deepEqual(JSON.parse(text), sum);
  assert.equal(reason, "tool_calls");
});

test("openai: chat holds an answer to its schema", async () => {
  const answer = await openai.chat.completions.parse({
    model,
    messages: [{ role: "user", content: "3 and 4" }],
    response_format: { type: "json_schema", json_schema: { name: "pair", schema: parameters, strict: true } },
  });
  const pair = JSON.parse(answer.choices[0].message.content);
  assert.deepEqual(Object.keys(pair).sort(), ["a", "b"]);
});

test("openai: a response streams with increasing numbers and goes on", async () => {
  const stream = openai.responses.stream({ model, input: "THINK: hm SAY: one two" });
  const events = [];
  for await (const event of stream) events.push(event);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  assert.equal(events.at(-1).type, "response.completed");
  const first = await stream.finalResponse();
  assert.equal(first.output_text, "one two");
  assert.deepEqual(first.output.map((item) => item.type), ["reasoning", "message"]);
  const second = await openai.responses.create({ model, input: "SAY: three", previous_response_id: first.id });
  assert.equal(second.output_text, "three");
  assert.equal((await openai.responses.inputItems.list(first.id)).data.length, 1);
});

test("openai: response tools go round", async () => {
  const tools = [{ type: "function", name: "add", parameters, strict: true }];
  const asked = await openai.responses.create({ model, input: question, tools, tool_choice: "required" });
  const [call] = asked.output;
  assert.equal(call.type, "function_call");
  assert.deepEqual(JSON.parse(call.arguments), sum);
  const output = { type: "function_call_output", call_id: call.call_id, output: "It is 5" };
  const answer = await openai.responses.create({ model, input: [output], tools, previous_response_id: asked.id });
  assert.match(answer.output_text, /It is 5/);
});

test("openai: errors are told by their class", async () => {
  const chat = (fields) => openai.chat.completions.create({ model, messages: question, ...fields });
  await assert.rejects(chat({ model: "nothing" }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  await assert.rejects(chat({ temperature: 9 }), (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  await assert.rejects(
    new OpenAI({ apiKey: "sk-tf-wrong", baseURL, maxRetries: 0 }).models.list(),
    (error) => error instanceof OpenAI.AuthenticationError && error.requestID.length > 0,
  );
  const types = [];
  // What fails in one moment with its first word is refused by a status; then the engine is given more time.
  for (const pace of [20, 20, 2, 0.4]) {
    try {
      const failing = await openai.responses.create({ model, input: `PACE:${pace} FAIL:500@2`, stream: true });
      for await (const event of failing) types.push(event.type);
      break;
    } catch (error) {
      assert.ok(error instanceof OpenAI.InternalServerError);
    }
  }
  assert.equal(types.at(-1), "response.failed");
});

test("anthropic: a message stream is assembled", async () => {
  const stream = anthropic.messages.stream({
    model,
    max_tokens: 2048,
    thinking: { type: "enabled", budget_tokens: 1024 },
    messages: [{ role: "user", content: "THINK: hm SAY: one two" }],
  });
  const types = [];
  stream.on("streamEvent", (event) => types.push(event.type));
  const message = await stream.finalMessage();
  assert.deepEqual(message.content.map((block) => block.type), ["thinking", "text"]);
  assert.ok(message.content[0].signature.length > 10);
  assert.equal(message.content[1].text, "one two");
  assert.equal(message.stop_reason, "end_turn");
  assert.equal(types[0], "message_start");
  assert.equal(types.at(-1), "message_stop");
});

test("anthropic: tools go round", async () => {
  const tools = [{ name: "add", input_schema: parameters }];
  const asked = await anthropic.messages.stream({ model, max_tokens: 64, messages: question, tools, tool_choice: { type: "any" } }).finalMessage();
  const call = asked.content.at(-1);
  assert.deepEqual(call.input, sum);
  assert.equal(asked.stop_reason, "tool_use");
  const result = { type: "tool_result", tool_use_id: call.id, content: "It is 5" };
  const messages = [...question, { role: "assistant", content: asked.content }, { role: "user", content: [result] }];
  const answer = await anthropic.messages.create({ model, max_tokens: 64, messages, tools });
  assert.match(answer.content[0].text, /It is 5/);
});

test("anthropic: an answer is held to its schema", async () => {
  const answer = await anthropic.messages.create({
    model,
    max_tokens: 64,
    messages: [{ role: "user", content: "3 and 4" }],
    output_config: { format: { type: "json_schema", schema: parameters } },
  });
  assert.deepEqual(Object.keys(JSON.parse(answer.content[0].text)).sort(), ["a", "b"]);
});

test("anthropic: counts, models and errors", async () => {
  const messages = [{ role: "user", content: "hi" }];
  const counted = await anthropic.messages.countTokens({ model, messages });
  const answer = await anthropic.messages.create({ model, max_tokens: 9, messages });
  assert.equal(counted.input_tokens, answer.usage.input_tokens);
  const ids = [];
  for await (const each of anthropic.models.list()) ids.push(each.id);
  assert.ok(ids.includes(model));
  await assert.rejects(
    anthropic.messages.create({ model: "nothing", max_tokens: 9, messages }),
    (error) => error instanceof Anthropic.NotFoundError && error.error.error.type === "not_found_error" && error.requestID.length > 0,
  );
});
