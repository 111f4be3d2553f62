// browser.mjs - a page of headless Chromium, and a proxy before the server that can hold, change and record answers.
// Used by page.mjs and turns.mjs. Must not: change what the server says unless a test asks for it.
import http from "node:http";
import { chromium } from "playwright-core";

export async function open(size) {
  const browser = await chromium.launch({
    executablePath: "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync"],
  });
  return { browser, page: await browser.newPage({ viewport: size }) };
}

// bodies: of the chat requests, as the page sent them. edit(body): what goes on to the server. hold: after the first
// text of an answer, nothing more is passed on until release(). stop(): nothing listens any longer.
export async function proxy(target) {
  const p = { bodies: [], edit: (body) => body, hold: false, release: () => {} };
  const server = http.createServer(async (req, res) => {
    const parts = [];
    const gone = new AbortController();
    res.on("close", () => gone.abort());
    try {
      for await (const part of req) parts.push(part);
      let body = Buffer.concat(parts).toString();
      const chat = req.url.endsWith("/chat/completions");
      if (chat) {
        p.bodies.push(JSON.parse(body));
        body = JSON.stringify(p.edit(JSON.parse(body)));
      }
      const headers = { "Content-Type": "application/json" };
      if (req.headers.authorization) headers.Authorization = req.headers.authorization;
      const answer = await fetch(target + req.url, { method: req.method, headers, body: body || undefined, signal: gone.signal });
      const policy = answer.headers.get("content-security-policy");
      res.writeHead(answer.status, { "Content-Type": answer.headers.get("content-type"),
        ...(policy && { "Content-Security-Policy": policy }) });
      let held = !(chat && p.hold);
      for await (const part of answer.body) {
        res.write(part);
        if (!held && Buffer.from(part).includes('"content":"')) {
          held = true;
          await new Promise((resolve) => { p.release = resolve; gone.signal.addEventListener("abort", resolve); });
        }
      }
      res.end();
    } catch (e) {
      res.destroy(); // the page has gone, or the server
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  p.url = "http://127.0.0.1:" + server.address().port;
  p.stop = () => { server.closeAllConnections(); server.close(); };
  return p;
}
