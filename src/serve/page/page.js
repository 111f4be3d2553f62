// page.js - the chat page: streams an answer, colours it by who wrote it, draws the figures.
// Plain browser JavaScript, no build step; served by page.c. Must not load anything from elsewhere.
"use strict";

const $ = (id) => document.getElementById(id);
const ideas = [
  "Natalia sold 48 clips in April and half as many in May. How many did she sell in all?",
  "A train travels 60 miles an hour for 3 hours. How far does it go?",
  "Write a Python function that adds two numbers.",
];
let messages = []; // of the conversation on the page; a new chat has an array of its own
let images = []; // of the next message, as data: URLs
let takesImages = false;
let busy = null; // AbortController of the running answer
let model = "";
let block = 16;
let shown = []; // the histogram on the page

function headers() {
  const h = { "Content-Type": "application/json" };
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
}

const show = (id, value) => { $(id).textContent = value; };
const fixed = (v, n) => (Number.isFinite(v) ? v.toFixed(n) : "0");

// ---------------------------------------------------------------- images

function picture(url) {
  const el = document.createElement("img");
  el.src = url;
  el.alt = "image";
  return el;
}

// Each is a button that takes it away again.
function drawImages() {
  $("images").replaceChildren(...images.map((url, i) => {
    const el = document.createElement("button");
    el.type = "button";
    el.title = "Remove";
    el.append(picture(url));
    el.addEventListener("click", () => { images.splice(i, 1); drawImages(); });
    return el;
  }));
  $("images").hidden = !images.length;
}

