// images.mjs URL - images on the chat page: picked, pasted, dropped, taken away, sent, shown, given back when they are refused.
// The server reads text alone: /props is answered here, and a proxy takes the images out of what the page sends.
// Called by clients.test.sh. Exits 1 with the first thing that is wrong.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { open, proxy } from "./browser.mjs";

const front = await proxy(process.argv[2]);
const golden = (name) => "tests/golden/images/" + name;
const { browser, page } = await open({ width: 1280, height: 800 });
page.setDefaultTimeout(20000);
let ended = 0;

const until = (f, arg) => page.waitForFunction(f, arg);
const nextEnds = () => until((n) => Number(document.body.dataset.answers || 0) >= n, ++ended);
const count = (what) => page.locator(what).count();
const thumbs = (n) => until((n) => document.querySelectorAll("#images img").length === n, n);
const ready = () => until(() => document.getElementById("state").textContent === "ready" && /draft/.test(document.getElementById("model").textContent));
const parts = () => front.bodies.at(-1).messages;
// A file that comes by paste or drop.
const transfer = (kind, name, type, bytes) => page.evaluate(([kind, name, type, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], name, { type }));
  const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.getElementById("input").dispatchEvent(event);
  return event.defaultPrevented;
}, [kind, name, type, [...bytes]]);
const text = (m) => (Array.isArray(m.content) ? m.content.filter((p) => p.type === "text").map((p) => p.text).join("\n") : m.content);

try {
  const problems = [];
  page.on("pageerror", (e) => problems.push(String(e)));
  page.on("console", (m) => m.type() === "error" && problems.push(m.text()));
  front.edit = (body) => ({ ...body, messages: body.messages.map((m) => ({ ...m, content: text(m) || "an image" })) });

  // A model that takes none has no button, and a file that is dropped is the browser's.
  await page.goto(front.url);
  await ready();
  assert.ok(await page.isHidden("#attach"));
  assert.equal(await transfer("drop", "a.png", "image/png", [1]), false);

  await page.route("**/props", (route) => route.fulfill({ json: { modalities: { vision: true } } }));
  await page.goto(front.url);
  await ready();
  assert.ok(await page.isVisible("#attach"));

  // Picked, and one of them taken away; the others go before the text and are shown with it.
  await page.setInputFiles("#pick", [golden("rgb.png"), golden("still.gif"), golden("444.jpg")]);
  await thumbs(2);
  assert.match(await page.textContent(".msg.fail"), /still\.gif is not a PNG, JPEG or WebP image/);
  await page.click("#images button >> nth=0");
  await thumbs(1);
  assert.ok(await transfer("paste", "p.png", "image/png", readFileSync(golden("rgb.png"))));
  await thumbs(2);
  assert.ok(await transfer("drop", "d.webp", "image/webp", readFileSync(golden("lossless.webp"))));
  await thumbs(3);
  await page.fill("#input", "What is this?");
  await page.press("#input", "Enter");
  await nextEnds();
  assert.ok(await page.isHidden("#images"));
  assert.deepEqual(parts()[0].content.map((p) => p.type), ["image_url", "image_url", "image_url", "text"]);
  assert.deepEqual(parts()[0].content.map((p) => (p.image_url ? p.image_url.url.slice(0, 23) : p.text)),
    ["data:image/jpeg;base64,", "data:image/png;base64,i", "data:image/webp;base64,", "What is this?"]);
  assert.equal(Buffer.from(parts()[0].content[1].image_url.url.split(",")[1], "base64").compare(readFileSync(golden("rgb.png"))), 0);
  assert.equal(await count(".msg.user img"), 3);
  await until(() => [...document.querySelectorAll(".msg.user img")].every((i) => i.complete && i.naturalWidth === 23));

  // They stay in the conversation; a message without one is a text.
  await page.fill("#input", "And now?");
  await page.press("#input", "Enter");
  await nextEnds();
  assert.equal(parts().length, 3);
  assert.equal(parts()[0].content.length, 4);
  assert.equal(parts()[2].content, "And now?");

  // A refused message goes back, with its image, also when it has no text.
  front.edit = (body) => ({ ...body, temperature: -1 });
  await page.setInputFiles("#pick", golden("rgb.png"));
  await thumbs(1);
  await page.click("#send");
  await nextEnds();
  await thumbs(1);
  assert.match(await page.textContent(".msg.fail"), /temperature/);
  assert.equal(parts()[4].content.length, 1);
  await page.click("#clear");
  await thumbs(0);
  assert.equal(await count(".msg"), 0);
  assert.deepEqual(problems.filter((p) => !/status of 400/.test(p)), []);
  console.log("images: all as it should be");
} finally {
  await browser.close();
  front.stop();
}
