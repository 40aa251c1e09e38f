// The playground: sends the conversation to the gateway and writes the streamed answer as it comes.
(() => {
  "use strict";
  const form = document.getElementById("playground");
  if (!form) return;
  const setup = JSON.parse(document.getElementById("playground-setup").textContent);
  const element = (id) => document.getElementById(id);
  const [log, prompt, send, stop, model, system, maxTokens] = [
    "log", "prompt", "send", "stop", "model", "system", "max_tokens",
  ].map(element);
  const messages = [];
  const total = { input: 0, output: 0, costNano: 0n };
  let running = null;

  const cookie = (name) => document.cookie.match(new RegExp(`(?:^|; )${name}=([^;]*)`))?.[1];

  for (const id of ["temperature", "top_p"]) {
    element(id).addEventListener("input", (event) => (element(`${id}-value`).textContent = event.target.value));
  }
  const showLimit = () => {
    maxTokens.max = setup.max_output[model.value];
    maxTokens.placeholder = setup.default_output[model.value];
  };
  model.addEventListener("change", showLimit);
  showLimit();

  const addTurn = (role, text) => {
    element("log-empty")?.remove();
    const turn = document.createElement("article");
    turn.className = `turn turn-${role}`;
    const head = document.createElement("div");
    head.className = "turn-role";
    head.textContent = role === "user" ? "You" : model.value;
    const body = document.createElement("div");
    body.className = "turn-text";
    body.textContent = text;
    turn.append(head, body);
    log.append(turn);
    log.scrollTop = log.scrollHeight;
    return turn;
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

  const readAnswer = async (response, turn) => {
    const text = turn.querySelector(".turn-text");
    let usage = null;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      text.append(chunk.choices?.[0]?.delta?.content ?? "");
      if (isAtEnd) log.scrollTop = log.scrollHeight;
      usage = chunk.usage ?? usage;
    }
    return usage;
  };

  const showFacts = (turn, usage, began, firstToken) => {
    const facts = document.createElement("div");
    facts.className = "turn-facts";
    const parts = [`${((performance.now() - began) / 1000).toFixed(1)} s`];
    if (firstToken) parts.push(`first token after ${Math.round(firstToken - began)} ms`);
    if (usage) {
      const cost = costNano(usage);
      total.input += usage.prompt_tokens;
      total.output += usage.completion_tokens;
      total.costNano += cost;
      parts.unshift(`${usage.prompt_tokens} tokens in, ${usage.completion_tokens} out`, money(cost));
      element("total-in").textContent = total.input.toLocaleString("en");
      element("total-out").textContent = total.output.toLocaleString("en");
      element("total-cost").textContent = money(total.costNano);
    }
    facts.textContent = parts.join(" · ");
    turn.append(facts);
    log.scrollTop = log.scrollHeight;
  };

  const call = async (question) => {
    messages.push({ role: "user", content: question });
    addTurn("user", question);
    const turn = addTurn("assistant", "");
    turn.classList.add("is-streaming");
    const text = turn.querySelector(".turn-text");
    running = new AbortController();
    send.hidden = true;
    stop.hidden = false;
    const began = performance.now();
    let firstToken = null;
    new MutationObserver((_, observer) => {
      firstToken ??= performance.now();
      observer.disconnect();
    }).observe(text, { childList: true });
    let usage = null;
    try {
      const response = await fetch(form.dataset.address, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRFToken": cookie("csrftoken") ?? "" },
        body: JSON.stringify({
          project: { organization: form.dataset.organization, project: element("project").value },
          model: model.value,
          stream: true,
          stream_options: { include_usage: true },
          messages: [...(system.value.trim() ? [{ role: "system", content: system.value }] : []), ...messages],
          temperature: Number(element("temperature").value),
          top_p: Number(element("top_p").value),
          ...(maxTokens.value ? { max_tokens: Number(maxTokens.value) } : {}),
        }),
        signal: running.signal,
      });
      if (!response.ok) {
        const body = await response.json().catch(() => null);
        throw new Error(body?.error?.message ?? `The gateway answered ${response.status}.`);
      }
      usage = await readAnswer(response, turn);
      messages.push({ role: "assistant", content: text.textContent });
    } catch (error) {
      if (error.name === "AbortError") {
        messages.push({ role: "assistant", content: text.textContent });
      } else {
        turn.classList.add("turn-error");
        text.append(text.textContent ? `\n\n${error.message}` : error.message);
        // A refused question is not part of the conversation: the next call must not repeat it.
        messages.pop();
      }
    } finally {
      turn.classList.remove("is-streaming");
      showFacts(turn, usage, began, firstToken);
      running = null;
      send.hidden = false;
      stop.hidden = true;
      prompt.focus();
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const question = prompt.value.trim();
    if (!question || running) return;
    prompt.value = "";
    call(question);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => running?.abort());
  log.addEventListener("click", (event) => {
    const example = event.target.closest("[data-example]");
    if (example && !running) call(example.textContent);
  });
  element("clear").addEventListener("click", () => {
    running?.abort();
    messages.length = 0;
    log.replaceChildren();
    prompt.focus();
  });
})();
