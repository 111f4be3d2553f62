// tools.mjs URL - agents' sessions of openai and the AI SDK: calls that the demo pair is made to write, whole and
// streamed, and their results sent back. Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const base = process.argv[2] + "/v1";
const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const schema = {
  type: "object", required: ["op", "a", "b"], additionalProperties: false,
  properties: { op: { enum: ["add", "mul"] }, a: { type: "integer", minimum: 0, maximum: 99 },
                b: { type: "integer", minimum: 0, maximum: 99 } },
};
const tools = [
  { type: "function", function: { name: "calculate", description: "Adds or multiplies.", parameters: schema, strict: true } },
  { type: "function", function: { name: "now" } },
];
const messages = [{ role: "user", content: "What is 12 times 13?" }];
const ask = { model: "target", messages, tools, temperature: 0, max_tokens: 80 };
const named = { type: "function", function: { name: "calculate" } };

function check(call) {
  assert.equal(call.type, "function");
  assert.match(call.id, /^call_\w{24}$/);
  const args = JSON.parse(call.function.arguments);
  if (call.function.name === "now") return assert.deepEqual(args, {});
  assert.equal(call.function.name, "calculate");
  assert.deepEqual(Object.keys(args), ["op", "a", "b"]);
  assert.ok(["add", "mul"].includes(args.op));
  for (const x of [args.a, args.b]) assert.ok(Number.isInteger(x) && x >= 0 && x <= 99);
}

// one that is named; the model's end comes by itself
const one = await client.chat.completions.create({ ...ask, tool_choice: named });
assert.equal(one.choices[0].finish_reason, "stop");
assert.equal(one.choices[0].message.content, null);
assert.equal(one.choices[0].message.tool_calls.length, 1);
assert.equal(one.choices[0].message.tool_calls[0].function.name, "calculate");
check(one.choices[0].message.tool_calls[0]);

// any of them, once; streamed it is the same
const must = { ...ask, tool_choice: "required", parallel_tool_calls: false };
const whole = (await client.chat.completions.create(must)).choices[0];
assert.equal(whole.finish_reason, "tool_calls");
assert.equal(whole.message.tool_calls.length, 1);
check(whole.message.tool_calls[0]);
const streamed = (await client.chat.completions.stream(must).finalChatCompletion()).choices[0];
assert.equal(streamed.finish_reason, "tool_calls");
assert.deepEqual(streamed.message.tool_calls.map((c) => [c.function.name, c.function.arguments]),
  whole.message.tool_calls.map((c) => [c.function.name, c.function.arguments]));
let n_pieces = 0;
for await (const c of await client.chat.completions.create({ ...must, stream: true })) {
  const call = c.choices[0].delta.tool_calls?.[0];
  if (call) assert.equal(call.index, 0);
  n_pieces += call && !call.id ? 1 : 0;
}
assert.ok(n_pieces >= 1);

// several choices, by chance, each as it must be
const many = await client.chat.completions.create({ ...must, temperature: 1, seed: 3, n: 4 });
for (const c of many.choices) c.message.tool_calls.forEach(check);
const plain = await client.chat.completions.create({ ...must, temperature: 1, seed: 3, n: 4, width: 1 });
assert.deepEqual(plain.choices.map((c) => c.message.tool_calls[0].function),
  many.choices.map((c) => c.message.tool_calls[0].function));

// the call goes back with its result, and the model says something
const after = await client.chat.completions.create({ ...ask, tool_choice: "none", max_tokens: 8, messages: [
  ...messages, one.choices[0].message, { role: "tool", tool_call_id: one.choices[0].message.tool_calls[0].id, content: "156" }] });
assert.ok(after.choices[0].message.content.length > 0);

// openai's own loop
const run = client.chat.completions.runTools({ ...ask, tool_choice: named, tools: [{ type: "function", function: {
  name: "calculate", parameters: schema, parse: JSON.parse, function: ({ op, a, b }) => String(op === "add" ? a + b : a * b) } }] });
await run.done();
assert.equal(run.messages.at(-2).tool_calls[0].function.name, "calculate");
assert.match(run.messages.at(-1).content, /^\d+$/);

// a schema that is wrong, and a tool that is not there
await assert.rejects(client.chat.completions.create({ ...must, tools: [
  { type: "function", function: { name: "f", parameters: { type: "thing" } } }] }), (e) => e.status === 400 && e.param === "tools");
await assert.rejects(client.chat.completions.create({ ...ask, tool_choice: { type: "function", function: { name: "g" } } }),
  (e) => e.status === 400 && e.param === "tool_choice");

// the AI SDK: a call, its result, and a second step
const salvo = createOpenAICompatible({ name: "salvo", baseURL: base, includeUsage: true });
const calculate = tool({ inputSchema: jsonSchema(schema), execute: async ({ op, a, b }) => (op === "add" ? a + b : a * b) });
const job = { model: salvo("target"), prompt: messages[0].content, temperature: 0, maxOutputTokens: 80, maxRetries: 0,
              tools: { calculate } };
const result = await generateText({ ...job, toolChoice: { type: "tool", toolName: "calculate" }, stopWhen: stepCountIs(1) });
assert.equal(result.toolCalls.length, 1);
assert.equal(result.toolCalls[0].toolName, "calculate");
assert.equal(typeof result.toolResults[0].output, "number");
const live = streamText({ ...job, toolChoice: { type: "tool", toolName: "calculate" }, stopWhen: stepCountIs(2), onError: ({ error }) => { throw error; } });
const seen = [];
for await (const part of live.fullStream) seen.push(part.type);
for (const type of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]) assert.ok(seen.includes(type), type);
assert.equal((await live.steps).length, 2);
console.log("tools: all as it should be");
