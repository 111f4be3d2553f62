// Owns: one printed style for Python and JavaScript. Called by tidy.py: jsonl on stdin ({"lang", "text"}), jsonl on stdout
// ("text", or null where the source does not parse). Needs the npm packages esbuild and @wasm-fmt/ruff_fmt in NODE_MODULES' folder.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const need = createRequire(process.argv[2] + "/");
const esbuild = need("esbuild");
const ruff = await import(need.resolve("@wasm-fmt/ruff_fmt/node"));

for await (const line of createInterface({ input: process.stdin })) {
    const { lang, text } = JSON.parse(line);
    let out = null;
    try {
        if (lang === "python") out = ruff.format(text, "a.py", { line_width: 88 });
        else out = esbuild.transformSync(text, { loader: "jsx", jsx: "preserve", legalComments: "none", charset: "utf8" }).code;
    } catch (e) {
        if (process.env.TIDY_DEBUG) process.stderr.write(String(e) + "\n");
    }
    if (!process.stdout.write(JSON.stringify(out) + "\n")) await new Promise((r) => process.stdout.once("drain", r));
}
