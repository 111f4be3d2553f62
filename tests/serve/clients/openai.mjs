// openai.mjs URL - a scripted session of the openai package (Node), unmodified.
// Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: process.argv[3] || "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "system", content: "Answer briefly." }, { role: "user", content: "Tom has 3 apples and buys 4. How many?" }];
const base = { model, messages, temperature: 0, max_tokens: 48 };

assert.equal((await client.models.retrieve(model)).id, model);

// whole
const whole = await client.chat.completions.create(base);
const text = whole.choices[0].message.content;
assert.equal(whole.object, "chat.completion");
assert.equal(whole.choices[0].message.role, "assistant");
assert.ok(["stop", "length"].includes(whole.choices[0].finish_reason));
assert.ok(whole.usage.completion_tokens > 0 && whole.usage.prompt_tokens > 10);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
assert.ok(whole._request_id);
assert.ok(whole.metrics.speculative_decoding.num_spec_steps > 0);
assert.ok(whole.timings.predicted_n === whole.usage.completion_tokens);

// streamed, with usage
let streamed = "", usage = null, finish = null, roles = 0, after = 0;
for await (const chunk of await client.chat.completions.create({ ...base, stream: true, stream_options: { include_usage: true } })) {
  if (!chunk.choices.length) { usage = chunk.usage; continue; }
  if (finish) after++;
  roles += chunk.choices[0].delta.role === "assistant";
  streamed += chunk.choices[0].delta.content ?? "";
  finish = chunk.choices[0].finish_reason ?? finish;
}
assert.equal(streamed, text);
assert.equal(roles, 1);
assert.equal(after, 0);
assert.equal(finish, whole.choices[0].finish_reason);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

// the stream helper
const helper = client.chat.completions.stream(base);
let deltas = "";
helper.on("content", (d) => { deltas += d; });
const final = await helper.finalChatCompletion();
assert.equal(deltas, text);
assert.equal(final.choices[0].message.content, text);

// choices, seeds, log probabilities
const sampled = { ...base, temperature: 1, seed: 7, n: 2, max_tokens: 16 };
const a = await client.chat.completions.create(sampled), b = await client.chat.completions.create(sampled);
assert.equal(a.choices.length, 2);
assert.deepEqual(a.choices.map((c) => c.message.content), b.choices.map((c) => c.message.content));
const lp = await client.chat.completions.create({ ...base, max_tokens: 8, logprobs: true, top_logprobs: 3 });
assert.equal(lp.choices[0].logprobs.content.length, lp.usage.completion_tokens);
for (const t of lp.choices[0].logprobs.content) {
  assert.equal(t.top_logprobs.length, 3);
  assert.ok(t.logprob <= 0 && t.logprob >= t.top_logprobs[1].logprob);
  assert.equal(t.token, t.top_logprobs[0].token); // greedy
}
assert.equal(Buffer.from(lp.choices[0].logprobs.content.flatMap((t) => t.bytes)).toString().replace(/<\|im_end\|>$/, ""),
  lp.choices[0].message.content);

// completions: text, ids, lists, echo, legacy log probabilities
const code = await client.completions.create({ model, prompt: "def add(a, b):", max_tokens: 16, temperature: 0 });
const pair = await client.completions.create({ model, prompt: ["def add(a, b):", "for i in"], max_tokens: 16, temperature: 0 });
assert.equal(pair.choices[0].text, code.choices[0].text);
const echo = await client.completions.create({ model, prompt: "def add(a, b):", max_tokens: 4, temperature: 0, echo: true, logprobs: 2 });
const legacy = echo.choices[0].logprobs;
assert.ok(echo.choices[0].text.startsWith("def add(a, b):"));
assert.equal(legacy.token_logprobs[0], null);
assert.equal(legacy.tokens.length, echo.usage.prompt_tokens + 4);
assert.equal(legacy.tokens.join(""), echo.choices[0].text);
assert.equal(legacy.text_offset[legacy.tokens.length - 1], echo.choices[0].text.length - legacy.tokens.at(-1).length);
let pieces = "";
for await (const c of await client.completions.create({ model, prompt: "def add(a, b):", max_tokens: 16, temperature: 0, stream: true }))
  pieces += c.choices[0].text;
assert.equal(pieces, code.choices[0].text);

