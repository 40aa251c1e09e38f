// The playground: sends the conversation to the gateway, writes the streamed answer as it comes, shares and exports it.
(() => {
  "use strict";
  const form = document.getElementById("playground");
  if (!form) return;
  const setup = JSON.parse(document.getElementById("playground-setup").textContent);
  const element = (id) => document.getElementById(id);
  const [log, prompt, send, stop, model, system, maxTokens, tools, answer, schema] = [
    "log", "prompt", "send", "stop", "model", "system", "max_tokens", "tools", "answer", "schema",
  ].map(element);
  const [seed, stops] = ["seed", "stop_sequences"].map(element);
  const EXAMPLES = {
    tools: [
      {
        name: "get_weather",
        description: "The weather in a city now.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    ],
    schema: {
      type: "object",
      properties: { city: { type: "string" }, country: { type: "string" } },
      required: ["city", "country"],
      additionalProperties: false,
    },
  };
  // In the form of Chat Completions; the system prompt stands apart.
  let messages = [];
  let total = { input: 0, cached: 0, output: 0, costNano: 0n };
  let running = null;

  const cookie = (name) => document.cookie.match(new RegExp(`(?:^|; )${name}=([^;]*)`))?.[1];
  const post = (address, body, signal) =>
    fetch(address, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": cookie("csrftoken") ?? "" },
      body: JSON.stringify(body),
      signal,
    });

  // Settings ------------------------------------------------------------------------------------------------------
  const RANGES = ["temperature", "top_p"];
  const showSettings = () => {
    for (const id of RANGES) element(`${id}-value`).textContent = element(id).value;
    maxTokens.max = setup.max_output[model.value];
    maxTokens.placeholder = setup.default_output[model.value];
    element("schema-field").hidden = answer.value !== "json_schema";
  };
  form.addEventListener("input", showSettings);
  form.addEventListener("change", showSettings);
  for (const button of form.querySelectorAll("[data-example-for]"))
    button.addEventListener("click", () => {
      element(button.dataset.exampleFor).value = JSON.stringify(EXAMPLES[button.dataset.exampleFor], null, 2);
      readJson(element(button.dataset.exampleFor), button.dataset.exampleFor);
    });

  class FieldError extends Error {}
  // `link` is [label, address] of the page where something can be done, or undefined.
  class RefusedError extends Error {
    constructor(message, link) {
      super(message);
      this.link = link;
    }
  }

  // The field's JSON, or a FieldError that stands at the field.
  const readJson = (field, kind) => {
    const note = element(`${field.id}-error`);
    note.hidden = true;
    field.removeAttribute("aria-invalid");
    const refuse = (text) => {
      note.textContent = text;
      note.hidden = false;
      field.setAttribute("aria-invalid", "true");
      throw new FieldError(text);
    };
    const text = field.value.trim();
    if (!text) return kind === "tools" ? [] : refuse(gettext("Give the schema, or choose text as the answer."));
    let value;
    try {
      value = JSON.parse(text);
    } catch (error) {
      return refuse(`${gettext("This is not JSON:")} ${error.message}`);
    }
    if (kind !== "tools") return value;
    if (!Array.isArray(value)) return refuse(gettext("Give a list: [ … ]."));
    // The wrapped form of Chat Completions is taken too.
    const functions = value.map((tool) => tool?.function ?? tool);
    return functions.every((tool) => tool?.name) ? functions : refuse(gettext("Each function needs a name."));
  };
  for (const field of [tools, schema])
    field.addEventListener("blur", () => {
      try {
        if (field.value.trim()) readJson(field, field.id);
      } catch (error) {
        if (!(error instanceof FieldError)) throw error;
      }
    });

  const readCall = (turns) => ({
    model: model.value,
    system: system.value.trim(),
    messages: turns,
    temperature: Number(element("temperature").value),
    top_p: Number(element("top_p").value),
    max_tokens: maxTokens.value ? Number(maxTokens.value) : null,
    seed: seed.value ? Number(seed.value) : null,
    stop: stops.value.split("\n").filter(Boolean),
    tools: readJson(tools, "tools"),
    answer: answer.value,
    schema: answer.value === "json_schema" ? readJson(schema, "schema") : null,
  });

  // Turns ---------------------------------------------------------------------------------------------------------
  const make = (tag, className, text = "") => {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  };
  const sprite = document.querySelector(".icon use").getAttribute("href").replace(/#.*/, "");
  const icon = (name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS("http://www.w3.org/2000/svg", "use"));
    svg.firstChild.setAttribute("href", `${sprite}#${name}`);
    return svg;
  };
  const showEmpty = () => log.replaceChildren(element("log-empty").content.cloneNode(true));
  const addTurn = (role, text) => {
    log.querySelector(".empty")?.remove();
    const turn = make("article", `turn turn-${role}`);
    const name = { user: gettext("You"), tool: gettext("Result") }[role] ?? model.value;
    turn.append(make("div", "turn-role", name), make("div", "turn-text", text));
    log.append(turn);
    log.scrollTop = log.scrollHeight;
    return turn;
  };
  const addThought = (turn) => {
    const box = make("details", "turn-thought");
    box.append(make("summary", "", gettext("Thoughts")), make("div", "turn-text"));
    turn.querySelector(".turn-text").before(box);
    return box.lastChild;
  };
  const addToolCall = (turn, made) => {
    const box = make("div", "tool-call");
    box.append(make("code", "font-semibold", made.function.name), make("pre", "", made.function.arguments));
    turn.append(box);
    return box;
  };
  // The reader plays the tool: each call gets a field for its result, and one button sends them all.
  const askForResults = (turn, calls) => {
    const fields = calls.map((made, at) => {
      const label = make("label", "label", `${gettext("Result of")} ${made.function.name}`);
      const field = make("textarea", "textarea mono");
      field.rows = 2;
      field.id = label.htmlFor = `result-${messages.length}-${at}`;
      turn.querySelectorAll(".tool-call")[at].append(label, field);
      return field;
    });
    const button = make("button", "button button-small", gettext("Send the results"));
    button.type = "button";
    button.addEventListener("click", () => {
      if (running) return;
      const results = calls.map((made, at) => ({ role: "tool", tool_call_id: made.id, content: fields[at].value }));
      for (const field of fields) field.readOnly = true;
      button.remove();
      go(results);
    });
    turn.append(button);
  };

  // Nano-units as whole numbers: what is shown equals what is billed.
  const halfEven = (numerator, denominator) => {
    const quotient = numerator / denominator;
    const twice = 2n * (numerator % denominator);
    return twice > denominator || (twice === denominator && quotient % 2n === 1n) ? quotient + 1n : quotient;
  };
  const costNano = (usage) => {
    const price = setup.prices[model.value];
    if (!price) return 0n;
    const cached = BigInt(usage.prompt_tokens_details?.cached_tokens ?? 0);
    const part = (tokens, nano) => halfEven(tokens * BigInt(nano), 1000000n);
    return (
      part(BigInt(usage.prompt_tokens) - cached, price.input) +
      part(cached, price.cached) +
      part(BigInt(usage.completion_tokens), price.output)
    );
  };
  const money = (nano) => {
    const digits = nano.toString().padStart(10, "0");
    const fraction = digits.slice(-9).replace(/0+$/, "").padEnd(2, "0");
    const symbol = { USD: "$", EUR: "€", GBP: "£" }[setup.prices[model.value]?.currency] ?? "";
    return `${symbol}${digits.slice(0, -9)}.${fraction}`;
  };
  const showTotals = () => {
    const number = new Intl.NumberFormat(document.documentElement.lang);
    element("total-in").textContent = number.format(total.input);
    element("total-cached").textContent = number.format(total.cached);
    element("total-out").textContent = number.format(total.output);
    element("total-cost").textContent = total.input ? money(total.costNano) : "–";
  };

  // Yields the data of each server-sent event.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  }

  // Fills `said` as the answer comes, so that what came before a stop is kept.
  const readAnswer = async (response, turn, said) => {
    const text = turn.lastChild;
    let thought = null;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      const delta = chunk.choices?.[0]?.delta ?? {};
      if (delta.content || delta.reasoning_content || delta.tool_calls) said.firstToken ??= performance.now();
      if (delta.reasoning_content) (thought ??= addThought(turn)).append(delta.reasoning_content);
      if (delta.content) text.append(delta.content);
      said.content += delta.content ?? "";
      for (const part of delta.tool_calls ?? []) {
        const made = (said.calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
        if (part.id) made.id = part.id;
        made.function.name += part.function?.name ?? "";
        made.function.arguments += part.function?.arguments ?? "";
      }
      if (isAtEnd) log.scrollTop = log.scrollHeight;
      said.usage = chunk.usage ?? said.usage;
    }
  };

  const showFacts = (turn, said, began) => {
    const ended = performance.now();
    const parts = [`${((ended - began) / 1000).toFixed(1)} s`];
    if (said.firstToken) parts.push(interpolate(gettext("first token after %s ms"), [Math.round(said.firstToken - began)]));
    if (said.usage) {
      const { prompt_tokens: input, completion_tokens: output, prompt_tokens_details: details } = said.usage;
      const cost = costNano(said.usage);
      total.input += input;
      total.cached += details?.cached_tokens ?? 0;
      total.output += output;
      total.costNano += cost;
      parts.unshift(interpolate(gettext("%s tokens in, %s out"), [input, output]), money(cost));
      showTotals();
      const writing = (ended - said.firstToken) / 1000;
      if (said.firstToken && output > 1 && writing > 0)
        parts.push(interpolate(gettext("%s tokens per second"), [Math.round((output - 1) / writing)]));
    }
    const facts = make("div", "turn-facts");
    facts.append(make("span", "", parts.join(" · ")));
    if (said.content) {
      const copy = make("button", "icon-button icon-button-small");
      copy.type = "button";
      copy.dataset.copy = said.content;
      copy.setAttribute("aria-label", gettext("Copy the answer"));
      copy.append(icon("copy"));
      facts.append(copy);
    }
    turn.append(facts);
    log.scrollTop = log.scrollHeight;
  };

  // Where a refusal of this answer can be done away with.
  const wayOut = (response, code) => {
    const limits = response.headers.get("x-limit-page");
    if (limits) return [gettext("See the limits"), limits];
    return code === "insufficient_quota" ? [gettext("Add credit"), setup.credit_url] : undefined;
  };
  // Under a failed turn: that page, and the same question again in place of the failed one.
  const offerAgain = (failed, turns, link) => {
    const row = make("div", "row");
    if (link) {
      const leads = make("a", "button button-small", link[0]);
      leads.href = link[1];
      row.append(leads);
    }
    const again = make("button", "button button-small", gettext("Try again"));
    again.type = "button";
    again.addEventListener("click", () => {
      if (running) return;
      for (const turn of failed) turn.remove();
      go(turns);
    });
    row.append(again);
    failed.at(-1).append(row);
  };

  // Adds `turns` to the conversation and asks the model to go on.
  const go = async (turns) => {
    let call;
    try {
      call = readCall([...messages, ...turns]);
    } catch (error) {
      if (error instanceof FieldError) return false;
      throw error;
    }
    const asked = turns.map((turn) => addTurn(turn.role, turn.content));
    const turn = addTurn("assistant", "");
    turn.classList.add("is-streaming");
    running = new AbortController();
    send.hidden = true;
    stop.hidden = false;
    const began = performance.now();
    const said = { content: "", calls: [], usage: null, firstToken: null };
    const keep = () => {
      const calls = said.calls.filter(Boolean);
      messages = [...call.messages, { role: "assistant", content: said.content, ...(calls.length ? { tool_calls: calls } : {}) }];
      for (const made of calls) addToolCall(turn, made);
      return calls;
    };
    let calls = [];
    let problem;
    try {
      const project = { organization: form.dataset.organization, project: element("project").value };
      const options = { project, stream: true, stream_options: { include_usage: true } };
      const response = await post(form.dataset.address, { ...playgroundCode.chatBody(call), ...options }, running.signal);
      if (!response.ok) {
        const body = await response.json().catch(() => null);
        const message = body?.error?.message ?? interpolate(gettext("The gateway answered %s."), [response.status]);
        throw new RefusedError(message, wayOut(response, body?.error?.code));
      }
      await readAnswer(response, turn, said);
      calls = keep();
    } catch (error) {
      if (error.name === "AbortError") {
        // A call that was cut has no whole arguments.
        said.calls = [];
        keep();
      } else {
        // A refused question is not part of the conversation: the next call must not repeat it.
        problem = error;
        turn.classList.add("turn-error");
        turn.lastChild.append(said.content ? `\n\n${error.message}` : error.message);
      }
    } finally {
      turn.classList.remove("is-streaming");
      showFacts(turn, said, began);
      if (problem) offerAgain([...asked, turn], turns, problem.link);
      if (calls.length) askForResults(turn, calls);
      running = null;
      send.hidden = false;
      stop.hidden = true;
      prompt.focus();
    }
    return true;
  };

  const ask = async (question) => {
    if (!question || running) return;
    const before = prompt.value;
    prompt.value = "";
    if ((await go([{ role: "user", content: question }])) === false) prompt.value = before;
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(prompt.value.trim());
  });
  prompt?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop?.addEventListener("click", () => running?.abort());
  log.addEventListener("click", (event) => {
    const example = event.target.closest("[data-example]");
    if (example && prompt) ask(example.textContent);
  });
  element("clear").addEventListener("click", () => {
    running?.abort();
    messages = [];
    total = { input: 0, cached: 0, output: 0, costNano: 0n };
    showTotals();
    showEmpty();
    prompt?.focus();
  });

  // Code ----------------------------------------------------------------------------------------------------------
  const dialog = element("code-dialog");
  const chosen = { protocol: "chat", language: "curl" };
  // What the call has and the protocol does not.
  const notes = (call, protocol) => [
    ...(protocol === "messages" && call.answer === "json_object"
      ? [gettext("Messages knows no answer of any JSON object; give a schema.")]
      : []),
    ...(protocol !== "chat" && call.seed !== null ? [gettext("This protocol knows no seed.")] : []),
    ...(protocol === "responses" && call.stop.length ? [gettext("This protocol knows no texts to stop at.")] : []),
  ];
  const showCode = () => {
    // Without a conversation, what stands in the field; the answer of the model is what the program asks for.
    const asked = messages.at(-1)?.role === "assistant" ? messages.slice(0, -1) : messages;
    const question = { role: "user", content: prompt?.value.trim() || gettext("What is the capital of France?") };
    const call = readCall(asked.length ? asked : [question]);
    element("code").textContent = playgroundCode.write(call, chosen.protocol, chosen.language, setup);
    const note = element("code-note");
    const missing = notes(call, chosen.protocol);
    note.hidden = !missing.length;
    note.textContent = missing.join(" ");
    for (const [kind, value] of Object.entries(chosen))
      for (const button of dialog.querySelectorAll(`[data-${kind}]`))
        button.setAttribute("aria-pressed", String(button.dataset[kind] === value));
  };
  element("show-code").addEventListener("click", () => {
    try {
      showCode();
    } catch (error) {
      if (error instanceof FieldError) return;
      throw error;
    }
    dialog.showModal();
  });
  dialog.addEventListener("click", (event) => {
    const button = event.target.closest("[data-protocol], [data-language]");
    if (!button) return;
    Object.assign(chosen, button.dataset.protocol ? { protocol: button.dataset.protocol } : { language: button.dataset.language });
    showCode();
  });

  // Sharing -------------------------------------------------------------------------------------------------------
  element("share")?.addEventListener("click", async () => {
    const body = {
      model: model.value,
      system: system.value,
      temperature: Number(element("temperature").value),
      top_p: Number(element("top_p").value),
      max_tokens: maxTokens.value ? Number(maxTokens.value) : null,
      seed: seed.value ? Number(seed.value) : null,
      stop: stops.value,
      tools: tools.value,
      answer: answer.value,
      schema: schema.value,
      turns: messages,
    };
    const response = await post(form.dataset.share, body).catch(() => null);
    const made = await response?.json().catch(() => null);
    if (!response?.ok) {
      const turn = addTurn("assistant", made?.error ?? gettext("It could not be shared; try again."));
      turn.classList.add("turn-error");
      return;
    }
    element("share-url").textContent = element("share-open").href = made.url;
    element("share-dialog").showModal();
  });

  const restore = (kept) => {
    if ([...model.options].some((option) => option.value === kept.model)) model.value = kept.model;
    system.value = kept.system;
    maxTokens.value = kept.max_tokens ?? "";
    seed.value = kept.seed ?? "";
    stops.value = kept.stop ?? "";
    element("more").open = Boolean(seed.value || stops.value);
    for (const name of [...RANGES, "tools", "answer", "schema"]) element(name).value = kept[name];
    messages = kept.turns;
    for (const message of messages) {
      const turn = addTurn(message.role, message.content ?? "");
      for (const made of message.tool_calls ?? []) addToolCall(turn, made);
    }
    log.scrollTop = 0;
  };
  if (setup.conversation) restore(setup.conversation);
  if (!messages.length) showEmpty();
  showSettings();
})();
