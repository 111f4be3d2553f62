// turns.mjs URL KEYED_URL KEY [PICTURE] - the chat page where a turn does not go as planned: a new chat, a refusal, a stop or typing
// while an answer runs; an input method; plain decode steps; a key that is asked for; a server that is gone.
// Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import { open, proxy } from "./browser.mjs";

const [url, keyedUrl, key, picture] = process.argv.slice(2);
const front = await proxy(url);
const keyed = await proxy(keyedUrl);
const { browser, page } = await open({ width: 1280, height: 800 });
page.setDefaultTimeout(60000);
let ended = 0; // answers so far, as the page counts them

const until = (f, arg) => page.waitForFunction(f, arg);
const nextEnds = () => until((n) => Number(document.body.dataset.answers || 0) >= n, ++ended);
const send = async (text) => { await page.fill("#input", text); await page.press("#input", "Enter"); };
const input = () => page.inputValue("#input");
const count = (what) => page.locator(what).count();
const last = () => front.bodies.at(-1).messages;
const started = () => until(() => document.querySelector(".msg.bot.live .o, .msg.bot.live .d"));
const shot = (name) => picture && page.screenshot({ path: picture.replace(".png", "-" + name + ".png") });
async function visit(at) {
  await page.goto(at);
  ended = 0;
}

