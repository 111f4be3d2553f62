// load.mjs URL PID REQUESTS CLIENTS SEED IDS [IMAGE] - many clients at once against a small cache: every answer must equal the one the
// same request got alone, bit for bit (text, token ids, log probabilities), whatever the others do.
//
// Called by load.test.sh. IDS: the vocabulary has at least so many; with fewer than 1000 prompts are shorter. IMAGE: a file that
// chats show. Among the requests: streams and whole answers, sampled and greedy, penalties, bias, stop
// strings, log probabilities, several choices, answers of a form, clients that leave, clients that read slowly, requests that are wrong.
// Prints one line of counts; exits 1 with the first difference.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";

const [url, pid, nRequests, nClients] = [process.argv[2], process.argv[3], Number(process.argv[4]), Number(process.argv[5])];
const agent = new http.Agent({ keepAlive: true, maxSockets: nClients });

const ids = Number(process.argv[7]), image = process.argv[8];
const imageUrl = image && "data:image/png;base64," + readFileSync(image).toString("base64");
let seed = Number(process.argv[6]); // the same run every time
function random(n) {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return Math.floor((seed / 4294967296) * n);
}
const pick = (list) => list[random(list.length)];

// ---------------------------------------------------------------- requests

const topics = ["apples", "trains", "a parser", "prime numbers", "two friends", "the sea", "x and y", "a list of words"];
const texts = [
  "def add(a, b):", "#include <stdio.h>\nint main(", "Tom has 3 apples and buys 4 more. How many", "for i in range(",
  "The total number of ", "import os\nimport sys\n\ndef main():", "\u{1F99C} \u6F22\u5B57 and ", "class Node:\n    def __init__(self",
];
// Answers of a form, with all that varies beside it. 24 grammars, more than are in use at a time.
const forms = [
  (k) => ({ response_format: { type: "json_schema", json_schema: { name: "who", schema: { type: "object",
    properties: { name: { type: "string", maxLength: 4 + k }, age: { type: "integer" }, likes: { type: "array", items: { enum: ["tea", "jam"] }, maxItems: k } },
    required: ["name", "age", "likes"], additionalProperties: false } } } }),
  (k) => ({ guided_regex: `[a-z]{1,${4 + k}}(, [a-z]{1,9})*\\.` }),
  (k) => ({ structured_outputs: { choice: ["yes", "no", "perhaps " + k] } }),
  (k) => ({ guided_grammar: `root ::= item ("," item){0,${k}}\nitem ::= [0-9]+ | "(" root ")"` }),
];
function makeRequest(i) {
  const chat = i % 3 === 0;
  const body = { max_tokens: 1 + random(40), return_token_ids: true };
  const filler = random(4) === 0 ? "one two three four five six seven eight nine ten ".repeat(1 + random(ids < 1000 ? 3 : 9)) : "";
  if (chat) body.messages = [{ role: "user", content: filler + "Tell me about " + pick(topics) + ", number " + i + "." }];
  else body.prompt = filler + pick(texts) + (i % 5 ? "" : " " + i);
  if (chat && image && random(3))
    body.messages[0].content = [{ type: "text", text: body.messages[0].content }, { type: "image_url", image_url: { url: imageUrl } }];
  if (random(2)) Object.assign(body, { temperature: 0 });
  else Object.assign(body, { temperature: 0.5 + random(10) / 10, seed: i, top_p: pick([1, 0.9]), top_k: pick([-1, 20]) });
  if (random(4) === 0) body.stop = pick([["\n"], [" the", "="], ["a"], ["."]]);
  if (random(6) === 0) Object.assign(body, { presence_penalty: 0.5, frequency_penalty: 0.25, repetition_penalty: 1.1 });
  if (random(6) === 0) body.logit_bias = { [100 + random(Math.min(500, ids - 100))]: 5, [200 + random(Math.min(500, ids - 200))]: -100 };
  if (random(5) === 0) Object.assign(body, chat ? { logprobs: true, top_logprobs: 2 } : { logprobs: 2, echo: random(2) === 0 });
  if (random(7) === 0) body.n = 2;
  if (i % 8 === 3) body.user = "u".repeat(9000); // read on the thread for long bodies
  if (i % 5 === 2) Object.assign(body, pick(forms)(1 + random(6)));
  else if (random(8) === 0) body.ignore_eos = true;
  return { path: chat ? "/v1/chat/completions" : "/v1/completions", body };
}
const wrong = [
  ["/v1/chat/completions", { messages: [] }], ["/v1/chat/completions", { messages: [{ role: "user", content: 5 }] }],
  ["/v1/completions", { prompt: "a", temperature: "hot" }], ["/v1/completions", { prompt: [99999999] }],
  ["/v1/completions", { prompt: "a", seed: "x" }], ["/generate", { text: 1 }], ["/tokenize", {}],
];

// ---------------------------------------------------------------- sending