function readFile(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function addImages(files) {
  for (const file of files) {
    if (!/^image\/(png|jpeg|webp)$/.test(file.type)) {
      bubble("fail", file.name + " is not a PNG, JPEG or WebP image.");
      continue;
    }
    const url = await readFile(file).catch(() => null);
    if (url) images.push(url);
    else bubble("fail", file.name + " cannot be read.");
  }
  drawImages();
  $("input").focus();
}

const filesOf = (transfer) => (takesImages && transfer ? [...transfer.files] : []);
const imagesOf = (message) => (Array.isArray(message.content) ? message.content : [])
  .filter((part) => part.type === "image_url").map((part) => part.image_url.url);

// ---------------------------------------------------------------- the answer

function bubble(kind, text, shown) {
  const el = document.createElement("div");
  el.className = "msg " + kind;
  if (shown && shown.length) el.append(document.createElement("div"));
  if (shown && shown.length) el.firstChild.append(...shown.map(picture));
  el.append(text || "");
  $("empty").hidden = true;
  $("log").append(el);
  $("log").scrollTop = $("log").scrollHeight;
  return el;
}

// flags: [[bytes, drafted], ...] over the UTF-8 of text; cuts lie between code points.
function paint(el, text, flags) {
  const bytes = new TextEncoder().encode(text);
  const decoder = new TextDecoder();
  let at = 0;
  for (const [n, drafted] of flags || [[bytes.length, false]]) {
    const piece = document.createElement("span");
    piece.className = drafted ? "d" : "o";
    piece.textContent = decoder.decode(bytes.subarray(at, at + n));
    at += n;
    el.append(piece);
  }
}

function histogram(counts) {
  shown = counts;
  const box = $("histogram");
  const top = Math.max(1, ...counts);
  while (box.children.length < block) {
    const bar = document.createElement("span");
    bar.append(document.createElement("b"), String(box.children.length + 1));
    box.append(bar);
  }
  for (let i = 0; i < block; i++) {
    const n = counts[i] || 0;
    box.children[i].firstChild.style.height = (n / top) * 68 + "px";
    box.children[i].title = n + " steps brought " + (i + 1);
  }
}

// Tokens of all steps: counts[i] steps brought i + 1 tokens each.
const stepTokens = (counts) => counts.reduce((s, n, i) => s + n * (i + 1), 0);

function figures(a) {
  const seconds = (a.last - a.first) / 1000;
  const steps = a.counts.reduce((s, n) => s + n, 0);
  show("rate", fixed(seconds > 0 ? (a.tokens - a.firstTokens) / seconds : 0, 0));
  show("accept", fixed(steps ? stepTokens(a.counts) / steps : 0, 2));
  show("tokens", a.tokens);
  show("steps", steps);
  show("ttft", fixed(a.first - a.start, 0) + " ms");
  histogram(a.counts);
}

function takeChunk(a, chunk) {
  const choice = chunk.choices && chunk.choices[0];
  if (chunk.error) throw new Error(chunk.error.message);
  if (choice && choice.token_ids && choice.token_ids.length) {
    const n = choice.token_ids.length;
    a.last = performance.now();
    // A chunk of a busy server may have several steps; the last one brings the true counts.
    if (!a.tokens) { a.first = a.last; a.firstTokens = n; } else { a.counts[Math.min(n, a.counts.length) - 1]++; }
    a.tokens += n;
  }
  if (choice && choice.delta && choice.delta.content) {
    const low = $("log").scrollHeight - $("log").scrollTop - $("log").clientHeight < 60;
    a.text += choice.delta.content;
    paint(a.el, choice.delta.content, choice.draft_flags);
    a.el.classList.toggle("code", /^\s*(def |import |#include|static |for \(|class )/m.test(a.text));
    if (low) $("log").scrollTop = $("log").scrollHeight;
  }
  if (choice && choice.finish_reason) a.finish = choice.finish_reason;
  if (chunk.usage) {
    a.usage = chunk.usage;
    // The server's histogram is of the steps that verified drafts. The first token is the prompt's; each other one that
    // these steps did not bring is a plain decode step.
    const spec = chunk.metrics && chunk.metrics.speculative_decoding;
    a.counts = a.counts.map((_, i) => (spec && spec.acceptance_histogram[i]) || 0);
    a.counts[0] += Math.max(0, a.usage.completion_tokens - 1 - stepTokens(a.counts));
  }
  figures(a);
}

// What a browser says of a failed request is its own and names no server.
function notReached(e, text) {
  throw e.name === "AbortError" ? e : new Error(text);
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((e) => notReached(e, "The connection to the server was lost."));
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue; // ": ping"
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}

function requestBody() {
  const body = {
    model, messages, stream: true, stream_options: { include_usage: true },
    temperature: Number($("temperature").value), top_p: Number($("topp").value),
    max_tokens: Number($("max").value) || 256, return_draft_flags: true, return_token_ids: true,
    separate_reasoning: false, // reasoning is coloured like the rest
  };
  if ($("seed").value !== "") body.seed = Number($("seed").value);
  return JSON.stringify(body);
}

// The message as text to edit and send again, before what has been typed meanwhile.
function takeBack(question, shown) {
  images = shown.concat(images);
  drawImages();
  $("input").value = question + ($("input").value && "\n" + $("input").value);
  fitInput();
  $("input").focus();
}

// talk is the conversation that the question belongs to. It is on the page no longer after "New chat".
async function answer(talk, question, asked) {
  const a = { text: "", tokens: 0, firstTokens: 0, first: 0, last: 0, start: performance.now(),
              counts: Array(64).fill(0), finish: "", usage: null, el: bubble("bot live", "") };
  const running = new AbortController();
  let problem = "", locked = false;
  busy = running;
  show("send", "Stop");
  try {
    const response = await fetch("v1/chat/completions",
      { method: "POST", headers: headers(), body: requestBody(), signal: running.signal })
      .catch((e) => notReached(e, "The server cannot be reached."));
    if (!response.ok) {
      locked = response.status === 401;
      const body = await response.json().catch(() => null);
      throw new Error((body && body.error && body.error.message) || "HTTP " + response.status);
    }
    for await (const chunk of events(response)) takeChunk(a, chunk);
    if (!a.finish) throw new Error("The connection to the server was lost.");
    const note = document.createElement("span");
    const cached = a.usage && a.usage.prompt_tokens_details ? a.usage.prompt_tokens_details.cached_tokens : 0;
    note.className = "note";
    note.textContent = (a.finish === "length" ? "cut at the longest answer, " : "") + a.tokens + " tokens, prompt " +
      (a.usage ? a.usage.prompt_tokens : "?") + (cached ? " (" + cached + " from the cache)" : "");
    a.el.append(note);
  } catch (e) {
    if (e.name !== "AbortError") problem = e.message;
  }
  a.el.classList.remove("live");
  if (busy === running) idle();
  if (a.text || a.finish) {
    talk.push({ role: "assistant", content: a.text });
  } else {
    // No answer: the question is no part of the conversation, or each later request would carry it.
    const message = talk.pop();
    asked.remove();
    a.el.remove();
    if (talk === messages) takeBack(question, imagesOf(message));
  }
  if (talk === messages) {
    if (locked) problem += ": enter it in the field \u201cAPI key\u201d and send the message again.";
    if (problem) bubble("fail", problem);
    $("empty").hidden = $("log").querySelector(".msg") !== null;
    if (locked) $("keybox").hidden = false;
    if (locked) $("key").focus();
  }
  document.body.dataset.answers = String(Number(document.body.dataset.answers || 0) + 1);
}

function idle() {
  busy = null;
  show("send", "Send");
}

function ask(text) {
  if ((!text.trim() && !images.length) || busy) return;
  for (const el of $("log").querySelectorAll(".fail")) el.remove();
  const shown = images;
  images = [];
  drawImages();
  const parts = shown.map((url) => ({ type: "image_url", image_url: { url } }));
  if (text.trim()) parts.push({ type: "text", text });
  messages.push({ role: "user", content: shown.length ? parts : text });
  answer(messages, text, bubble("user", text, shown));
}

// ---------------------------------------------------------------- the server

function parse(text) {
  const v = {};
  for (const line of text.split("\n")) {
    const m = /^(salvo_[a-z_]+|process_resident_memory_bytes) (\S+)$/.exec(line);
    if (m) v[m[1]] = Number(m[2]);
  }
  return v;
}

function size(bytes) {
  return bytes >= 1 << 30 ? fixed(bytes / 2 ** 30, 1) + " GiB" : fixed(bytes / 2 ** 20, 0) + " MiB";
}

let before = null;
function drawServer(v) {
  const now = { at: performance.now(), n: v.salvo_generated_tokens_total };
  const rate = before ? ((now.n - before.n) * 1000) / (now.at - before.at) : 0;
  before = now;
  show("srate", fixed(rate, 0));
  show("saccept", fixed(v.salvo_verify_steps_total ? 1 + v.salvo_accepted_tokens_total / v.salvo_verify_steps_total : 0, 2));
  show("srun", (v.salvo_running_sequences || 0) + ", " + (v.salvo_waiting_sequences || 0));
  show("smem", size(v.process_resident_memory_bytes));
  show("spages", (v.salvo_cache_pages_used || 0) + " of " + (v.salvo_cache_pages || 0));
  show("scache", fixed(v.salvo_prefix_queries_total ? (100 * v.salvo_prefix_hits_total) / v.salvo_prefix_queries_total : 0, 0) + " %");
  $("pagebar").style.width = (v.salvo_cache_pages ? (100 * v.salvo_cache_pages_used) / v.salvo_cache_pages : 0) + "%";
}

function state(name, text) {
  $("state").dataset.state = name;
  show("state", text);
}

async function poll() {
  try {
    const health = await fetch("health");
    const metrics = await fetch("metrics", { headers: headers() });
    const locked = metrics.status === 401;
    $("keybox").hidden = !locked && !$("key").value;
    if (health.status !== 200) {
      const h = await health.json();
      state("wait", h.status === "loading" ? "loading " + h.stage : h.status);
    } else if (locked) {
      show("model", "");
      state("wait", "API key needed");
    } else {
      state("ok", "ready");
      if (!model) await hello();
    }
    if (metrics.ok) drawServer(parse(await metrics.text()));
  } catch (e) {
    state("bad", "not reachable");
  }
  setTimeout(poll, 1500);
}

async function hello() {
  const list = await fetch("v1/models", { headers: headers() });
  if (!list.ok) return;
  model = (await list.json()).data[0].id;
  show("model", model);
  const props = await fetch("props", { headers: headers() });
  takesImages = props.ok && (await props.json()).modalities.vision;
  $("attach").hidden = !takesImages;
  const info = await fetch("server_info", { headers: headers() });
  if (!info.ok) return;
  const i = await info.json();
  block = Math.max(1, i.speculative_num_draft_tokens);
  show("model", model + (i.speculative_algorithm ? " + draft of " + block : ", no draft"));
  histogram(shown); // an answer may have begun meanwhile
}

// ---------------------------------------------------------------- set-up

$("form").addEventListener("submit", (e) => {
  e.preventDefault();
  if (busy) { busy.abort(); return; } // the Stop button
  const text = $("input").value;
  $("input").value = "";
  fitInput();
  ask(text);
});
$("input").addEventListener("keydown", (e) => {
  if (e.key !== "Enter" || e.shiftKey) return;
  if (e.isComposing || e.keyCode === 229) return; // Enter picks a word of an input method; Safari has only the code
  e.preventDefault();
  if (!busy) $("form").requestSubmit(); // while an answer runs, the text stays where it is
});
function fitInput() {
  $("input").style.height = "";
  if ($("input").value) $("input").style.height = $("input").scrollHeight + 2 + "px";
}
$("input").addEventListener("input", fitInput);
$("attach").addEventListener("click", () => $("pick").click());
$("pick").addEventListener("change", () => {
  addImages([...$("pick").files]);
  $("pick").value = ""; // the same file may be picked again
});
$("input").addEventListener("paste", (e) => {
  const files = filesOf(e.clipboardData);
  if (!files.length) return;
  e.preventDefault();
  addImages(files);
});
document.addEventListener("dragover", (e) => { if (takesImages) e.preventDefault(); });
document.addEventListener("drop", (e) => {
  if (!takesImages) return;
  e.preventDefault();
  addImages(filesOf(e.dataTransfer));
});
$("clear").addEventListener("click", () => {
  if (busy) busy.abort();
  idle();
  messages = [];
  images = [];
  drawImages();
  for (const el of [...$("log").children]) if (el.id !== "empty") el.remove();
  $("empty").hidden = false;
});
for (const [slider, out] of [["temperature", "tval"], ["topp", "pval"]])
  $(slider).addEventListener("input", () => show(out, $(slider).value));
for (const text of ideas) {
  const b = document.createElement("button");
  b.type = "button";
  b.textContent = text;
  b.addEventListener("click", () => ask(text));
  $("ideas").append(b);
}
$("key").value = sessionStorage.getItem("key") || "";
$("keybox").addEventListener("submit", (e) => { e.preventDefault(); $("input").focus(); });
$("key").addEventListener("change", () => { sessionStorage.setItem("key", $("key").value); model = ""; });
histogram([]);
poll();
