// responses.mjs URL - the Responses API as openai and the AI SDK use it: answers whole and streamed, forms, tools,
// turns that go on from kept ones. Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const baseURL = process.argv[2] + "/v1";
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const question = "Tom has 3 apples and buys 4. How many?";
const ask = { model: "target", input: question, instructions: "Answer briefly.", temperature: 0, max_output_tokens: 60 };

// whole: the text of a chat with the same messages
const whole = await client.responses.create(ask);
const chat = await client.chat.completions.create({ model: "target", temperature: 0, max_tokens: 60,
  messages: [{ role: "system", content: "Answer briefly." }, { role: "user", content: question }] });
assert.equal(whole.status, "completed");
assert.equal(whole.output_text, chat.choices[0].message.content);
assert.equal(whole.usage.output_tokens, chat.usage.completion_tokens);
assert.equal(whole.usage.input_tokens, chat.usage.prompt_tokens);
assert.equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens);
assert.ok(whole.metrics.speculative_decoding.num_spec_steps > 0);
const short = await client.responses.create({ ...ask, max_output_tokens: 3 });
assert.equal(short.status, "incomplete");
assert.equal(short.incomplete_details.reason, "max_output_tokens");

// streamed, and with openai's helper, which puts the events together itself
let text = "", n = 0, last = null;
for await (const e of await client.responses.create({ ...ask, stream: true })) {
  assert.equal(e.sequence_number, n++);
  if (e.type === "response.output_text.delta") text += e.delta;
  last = e;
}
assert.equal(text, whole.output_text);
assert.equal(last.type, "response.completed");
assert.equal(last.response.output_text ?? last.response.output[0].content[0].text, text);
const helper = await client.responses.stream(ask).finalResponse();
assert.equal(helper.output_text, whole.output_text);

// kept: read, listed, deleted
const kept = await client.responses.retrieve(whole.id);
assert.deepEqual(kept.output, whole.output);
assert.deepEqual(kept.usage, whole.usage);
const items = [];
for await (const item of client.responses.inputItems.list(whole.id)) items.push(item);
assert.deepEqual(items.map((i) => [i.type, i.role, i.content[0].text]), [["message", "user", question]]);

// the next turn goes on from it, and its prompt is in the cache but for the last token of an answer
const next = await client.responses.create({ ...ask, input: "And if he eats one?", previous_response_id: whole.id });
const same = await client.chat.completions.create({ model: "target", temperature: 0, max_tokens: 60,
  messages: [{ role: "system", content: "Answer briefly." }, { role: "user", content: question },
    { role: "assistant", content: whole.output_text }, { role: "user", content: "And if he eats one?" }] });
assert.equal(next.output_text, same.choices[0].message.content);
assert.equal(next.usage.input_tokens, same.usage.prompt_tokens);
assert.equal(next.previous_response_id, whole.id);
await client.responses.delete(whole.id);
await assert.rejects(client.responses.retrieve(whole.id), (e) => e instanceof OpenAI.NotFoundError);
await assert.rejects(client.responses.create({ ...ask, previous_response_id: whole.id }),
  (e) => e.status === 404 && e.code === "previous_response_not_found" && e.param === "previous_response_id");
assert.ok((await client.responses.create({ ...ask, input: "More.", previous_response_id: next.id })).output_text.length > 0);
const loose = await client.responses.create({ ...ask, store: false });
await assert.rejects(client.responses.retrieve(loose.id), (e) => e.status === 404);

// a form
const schema = { type: "object", additionalProperties: false, required: ["name", "age"], properties: {
  name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 } } };
const form = { ...ask, max_output_tokens: 200, text: { format: { type: "json_schema", name: "who", strict: true, schema } } };
const parsed = await client.responses.parse(form);
assert.deepEqual(Object.keys(parsed.output_parsed), ["name", "age"]);
assert.ok(Number.isInteger(parsed.output_parsed.age));
assert.equal((await client.responses.stream(form).finalResponse()).output_text, parsed.output_text);

// log probabilities
const lp = await client.responses.create({ ...ask, max_output_tokens: 6, top_logprobs: 2, include: ["message.output_text.logprobs"] });
assert.equal(lp.output[0].content[0].logprobs.length, lp.usage.output_tokens);
assert.equal(lp.output[0].content[0].logprobs[0].top_logprobs.length, 2);