// what an evaluation does: score a text by echoing it. The numbers are those of generating it, to the last bit.
const made = await client.completions.create({ model, prompt: "def add(a, b):", max_tokens: 12, temperature: 0, logprobs: 1, return_token_ids: true });
const ids = [...made.choices[0].prompt_token_ids, ...made.choices[0].token_ids];
const scored = await client.completions.create({ model, prompt: [ids, ids.slice(0, 9)], max_tokens: 0, echo: true, logprobs: 1, temperature: 0 });
assert.deepEqual(scored.choices[0].logprobs.token_logprobs.slice(-12), made.choices[0].logprobs.token_logprobs);
assert.deepEqual(scored.choices[0].logprobs.token_logprobs.slice(0, 9), scored.choices[1].logprobs.token_logprobs);

// roles and parts of newer clients, several choices streamed with log probabilities
const talk = { model, temperature: 1, seed: 5, n: 2, max_tokens: 12, logprobs: true, top_logprobs: 2, messages: [
  { role: "developer", content: "Answer briefly." },
  { role: "user", content: [{ type: "text", text: "Tom has 3 apples" }, { type: "text", text: "and buys 4. How many?" }] },
  { role: "assistant", content: null, tool_calls: [{ id: "c1", type: "function", function: { name: "add", arguments: '{"a": 3, "b": 4}' } }] },
  { role: "tool", tool_call_id: "c1", content: "7" }] };
const both = await client.chat.completions.create(talk);
const said = [[], []];
for await (const chunk of await client.chat.completions.create({ ...talk, stream: true, stream_options: { include_usage: true } })) {
  for (const c of chunk.choices) said[c.index].push(...(c.logprobs?.content ?? []));
  if (!chunk.choices.length) assert.equal(chunk.usage.completion_tokens, both.usage.completion_tokens);
}
assert.deepEqual(said, both.choices.map((c) => c.logprobs.content));

// stop strings
const cut = text.slice(8, 12);
const stopped = await client.chat.completions.create({ ...base, stop: [cut] });
assert.equal(stopped.choices[0].message.content, text.slice(0, text.indexOf(cut)));
assert.equal(stopped.choices[0].finish_reason, "stop");

// answers of a form
const schema = { type: "object", additionalProperties: false, required: ["name", "age"], properties: {
  name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 } } };
const form = { ...base, max_tokens: 200, response_format: { type: "json_schema", json_schema: { name: "who", strict: true, schema } } };
for (const temperature of [0, 1.3]) {
  const parsed = await client.chat.completions.parse({ ...form, temperature, seed: 5 });
  const who = JSON.parse(parsed.choices[0].message.content);
  assert.equal(parsed.choices[0].finish_reason, "stop");
  assert.ok(typeof who.name === "string" && Number.isInteger(who.age) && who.age >= 0 && who.age <= 150);
  assert.equal(Object.keys(who).length, 2);
  const stream = client.chat.completions.stream({ ...form, temperature, seed: 5 });
  assert.equal((await stream.finalChatCompletion()).choices[0].message.content, parsed.choices[0].message.content);
}
const yes = await client.chat.completions.create({ ...base, structured_outputs: { choice: ["yes", "no"] } });
assert.ok(["yes", "no"].includes(yes.choices[0].message.content));
await assert.rejects(client.chat.completions.create({ ...form, response_format: { type: "json_schema", json_schema: { name: "who",
  schema: { type: "object", properties: { a: { type: "strnig" } } } } } }), (e) =>
  e instanceof OpenAI.BadRequestError && e.param === "response_format" && e.message.includes("properties/a"));

// errors
await assert.rejects(client.chat.completions.create({ ...base, temperature: "warm" }), (e) =>
  e instanceof OpenAI.BadRequestError && e.status === 400 && e.param === "temperature" && e.type === "invalid_request_error");
await assert.rejects(client.chat.completions.create({ ...base, model: "other" }), (e) =>
  e instanceof OpenAI.NotFoundError && e.code === "model_not_found");

// leaving early frees the engine
const abort = new AbortController();
const long = await client.chat.completions.create({ ...base, max_tokens: 1500, stream: true, ignore_eos: true }, { signal: abort.signal });
for await (const _ of long) { abort.abort(); break; }
for (let i = 0; ; i++) {
  const running = /^salvo_running_sequences (\d+)$/m.exec(await (await fetch(process.argv[2] + "/metrics", { headers: { Authorization: "Bearer " + (process.argv[3] || "") } })).text())[1];
  if (running === "0") break;
  assert.ok(i < 1200, "still running");
  await new Promise((r) => setTimeout(r, 50));
}
console.log("openai: all as it should be");
