// page.mjs URL [PICTURE] - drives the chat page in headless Chromium and checks what a person would see.
// Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import { open } from "./browser.mjs";

const [url, picture] = process.argv.slice(2);
const { browser, page } = await open({ width: 1280, height: 840 });
try {
  const problems = [];
  page.on("pageerror", (e) => problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && problems.push(m.text()));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("state").textContent === "ready");
  await page.waitForFunction(() => document.getElementById("model").textContent.startsWith("target"));
  if (picture) await page.screenshot({ path: picture.replace(".png", "-empty.png") });

  // One click asks; the answer streams in colours.
  await page.click("#ideas button >> nth=1");
  await page.waitForFunction(() => document.body.dataset.answers === "1", null, { timeout: 60000 });
  const text = await page.locator(".msg.bot").first().evaluate((el) => {
    const copy = el.cloneNode(true);
    for (const note of copy.querySelectorAll(".note")) note.remove();
    return copy.textContent;
  });
  assert.ok(text.length > 20, "an answer");
  assert.ok((await page.locator(".msg.bot .o").count()) > 0, "tokens of the model's own");
  assert.ok((await page.locator(".msg.bot .d").count()) > 0, "drafted tokens");

  // The same text as the API gives.
  const question = await page.locator(".msg.user").first().textContent();
  const answer = await fetch(url + "/v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ messages: [{ role: "user", content: question }], temperature: 0, top_p: 1, max_tokens: 256 }) });
  assert.equal(text, (await answer.json()).choices[0].message.content);

  // Figures.
  const tokens = Number(await page.textContent("#tokens"));
  assert.ok(tokens > 5, "tokens are counted");
  assert.ok(Number(await page.textContent("#accept")) >= 1, "accept length");
  assert.ok(Number(await page.textContent("#rate")) > 0, "a rate");
  const bars = await page.locator("#histogram b").evaluateAll((l) => l.map((b) => parseFloat(b.style.height) || 0));
  assert.ok(Math.max(...bars) > 60, "a histogram");
  await page.waitForFunction(() => /MiB|GiB/.test(document.getElementById("smem").textContent));

  // A second question by keyboard, stopped half way.
  await page.fill("#max", "1500");
  await page.fill("#input", "Write a very long program in C.");
  // Watched, not polled: an answer that happens to be short is over between two looks.
  await page.evaluate(() => {
    const send = document.getElementById("send");
    new MutationObserver(() => { if (send.textContent === "Stop") window.sawStop = true; }).observe(send,
      { childList: true, characterData: true, subtree: true });
  });
  await page.press("#input", "Enter");
  await page.waitForFunction(() => window.sawStop);
  await page.waitForFunction(() => Number(document.getElementById("tokens").textContent) > 10);
  if (picture) await page.screenshot({ path: picture });
  await page.click("#send");
  await page.waitForFunction(() => document.body.dataset.answers === "2");
  await page.click("#clear");
  assert.equal(await page.locator(".msg").count(), 0);

  await page.emulateMedia({ colorScheme: "dark" });
  await page.click("#ideas button >> nth=2");
  await page.waitForFunction(() => document.body.dataset.answers === "3", null, { timeout: 60000 });
  await page.waitForTimeout(1700); // a round of the server's figures
  if (picture) await page.screenshot({ path: picture.replace(".png", "-dark.png") });
  await page.setViewportSize({ width: 420, height: 800 });
  if (picture) await page.screenshot({ path: picture.replace(".png", "-narrow.png") });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  assert.ok(!wide, "nothing wider than a phone");
  assert.deepEqual(problems, []);
  console.log("page: all as it should be");
} finally {
  await browser.close();
}