// a loop with a tool, by previous_response_id and by sending everything
const sums = { type: "object", required: ["op", "a", "b"], additionalProperties: false, properties: {
  op: { enum: ["add", "mul"] }, a: { type: "integer", minimum: 0, maximum: 99 }, b: { type: "integer", minimum: 0, maximum: 99 } } };
const tools = [{ type: "function", name: "calculate", description: "Adds or multiplies.", parameters: sums, strict: true },
               { type: "function", name: "now", parameters: null, strict: false }];
const job = { ...ask, input: [{ role: "user", content: "What is 12 times 13?" }], tools, max_output_tokens: 200 };
const first = await client.responses.create({ ...job, tool_choice: { type: "function", name: "calculate" } });
const call = first.output.find((i) => i.type === "function_call");
const args = JSON.parse(call.arguments);
assert.ok(["add", "mul"].includes(args.op) && Number.isInteger(args.a) && Number.isInteger(args.b));
const output = { type: "function_call_output", call_id: call.call_id, output: "156" };
const second = await client.responses.create({ ...job, tool_choice: "none", input: [output], previous_response_id: first.id });
const all = await client.responses.create({ ...job, tool_choice: "none", input: [...job.input, ...first.output, output] });
assert.ok(second.output_text.length > 0);
assert.equal(all.output_text, second.output_text);
assert.equal(all.usage.input_tokens, second.usage.input_tokens);
const live = client.responses.stream({ ...job, tool_choice: "required", parallel_tool_calls: false });
let pieces = "";
live.on("response.function_call_arguments.delta", (e) => { pieces += e.delta; });
const lived = (await live.finalResponse()).output.find((i) => i.type === "function_call");
assert.equal(pieces, lived.arguments);
for (let i = 0; i < 3; i++) {
  const one = await client.responses.create({ ...job, temperature: 1, seed: i, tool_choice: { type: "allowed_tools",
    mode: "required", tools: [{ type: "function", name: "now" }] } });
  assert.ok(one.output.every((o) => o.type !== "function_call" || o.name === "now"));
  assert.ok(one.output.some((o) => o.type === "function_call"));
}

// what is refused
const refused = async (more, param) => assert.rejects(client.responses.create({ ...ask, ...more }), (e) =>
  e instanceof OpenAI.BadRequestError && e.param === param && e.type === "invalid_request_error");
await refused({ input: [{ role: "user", content: [{ type: "input_image", image_url: "x" }] }] }, "input[0].content[0]");
await refused({ tools: [{ type: "web_search" }] }, "tools[0].type");
await refused({ background: true }, "background");
await refused({ top_p: 2 }, "top_p");
assert.equal((await client.responses.create({ ...ask, no_such_thing: 1 })).status, "completed");

// the AI SDK, whose default for OpenAI this API is
const salvo = createOpenAI({ baseURL, apiKey: "none" });
const model = salvo.responses("target");
const sdk = { model, prompt: question, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
const made = await generateText(sdk);
assert.ok(made.text.length > 3);
assert.equal(made.finishReason, "stop");
const stream = streamText({ ...sdk, onError: ({ error }) => { throw error; } });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
assert.equal(streamed, made.text);
assert.equal((await stream.usage).outputTokens, made.usage.outputTokens);
const object = await generateObject({ ...sdk, maxOutputTokens: 200, schema: jsonSchema(schema) });
assert.deepEqual(Object.keys(object.object), ["name", "age"]);
const calculate = tool({ inputSchema: jsonSchema(sums), execute: async ({ op, a, b }) => (op === "add" ? a + b : a * b) });
const steps = streamText({ ...sdk, tools: { calculate }, toolChoice: { type: "tool", toolName: "calculate" },
  stopWhen: stepCountIs(2), maxOutputTokens: 200, onError: ({ error }) => { throw error; } });
const seen = [];
for await (const part of steps.fullStream) seen.push(part.type);
for (const type of ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]) assert.ok(seen.includes(type), type);
assert.equal((await steps.steps).length, 2);
const twice = await generateText({ ...sdk, tools: { calculate }, toolChoice: "required", stopWhen: stepCountIs(2), maxOutputTokens: 200 });
assert.equal(twice.steps.length, 2);
console.log("responses: all as it should be");