// mode: "whole", "stream", "slow" (reads a little at a time) or "leave" (goes after a few bytes, or at once).
function send(path, body, mode) {
  return new Promise((resolve, reject) => {
    const streamed = mode !== "whole";
    const text = JSON.stringify(streamed ? { ...body, stream: true } : body);
    const request = http.request(url + path, { method: "POST", agent: mode === "leave" ? false : agent,
      headers: { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(text) } }, (answer) => {
      const parts = [];
      answer.on("data", (part) => {
        parts.push(part);
        if (mode === "leave") { request.destroy(); resolve({ left: true }); return; }
        if (mode === "slow") { answer.pause(); setTimeout(() => answer.resume(), 5); }
      });
      answer.on("end", () => resolve({ status: answer.statusCode, text: Buffer.concat(parts).toString() }));
      answer.on("error", reject);
    });
    request.on("error", (e) => (mode === "leave" ? resolve({ left: true }) : reject(e)));
    request.end(text);
    if (mode === "leave" && random(2)) setTimeout(() => { request.destroy(); resolve({ left: true }); }, random(60));
  });
}

// What must be equal, out of a whole answer or of a stream's events.
function essence(text, streamed) {
  const choices = [];
  const take = (c) => {
    const e = (choices[c.index] ??= { text: "", ids: [], lp: [], finish: null });
    e.text += c.text ?? c.delta?.content ?? c.message?.content ?? "";
    e.ids.push(...(c.token_ids ?? []));
    if (c.logprobs) e.lp.push(...(c.logprobs.content ?? c.logprobs.token_logprobs));
    e.finish = c.finish_reason ?? e.finish;
  };
  if (!streamed) JSON.parse(text).choices.forEach(take);
  else {
    const events = text.split("\n\n").filter((e) => e.startsWith("data: "));
    assert.equal(events.pop(), "data: [DONE]");
    for (const e of events) {
      const event = JSON.parse(e.slice(6));
      assert.ok(event.choices, e);
      event.choices.forEach(take);
    }
  }
  return JSON.stringify(choices);
}

async function metrics() {
  const v = {};
  for (const line of (await (await fetch(url + "/metrics")).text()).split("\n")) {
    const m = /^(\S+) (\S+)$/.exec(line);
    if (m && !line.startsWith("#")) v[m[1]] = Number(m[2]);
  }
  return v;
}
const resident = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))[1]) / 1024;

// ---------------------------------------------------------------- the run

const distinct = Array.from({ length: Math.min(150, nRequests) }, (_, i) => makeRequest(i));
for (const r of distinct) {
  const a = await send(r.path, r.body, "whole");
  assert.equal(a.status, 200, a.text);
  r.alone = essence(a.text, false);
}
const alone = await metrics();
const count = { whole: 0, stream: 0, slow: 0, leave: 0, wrong: 0, full: 0 };
let started = 0, early = 0;
async function client() {
  for (;;) {
    if (started++ >= nRequests) return;
    if (started === Math.floor(nRequests / 3)) early = resident();
    if (random(20) === 0) {
      const [path, body] = pick(wrong);
      const a = await send(path, body, "whole");
      assert.equal(a.status, 400, a.text);
      count.wrong++;
      continue;
    }
    const r = pick(distinct);
    const mode = pick(["whole", "whole", "stream", "stream", "stream", "stream", "slow", "leave"]);
    const a = await send(r.path, r.body, mode);
    count[mode]++;
    if (a.left) continue;
    assert.equal(a.status, 200, a.text);
    assert.equal(essence(a.text, mode !== "whole"), r.alone, JSON.stringify(r.body));
  }
}
const start = Date.now();
await Promise.all(Array.from({ length: nClients }, client));
const seconds = (Date.now() - start) / 1000;

// ---------------------------------------------------------------- nothing left

let end;
for (let i = 0; ; i++) {
  end = await metrics();
  if (!end.salvo_running_sequences && !end.salvo_waiting_sequences && !end.salvo_cache_pages_used) break;
  assert.ok(i < 1200, `left: ${end.salvo_running_sequences} running, ${end.salvo_cache_pages_used} pages`);
  await new Promise((r) => setTimeout(r, 50));
}
const late = resident();
const ended = (v) => ["stop", "length", "canceled", "error"].reduce((s, k) => s + v[`salvo_sequences_total{result="${k}"}`], 0);
assert.equal(end['salvo_sequences_total{result="error"}'], 0);
assert.ok(ended(end) > ended(alone));
assert.ok(late < early * 1.1 + 8, `memory grew from ${early} to ${late} MiB`);
// And a request alone gives what it gave before.
for (const r of distinct.slice(0, 10)) assert.equal(essence((await send(r.path, r.body, "whole")).text, false), r.alone);
console.log(`${nRequests} requests of ${nClients} clients in ${seconds.toFixed(1)} s: ${JSON.stringify(count)}, ` +
  `preemptions ${end.salvo_preemptions_total}, canceled ${end['salvo_sequences_total{result="canceled"}']}, ` +
  `memory ${early.toFixed(0)} -> ${late.toFixed(0)} MiB, prefix hits ${end.salvo_prefix_hits_total}`);
agent.destroy();
