// aisdk.mjs URL - a scripted session of the Vercel AI SDK, the strictest reader of chunks.
// Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, streamObject, streamText } from "ai";

const salvo = createOpenAICompatible({ name: "salvo", baseURL: process.argv[2] + "/v1", includeUsage: true, supportsStructuredOutputs: true });
const ask = { model: salvo("target"), prompt: "Tom has 3 apples and buys 4. How many?", temperature: 0, maxOutputTokens: 40, maxRetries: 0 };

const whole = await generateText(ask);
assert.ok(whole.text.length > 5);
assert.ok(["stop", "length"].includes(whole.finishReason));
assert.ok(whole.usage.outputTokens > 0);

const stream = streamText({ ...ask, onError: ({ error }) => { throw error; } });
let text = "";
for await (const piece of stream.textStream) text += piece;
assert.equal(text, whole.text);
assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
assert.equal(await stream.finishReason, whole.finishReason);

const done = await generateText({ ...ask, model: salvo.completionModel("target"), prompt: "def add(a, b):" });
assert.ok(done.text.length > 3);

// objects of a schema
const schema = jsonSchema({ type: "object", additionalProperties: false, required: ["name", "age", "likes"], properties: {
  name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 },
  likes: { type: "array", items: { enum: ["tea", "jam"] }, maxItems: 2 } } });
const isWho = (o) => {
  assert.deepEqual(Object.keys(o).sort(), ["age", "likes", "name"]);
  assert.ok(typeof o.name === "string" && [...o.name].length <= 12 && Number.isInteger(o.age) && o.age >= 0 && o.age <= 150);
  assert.ok(o.likes.length <= 2 && o.likes.every((x) => x === "tea" || x === "jam"));
};
const asked = { ...ask, prompt: "Who?", schema, maxOutputTokens: 200 };
const made = await generateObject(asked);
isWho(made.object);
const grows = streamObject({ ...asked, onError: ({ error }) => { throw error; } });
let parts = 0;
for await (const part of grows.partialObjectStream) parts += typeof part === "object";
assert.ok(parts > 1);
assert.deepEqual(await grows.object, made.object);
await assert.rejects(generateText({ ...ask, model: salvo("nobody") }), (e) => e.statusCode === 404);
console.log("ai sdk: all as it should be");
