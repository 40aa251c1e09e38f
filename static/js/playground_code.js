// Writes the playground's call as a program: curl, Python or Node, over each of the three protocols.
// `call` is { model, system, messages, temperature, top_p, max_tokens, seed, stop, tools, answer, schema } with tools and schema parsed.
const playgroundCode = (() => {
  "use strict";
  const FALLBACK_TOKENS = 1024;

  const sampling = (call) => ({
    ...(call.temperature === 1 ? {} : { temperature: call.temperature }),
    ...(call.top_p === 1 ? {} : { top_p: call.top_p }),
  });

  const chat = (call) => ({
    model: call.model,
    messages: [...(call.system ? [{ role: "system", content: call.system }] : []), ...call.messages],
    ...sampling(call),
    ...(call.max_tokens ? { max_tokens: call.max_tokens } : {}),
    ...(call.seed === null ? {} : { seed: call.seed }),
    ...(call.stop.length ? { stop: call.stop } : {}),
    ...(call.tools.length ? { tools: call.tools.map((tool) => ({ type: "function", function: tool })) } : {}),
    ...(call.answer === "json_object" ? { response_format: { type: "json_object" } } : {}),
    ...(call.answer === "json_schema"
      ? { response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: call.schema } } }
      : {}),
  });

  const responses = (call) => ({
    model: call.model,
    ...(call.system ? { instructions: call.system } : {}),
    input: call.messages.flatMap((message) => {
      if (message.role === "tool")
        return [{ type: "function_call_output", call_id: message.tool_call_id, output: message.content }];
      const calls = (message.tool_calls ?? []).map((made) => ({
        type: "function_call",
        call_id: made.id,
        name: made.function.name,
        arguments: made.function.arguments,
      }));
      return [...(message.content ? [{ role: message.role, content: message.content }] : []), ...calls];
    }),
    ...sampling(call),
    ...(call.max_tokens ? { max_output_tokens: call.max_tokens } : {}),
    ...(call.tools.length ? { tools: call.tools.map((tool) => ({ type: "function", ...tool })) } : {}),
    ...(call.answer === "json_object" ? { text: { format: { type: "json_object" } } } : {}),
    ...(call.answer === "json_schema"
      ? { text: { format: { type: "json_schema", name: "answer", strict: true, schema: call.schema } } }
      : {}),
  });

  const messages = (call) => ({
    model: call.model,
    max_tokens: call.max_tokens || FALLBACK_TOKENS,
    ...(call.system ? { system: call.system } : {}),
    messages: call.messages.map((message) => {
      if (message.role === "tool")
        return {
          role: "user",
          content: [{ type: "tool_result", tool_use_id: message.tool_call_id, content: message.content }],
        };
      if (!message.tool_calls) return message;
      const uses = message.tool_calls.map((made) => ({
        type: "tool_use",
        id: made.id,
        name: made.function.name,
        input: JSON.parse(made.function.arguments || "{}"),
      }));
      return { role: "assistant", content: [...(message.content ? [{ type: "text", text: message.content }] : []), ...uses] };
    }),
    // This protocol's temperature ends at 1.
    ...(call.temperature === 1 ? {} : { temperature: Math.min(1, call.temperature) }),
    ...(call.top_p === 1 ? {} : { top_p: call.top_p }),
    ...(call.stop.length ? { stop_sequences: call.stop } : {}),
    ...(call.tools.length
      ? { tools: call.tools.map(({ parameters, strict, ...tool }) => ({ ...tool, input_schema: parameters ?? { type: "object" } })) }
      : {}),
    ...(call.answer === "json_schema" ? { output_config: { format: { type: "json_schema", schema: call.schema } } } : {}),
  });

  const BODIES = { chat, responses, messages };
  const PATHS = { chat: "/chat/completions", responses: "/responses", messages: "/messages" };

  // Values as source text -------------------------------------------------------------------------------------------
  const isPlain = (name) => /^[A-Za-z_$][\w$]*$/.test(name);
  const print = (value, words, depth = 1) => {
    const gap = "    ".repeat(depth);
    const end = "    ".repeat(depth - 1);
    if (value === null || value === undefined) return words.none;
    if (typeof value === "boolean") return value ? words.yes : words.no;
    if (typeof value !== "object") return JSON.stringify(value);
    const inner = Array.isArray(value)
      ? value.map((each) => print(each, words, depth + 1))
      : Object.entries(value).map(([name, each]) => `${words.key(name)}: ${print(each, words, depth + 1)}`);
    const [open, close] = Array.isArray(value) ? "[]" : "{}";
    const line = `${open}${inner.join(", ")}${close}`;
    if (line.length < 72 && !line.includes("\n")) return line;
    return `${open}\n${inner.map((each) => `${gap}${each},\n`).join("")}${end}${close}`;
  };
  const PYTHON = { none: "None", yes: "True", no: "False", key: (name) => JSON.stringify(name) };
  const NODE = { none: "null", yes: "true", no: "false", key: (name) => (isPlain(name) ? name : JSON.stringify(name)) };

  const keywords = (body) =>
    Object.entries(body)
      .map(([name, value]) => `    ${name}=${print(value, PYTHON, 2)},\n`)
      .join("");
  const properties = (body) =>
    Object.entries(body)
      .map(([name, value]) => `    ${name}: ${print(value, NODE, 2)},\n`)
      .join("");

  const curl = (protocol, body, setup) => {
    const key = protocol === "messages" ? "x-api-key: $API_KEY" : "Authorization: Bearer $API_KEY";
    // In a single-quoted argument of the shell, a quote ends it, stands escaped, and begins it again.
    const data = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("'", "'\\''");
    return `curl -N ${setup.api_base_url}${PATHS[protocol]} \\\n  -H "${key}" \\\n  -H "Content-Type: application/json" \\\n  -d '${data}'`;
  };

  const python = (protocol, body, setup) => {
    const [module, name, base] =
      protocol === "messages" ? ["anthropic", "Anthropic", setup.root_url] : ["openai", "OpenAI", setup.api_base_url];
    const head = `import os\nfrom ${module} import ${name}\n\nclient = ${name}(base_url=${JSON.stringify(base)}, api_key=os.environ["API_KEY"])\n`;
    // The Anthropic client has no names for the sampling settings; the protocol does.
    const { temperature, top_p, ...named } = body;
    const sampled = Object.fromEntries(Object.entries({ temperature, top_p }).filter(([, value]) => value !== undefined));
    const extra = Object.keys(sampled).length ? { extra_body: sampled } : {};
    if (protocol === "messages")
      return `${head}\nwith client.messages.stream(\n${keywords({ ...named, ...extra })}) as stream:\n    for text in stream.text_stream:\n        print(text, end="", flush=True)\n    print(stream.get_final_message().usage)`;
    const [method, reader] =
      protocol === "chat"
        ? ["chat.completions.create", `for chunk in stream:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or "", end="", flush=True)`]
        : ["responses.create", `for event in stream:\n    if event.type == "response.output_text.delta":\n        print(event.delta, end="", flush=True)`];
    return `${head}\nstream = client.${method}(\n${keywords({ ...body, stream: true })})\n${reader}`;
  };

  const node = (protocol, body, setup) => {
    const [module, name, base] =
      protocol === "messages"
        ? ["@anthropic-ai/sdk", "Anthropic", setup.root_url]
        : ["openai", "OpenAI", setup.api_base_url];
    const head = `import ${name} from "${module}";\n\nconst client = new ${name}({ baseURL: ${JSON.stringify(base)}, apiKey: process.env.API_KEY });\n`;
    if (protocol === "messages")
      return `${head}\nconst stream = client.messages.stream({\n${properties(body)}});\nstream.on("text", (text) => process.stdout.write(text));\nconsole.log((await stream.finalMessage()).usage);`;
    const [method, reader] =
      protocol === "chat"
        ? ["chat.completions.create", `for await (const chunk of stream) {\n    process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}`]
        : ["responses.create", `for await (const event of stream) {\n    if (event.type === "response.output_text.delta") process.stdout.write(event.delta);\n}`];
    return `${head}\nconst stream = await client.${method}({\n${properties({ ...body, stream: true })}});\n${reader}`;
  };

  const LANGUAGES = { curl, python, node };
  return {
    chatBody: chat,
    write: (call, protocol, language, setup) => LANGUAGES[language](protocol, BODIES[protocol](call), setup),
  };
})();
