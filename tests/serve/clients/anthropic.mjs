// anthropic.mjs URL - a scripted session of @anthropic-ai/sdk (Node), unmodified: whole and streamed answers, the loop
// of tools, counting, errors, aborts. Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const options = { baseURL: process.argv[2], apiKey: process.argv[3] || "none", maxRetries: 0 };
const client = new Anthropic(options);
const model = "default";
const messages = [{ role: "user", content: "Tom has 3 apples and buys 4. How many?" }];
const base = { model, system: "Answer briefly.", messages, temperature: 0, max_tokens: 48 };

// whole
const whole = await client.messages.create(base);
assert.match(whole.id, /^msg_/);
assert.equal(whole.type, "message");
assert.equal(whole.role, "assistant");
assert.equal(whole.content.length, 1);
assert.equal(whole.content[0].type, "text");
const text = whole.content[0].text;
assert.ok(text.length > 0);
assert.ok(["end_turn", "max_tokens"].includes(whole.stop_reason));
assert.equal(whole.stop_sequence, null);
assert.ok(whole.usage.input_tokens > 0 && whole.usage.output_tokens > 0);
assert.equal(whole.usage.cache_creation_input_tokens, 0);
assert.ok(whole._request_id);
assert.equal(whole.metrics, undefined);
const figures = await client.messages.create({ ...base, spec_decode_metrics: "summary", width: 4 });
assert.equal(figures.content[0].text, text);
assert.ok(figures.metrics.speculative_decoding.num_spec_steps > 0);

// counting: what an answer is told it read, kept or not
const counted = await client.messages.countTokens({ model, system: base.system, messages });
for (const u of [whole.usage, figures.usage])
  assert.equal(counted.input_tokens, u.input_tokens + u.cache_read_input_tokens);
assert.ok(figures.usage.cache_read_input_tokens > 0);

// models, one by one and by pages
const listed = [];
for await (const m of client.models.list()) listed.push(m);
assert.equal(listed.length, 1);
assert.equal(listed[0].type, "model");
assert.ok(!Number.isNaN(Date.parse(listed[0].created_at)));
assert.deepEqual(await client.models.retrieve(listed[0].id), listed[0]);

// streamed: events as they come, and the helper
let streamed = "";
const types = [];
for await (const e of await client.messages.create({ ...base, stream: true })) {
  types.push(e.type);
  if (e.type === "content_block_delta") streamed += e.delta.text;
}
assert.equal(streamed, text);
assert.deepEqual(types.filter((t) => t !== "content_block_delta"),
  ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]);
let deltas = "";
const helper = client.messages.stream(base).on("text", (d) => { deltas += d; });
const final = await helper.finalMessage();
assert.equal(deltas, text);
assert.equal(await helper.finalText(), text);
assert.equal(final.stop_reason, whole.stop_reason);
assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
assert.equal(final.usage.input_tokens + final.usage.cache_read_input_tokens, counted.input_tokens);

// stop sequences, and an answer that goes on
const word = text.split(" ")[2];
const stopped = await client.messages.create({ ...base, stop_sequences: ["never said", word] });
assert.equal(stopped.stop_reason, "stop_sequence");
assert.equal(stopped.stop_sequence, word);
assert.ok(!stopped.content[0].text.includes(word));
const more = await client.messages.create({ ...base, messages: [...messages, { role: "assistant", content: stopped.content[0].text.trim() }] });
assert.ok(more.content[0].text.length > 0);
const blocks = await client.messages.create({ ...base, system: [{ type: "text", text: base.system, cache_control: { type: "ephemeral" } }],
  messages: [{ role: "user", content: [{ type: "text", text: messages[0].content }] }], metadata: { user_id: "u" }, top_k: 5, top_p: 0.9,
  thinking: { type: "adaptive" }, service_tier: "auto" });
assert.equal(blocks.content[0].text, text);

// tools: a call, its result, and what is said then
const tools = [{ name: "calculate", description: "Adds or multiplies.", strict: true, input_schema: {
  type: "object", required: ["op", "a", "b"], additionalProperties: false,
  properties: { op: { enum: ["add", "mul"] }, a: { type: "integer", minimum: 0, maximum: 99 }, b: { type: "integer", minimum: 0, maximum: 99 } } } },
  { name: "now", input_schema: { type: "object", properties: {}, additionalProperties: false } }];