try {
  await visit(front.url);
  await until(() => document.getElementById("state").textContent === "ready");

  // A new chat while an answer runs begins empty, also when the next message is sent at once.
  front.hold = true;
  await send("Count to ten.");
  await started();
  front.hold = false;
  await page.evaluate(() => {
    document.getElementById("clear").click();
    document.getElementById("input").value = "Say yes.";
    document.getElementById("send").click();
  });
  ended++; // the one that was given up
  await nextEnds();
  assert.deepEqual(last(), [{ role: "user", content: "Say yes." }], "a new chat holds nothing of the old one");
  assert.equal(await count(".msg.user"), 1);
  assert.equal(await count(".msg.bot"), 1);
  await send("Say no.");
  await nextEnds();
  assert.deepEqual(last().map((m) => m.role), ["user", "assistant", "user"]);
  assert.equal(await page.textContent("#send"), "Send");

  // A message that is refused goes back into the box, and the conversation goes on without it.
  const long = Array(3000).fill("word").join(" ");
  await send(long);
  await nextEnds();
  assert.match(await page.textContent(".msg.fail"), /leaves no room for an answer/);
  assert.equal(await input(), long);
  assert.equal(await count(".msg.user"), 2, "the refused message is not shown as asked");
  assert.equal(await count(".msg.bot"), 2, "no empty answer");
  await shot("refused");
  await send("Say maybe.");
  await nextEnds();
  assert.deepEqual(last().map((m) => m.role), ["user", "assistant", "user", "assistant", "user"]);
  assert.equal(last().at(-1).content, "Say maybe.");
  assert.equal(await count(".msg.fail"), 0);
  assert.ok((await page.locator(".msg.bot").last().textContent()).length > 0);

  // Enter in an input method's window picks a word; Safari tells it by the key code alone.
  await page.click("#clear");
  await page.fill("#input", "nihongo");
  const asked = front.bodies.length;
  for (const how of [{ isComposing: true }, { keyCode: 229 }])
    await page.evaluate((how) => document.getElementById("input").dispatchEvent(new KeyboardEvent("keydown",
      { key: "Enter", bubbles: true, cancelable: true, ...how })), how);
  await page.waitForTimeout(200);
  assert.equal(front.bodies.length, asked, "nothing is sent while a word is composed");
  assert.equal(await input(), "nihongo");

  // Enter while an answer runs neither ends it nor loses what was typed; Stop ends it, and its text stays a turn.
  front.hold = true;
  await send("Count to twenty.");
  await started();
  await send("typed ahead");
  await page.waitForTimeout(200);
  assert.equal(await page.textContent("#send"), "Stop", "the answer still runs");
  assert.equal(await input(), "typed ahead");
  front.release();
  await nextEnds();
  assert.equal(await count(".msg.bot .note"), 1, "the answer came to its end");
  assert.equal(await input(), "typed ahead");
  await send("Count to thirty.");
  await started();
  await page.click("#send");
  await nextEnds();
  front.hold = false;
  await send("Say yes.");
  await nextEnds();
  assert.deepEqual(last().map((m) => m.role), ["user", "assistant", "user", "assistant", "user"]);

  // All steps are counted, whether they verified drafts or not: each token but the first is brought by one.
  async function steps(edit, text) {
    await page.click("#clear");
    front.edit = edit;
    await send(text);
    await nextEnds();
    front.edit = (body) => body;
    const bars = await page.locator("#histogram > span").evaluateAll((l) => l.map((s) => parseInt(s.title)));
    const n = Number(await page.textContent("#tokens"));
    const steps = Number(await page.textContent("#steps"));
    assert.equal(bars.reduce((s, b) => s + b, 0), steps);
    assert.equal(bars.reduce((s, b, i) => s + b * (i + 1), 0), n - 1, "the steps' tokens");
    assert.equal(await page.textContent("#accept"), ((n - 1) / steps).toFixed(2));
    return { n, steps, bars };
  }
  const question = "Write a Python function that adds two numbers.";
  const plain = await steps((body) => ({ ...body, width: 1, max_tokens: 40 }), question);
  assert.deepEqual([plain.n, plain.steps], [40, 39]);
  // With two rows a step and some number of tokens, the last step has room for one token and none for a draft.
  let mixed = 0;
  for (let n = 20; n < 26 && !mixed; n++) {
    const body = { messages: [{ role: "user", content: question }], temperature: 0, max_tokens: n, width: 2 };
    const answer = await (await fetch(url + "/v1/chat/completions", { method: "POST", body: JSON.stringify(body),
      headers: { "Content-Type": "application/json" } })).json();
    const spec = answer.metrics.speculative_decoding;
    if (spec.num_spec_steps && answer.usage.completion_tokens - 1 > spec.num_spec_steps + spec.num_accepted_draft_tokens) mixed = n;
  }
  assert.ok(mixed, "an answer with both kinds of steps");
  await steps((body) => ({ ...body, width: 2, max_tokens: mixed }), question);

  // The server is gone in the middle of an answer, and then altogether.
  await page.click("#clear");
  front.hold = true;
  await send("Count to ten.");
  await started();
  front.stop();
  await nextEnds();
  assert.equal(await page.textContent(".msg.fail"), "The connection to the server was lost.");
  await send("Hello?");
  await nextEnds();
  assert.equal(await page.textContent(".msg.fail"), "The server cannot be reached.");
  assert.equal(await input(), "Hello?");
  assert.equal(await count(".msg.bot"), 1, "no empty answer");
  await until(() => document.getElementById("state").textContent === "not reachable");
  await shot("gone");

  // A key is asked for, in a place that can be seen; the message waits for it.
  await visit(keyed.url);
  await until(() => document.getElementById("state").textContent === "API key needed");
  assert.equal(await page.textContent("#model"), "");
  await send("Say yes.");
  await nextEnds();
  assert.match(await page.textContent(".msg.fail"), /enter it in the field .API key./);
  assert.equal(await input(), "Say yes.");
  assert.equal(await page.evaluate(() => document.activeElement.id), "key");
  const box = await page.locator("#key").boundingBox();
  assert.ok(box.y > 0 && box.y + box.height < 800, "the field is in view");
  await shot("key");
  await page.keyboard.type(key);
  await page.keyboard.press("Enter");
  await until(() => document.getElementById("state").textContent === "ready");
  await until(() => document.getElementById("model").textContent.startsWith("target"));
  await page.press("#input", "Enter");
  await nextEnds();
  assert.equal(await count(".msg.fail"), 0);
  assert.equal(await count(".msg.bot .note"), 1);
  console.log("turns: all as they should be");
} finally {
  await browser.close();
  front.stop();
  keyed.stop();
}