const must = { ...base, max_tokens: 120, tools, tool_choice: { type: "any", disable_parallel_tool_use: true } };
function check(m) {
  assert.equal(m.stop_reason, "tool_use");
  assert.equal(m.content.length, 1);
  const call = m.content[0];
  assert.equal(call.type, "tool_use");
  assert.match(call.id, /^toolu_\w{24}$/);
  if (call.name === "now") return assert.deepEqual(call.input, {});
  assert.equal(call.name, "calculate");
  assert.deepEqual(Object.keys(call.input), ["op", "a", "b"]);
  for (const x of [call.input.a, call.input.b]) assert.ok(Number.isInteger(x) && x >= 0 && x <= 99);
}
const call = await client.messages.create(must);
check(call);
const pieces = [];
const live = await client.messages.stream(must).on("inputJson", (piece) => pieces.push(piece)).finalMessage();
check(live);
assert.deepEqual(live.content[0].input, call.content[0].input);
assert.deepEqual(JSON.parse(pieces.join("")), call.content[0].input);
const named = await client.messages.create({ ...must, tool_choice: { type: "tool", name: "calculate" } });
check(named);
const after = await client.messages.create({ ...base, tools, tool_choice: { type: "none" }, max_tokens: 8, messages: [...messages,
  { role: "assistant", content: [{ type: "thinking", thinking: "Hm.", signature: "x" }, ...named.content] },
  { role: "user", content: [{ type: "tool_result", tool_use_id: named.content[0].id, content: [{ type: "text", text: "7" }] }] }] });
assert.ok(after.content[0].text.length > 0);

// the SDK's own loop, which ends when nothing is called
let turns = 0;
const runner = client.beta.messages.toolRunner({ ...base, max_tokens: 120, max_iterations: 2, tool_choice: { type: "tool", name: "calculate" }, tools: [{
  ...tools[0], parse: (x) => x, run: ({ op, a, b }) => { turns++; return String(op === "add" ? a + b : a * b); } }] });
for await (const m of runner) assert.equal(m.stop_reason, "tool_use");
assert.ok(turns >= 1);
const results = runner.params.messages.flatMap((m) => (m.role === "user" && Array.isArray(m.content) ? m.content : []));
assert.ok(results.some((b) => b.type === "tool_result"));

// a form
const form = { type: "json_schema", schema: { type: "object", required: ["n"], additionalProperties: false, properties: { n: { type: "integer", minimum: 0, maximum: 9 } } } };
for (const ask of [{ output_config: { format: form } }, { output_format: form }]) {
  const formed = await client.messages.create({ ...base, ...ask });
  assert.ok(Number.isInteger(JSON.parse(formed.content[0].text).n));
}

// errors, as the SDK's own classes
const fails = (ask, check) => assert.rejects(client.messages.create({ ...base, ...ask }), check);
await fails({ model: "claude" }, (e) => e instanceof Anthropic.NotFoundError && e.type === "not_found_error" && e.requestID === e.error.request_id);
await fails({ messages: [{ role: "user", content: [{ type: "image", source: { type: "url", url: "http://x" } }] }] },
  (e) => e instanceof Anthropic.BadRequestError && e.type === "invalid_request_error" && /'messages\[0\]\.content\[0\]': this model takes no images/.test(e.message));
await fails({ max_tokens: 0 }, (e) => e.status === 400 && /max_tokens/.test(e.message));
await fails({ stream: true, tools: [{ type: "bash_20250124", name: "bash" }] }, (e) => e.status === 400 && /tools\[0\]\.type/.test(e.message));
await assert.rejects(client.messages.countTokens({ model, messages: [] }), (e) => e.status === 400);

// aborts: in the middle of a stream, and of waiting for a whole answer
const endless = { ...base, max_tokens: 1500, ignore_eos: true, temperature: 1 };
const aborted = client.messages.stream(endless);
aborted.on("text", () => aborted.abort());
await assert.rejects(aborted.finalMessage(), Anthropic.APIUserAbortError);
// Where this process is late the answer comes first, and one try of ten has to do.
for (let i = 0, given = true; given; i++) {
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 20);
  const answer = client.messages.create(endless, { signal: controller.signal });
  given = await answer.catch((e) => assert.ok(e instanceof Anthropic.APIUserAbortError));
  assert.ok(!given || i < 9, "no answer was aborted");
}
console.log("anthropic: all as it should be");
